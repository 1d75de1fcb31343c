// SPDX-License-Identifier: Apache-2.0
// HEADRACE_CHECK states what the program itself guarantees; a failure is a defect of ours, prints the place and aborts.
// Faults of the user or of the system are Errors (core/result.h), never checks.
#pragma once

namespace headrace {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* message) noexcept;
}

#define HEADRACE_CHECK(condition, message) \
  (static_cast<bool>(condition) ? void(0) : ::headrace::check_failed(__FILE__, __LINE__, #condition, message))
