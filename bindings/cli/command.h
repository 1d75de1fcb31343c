// SPDX-License-Identifier: Apache-2.0
// What the commands of the `headrace` program share: how they are registered, how errors leave, how tables are printed.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "core/result.h"

namespace headrace::cli {

// The one job that the command line asks for, set by the chosen command's callback; returns the exit code or an error.
using Job = std::function<Result<int>()>;

struct Program {
  CLI::App* app = nullptr;
  bool json = false;  // --json of the chosen command
  Job job;
};

// Each adds its command to the program.
void add_train(Program& program);
void add_plan(Program& program);
void add_profile(Program& program);
void add_tune(Program& program);
void add_generate(Program& program);
void add_config(Program& program);
void add_doctor(Program& program);
void add_checkpoint(Program& program);

[[nodiscard]] std::string version_text();  // "headrace 0.1.0 (GCC 12.2.0, io_uring, oneDNN 2.6.3, …)"

// {"error": {…}} of the contract.
[[nodiscard]] std::string error_json(const Error& error);

// Rows of cells, first column left, others right aligned, widths by code points; a row of "-" draws lines.
[[nodiscard]] std::string format_table(const std::vector<std::vector<std::string>>& rows);

[[nodiscard]] std::string count_text(std::int64_t count, std::string_view one);  // "1 step", "2 steps"
[[nodiscard]] bool is_terminal(int fd) noexcept;
// Prints to standard output and flushes, so that a line is seen when it is said.
void print(std::string_view text);
// Something that print() was given never arrived: the exit code must not be 0.
[[nodiscard]] bool lost_output() noexcept;
// To standard error; like print(), it goes on when nobody reads it any more (fmt::print throws then).
void print_error(std::string_view text);

}  // namespace headrace::cli
