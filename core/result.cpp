// SPDX-License-Identifier: Apache-2.0
#include "core/result.h"

#include <fmt/format.h>

namespace headrace {

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kFailed: return 1;
    case ErrorCode::kUsage: return 2;
    case ErrorCode::kConfig: return 3;
    case ErrorCode::kDoesNotFit: return 4;
    case ErrorCode::kPreflight: return 4;
    case ErrorCode::kIo: return 5;
    case ErrorCode::kNumeric: return 6;
    case ErrorCode::kCommunication: return 7;
    case ErrorCode::kStopped: return 75;
  }
  return 1;
}

const char* error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kFailed: return "failed";
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kConfig: return "config";
    case ErrorCode::kDoesNotFit: return "does_not_fit";
    case ErrorCode::kPreflight: return "preflight";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kNumeric: return "numeric";
    case ErrorCode::kCommunication: return "communication";
    case ErrorCode::kStopped: return "stopped";
  }
  return "failed";
}

std::string Error::to_string() const {
  std::string text;
  if (!file.empty()) {
    text += file;
    if (line > 0) text += fmt::format(":{}", line);
    if (line > 0 && column > 0) text += fmt::format(":{}", column);
    text += ": ";
  }
  text += message;
  if (hint.empty()) return text;
  text += "\n  ";
  for (const char c : hint) {
    text += c;
    if (c == '\n') text += "  ";
  }
  return text;
}

}  // namespace headrace
