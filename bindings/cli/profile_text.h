// SPDX-License-Identifier: Apache-2.0
// What `headrace profile` and `headrace tune` print for people.
#pragma once

#include <string>

#include "runtime/profile/report.h"

namespace headrace::cli {

[[nodiscard]] std::string profile_text(const profile::Report& report);
[[nodiscard]] std::string setting_text(const profile::TransferSetting& setting);  // "block 4 MiB, 32 MiB in flight"

// The value of an option, such as --max-write; kUsage for what is no size.
[[nodiscard]] Result<Bytes> size_option(const std::string& name, const std::string& value);
// One line that is written over, on a terminal; nothing elsewhere.
[[nodiscard]] profile::ProgressSink progress_line();
void clear_progress_line();

}  // namespace headrace::cli
