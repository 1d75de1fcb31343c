// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "core/json.h"

namespace headrace::cli {

namespace {

bool output_is_lost = false;  // one thread prints

// Columns that a terminal needs for UTF-8 text without wide or combining characters, which we do not print.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string error_json(const Error& error) {
  JsonObject fields;
  fields.add("code", error_code_name(error.code));
  fields.add("message", error.message);
  if (error.file.empty()) {
    fields.add_null("file");
    fields.add_null("line");
    fields.add_null("column");
  } else {
    fields.add("file", error.file);
    fields.add("line", error.line);
    fields.add("column", error.column);
  }
  fields.add("hint", error.hint);
  JsonObject document;
  document.add_raw("error", fields.text());
  return document.text();
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths.size() <= i) widths.resize(i + 1);
      widths[i] = std::max(widths[i], row[i] == "-" ? 0 : width_of(row[i]));
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      std::string cell = row[i];
      if (cell == "-") {
        cell.clear();
        for (std::size_t c = 0; c < widths[i]; ++c) cell += "─";
      }
      const std::string padding(widths[i] - width_of(cell), ' ');
      const bool is_note = i + 1 == row.size() && i > 0 && widths[i] > 24;
      line += i == 0 || is_note ? cell + padding : padding + cell;
      line += i + 1 < row.size() ? "   " : "";
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

std::string count_text(std::int64_t count, std::string_view one) {
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : "s");
}

bool is_terminal(int fd) noexcept { return isatty(fd) == 1; }

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    output_is_lost = true;
}

bool lost_output() noexcept { return output_is_lost; }

void print_error(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace headrace::cli
