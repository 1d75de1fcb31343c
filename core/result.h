// SPDX-License-Identifier: Apache-2.0
// Result<T> carries either a value or an Error across every fallible call of the data path. Control paths may turn an
// Error into an exit code with exit_code(); nothing here throws except value() on an error, which is a programming
// fault.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace headrace {

// What went wrong, in the words of the command line's exit codes (see exit_code).
enum class ErrorCode : std::uint8_t {
  kFailed,         // 1: anything without a better name
  kUsage,          // 2: command line
  kConfig,         // 3: configuration or input files that configure the run
  kDoesNotFit,     // 4: a budget is too small
  kPreflight,      // 4: the environment cannot do what the config asks
  kIo,             // 5: storage
  kNumeric,        // 6: non-finite values
  kCommunication,  // 7: ranks
  kStopped,        // 75: stopped on request after saving
};

[[nodiscard]] int exit_code(ErrorCode code) noexcept;
[[nodiscard]] const char* error_code_name(ErrorCode code) noexcept;  // "io", "config", …: the `code` of --json errors

// One failure: what was attempted, with which numbers, what the system said (message), and what to do (hint).
struct Error {
  ErrorCode code = ErrorCode::kFailed;
  std::string message;
  std::string hint;  // may be empty
  std::string file;  // config position; empty when not from a file
  int line = 0;
  int column = 0;
  std::int64_t smallest_host_bytes = 0;  // kDoesNotFit: the smallest budgets that work, 0 when unknown
  std::int64_t smallest_device_bytes = 0;

  [[nodiscard]] std::string to_string() const;  // "file:line:col: message\n  hint"
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::make_unique<Error>(std::move(error))) {}  // NOLINT

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
  [[nodiscard]] T& operator*() & { return value(); }
  [[nodiscard]] const T& operator*() const& { return value(); }
  [[nodiscard]] T* operator->() { return &value(); }
  [[nodiscard]] const T* operator->() const { return &value(); }
  [[nodiscard]] const Error& error() const& { return *std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::move(*std::get<1>(state_)); }

 private:
  std::variant<T, std::unique_ptr<Error>> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::make_unique<Error>(std::move(error))) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const noexcept { return error_ == nullptr; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const& { return *error_; }
  [[nodiscard]] Error&& error() && { return std::move(*error_); }

 private:
  std::unique_ptr<Error> error_;
};

[[nodiscard]] inline Error make_error(ErrorCode code, std::string message, std::string hint = {}) {
  Error error;
  error.code = code;
  error.message = std::move(message);
  error.hint = std::move(hint);
  return error;
}

}  // namespace headrace

#define HEADRACE_CONCAT_INNER(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_INNER(a, b)
// HEADRACE_TRY(auto x, expression): x is the value, or the enclosing function returns the error.
#define HEADRACE_TRY(declaration, ...) HEADRACE_TRY_INNER(HEADRACE_CONCAT(result_, __LINE__), declaration, __VA_ARGS__)
#define HEADRACE_TRY_INNER(temporary, declaration, ...)     \
  auto temporary = (__VA_ARGS__);                           \
  if (!temporary.ok()) return std::move(temporary).error(); \
  declaration = std::move(temporary).value()
#define HEADRACE_RETURN_IF_ERROR(...)                                                                           \
  do {                                                                                                          \
    if (auto headrace_status = (__VA_ARGS__); !headrace_status.ok()) return std::move(headrace_status).error(); \
  } while (false)
