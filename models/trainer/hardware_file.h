// SPDX-License-Identifier: Apache-2.0
// The hardware file: rates of a machine, in the words of `headrace profile --json`, and what they mean for a model. A
// run writes the rates that it measured at its start as RUN/hardware.json; `plan --hardware` and `headrace.hardware`
// read such a file.
#pragma once

#include <optional>
#include <string>

#include "core/result.h"
#include "runtime/plan/choose.h"
#include "runtime/plan/compile.h"
#include "runtime/plan/hardware.h"

namespace headrace::models {

// {"cores", "compute": [{"dtype", "flops_per_s"}], "optimizer": [{"format", "parameters_per_s"}], "gradients":
// {"elements_per_s"},
//  "memory": {"copy_bytes_per_s"}, "storage": [{"path", "read": {"bw_bytes"}, "write": {"bw_bytes"}, "mixed":
//  {"bw_bytes"}, "cpu_seconds_per_byte"}]}
[[nodiscard]] std::string format_hardware(const runtime::Rates& rates, const runtime::PlanInput& input,
                                          const std::vector<std::string>& paths);
// A whole file, checked strictly: kConfig with file, line and key for what is missing, unknown, zero, absurd or of
// another version. docs/hardware-files.md describes the format.
[[nodiscard]] Result<runtime::Hardware> read_hardware_file(const std::string& file);
// kConfig that names the key for a missing, zero, negative or non-finite rate that this job needs.
[[nodiscard]] Result<runtime::Rates> read_hardware(const std::string& file, const runtime::PlanInput& input);

// The plan of a job: by its simulated step where a hardware file gives rates, else by the bytes it moves.
[[nodiscard]] Result<runtime::Plan> plan_with(const std::optional<std::string>& hardware_file,
                                              const runtime::PlanInput& input);

}  // namespace headrace::models
