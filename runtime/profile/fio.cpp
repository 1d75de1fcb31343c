// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/fio.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "io/posix.h"

extern char** environ;

namespace headrace::profile {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kGrace{30};  // for fio's start and its last requests

struct Outcome {
  std::string text;  // what it printed, errors included
  int status = 0;
};

std::vector<std::string> environment(bool huge_pages) {
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "GLIBC_TUNABLES=", 15) != 0) result.emplace_back(*variable);
  }
  if (huge_pages) result.emplace_back("GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

// Only what a child of a threaded process may call between fork and exec.
[[noreturn]] void become(const std::vector<char*>& argv, const std::vector<char*>& envp, int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it must not outlive us, however we end
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(out, STDERR_FILENO) >= 0) ::execve(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

Result<Outcome> run_program(std::vector<std::string> words, bool huge_pages, Clock::time_point deadline) {
  std::vector<std::string> variables = environment(huge_pages);
  const std::vector<char*> argv = pointers_to(words), envp = pointers_to(variables);
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return make_error(ErrorCode::kFailed, fmt::format("starting {}: {}", words[0], io::errno_text(errno)));
  io::UniqueFd out(ends[0]);
  pid_t child = -1;
  {
    const io::UniqueFd in(ends[1]);
    child = ::fork();
    if (child == 0) become(argv, envp, in.get());
  }
  if (child < 0) return make_error(ErrorCode::kFailed, fmt::format("starting {}: {}", words[0], io::errno_text(errno)));
  Outcome outcome;
  bool in_time = true;
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{out.get(), POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0 && left <= 0) {
      in_time = false;
      ::kill(child, SIGKILL);
      break;
    }
    if (ready == 0) continue;
    const ssize_t got = ::read(out.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    outcome.text.append(buffer, static_cast<std::size_t>(got));
  }
  while (::waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) return make_error(ErrorCode::kFailed, fmt::format("{} did not end in time and was stopped", words[0]));
  return outcome;
}

// fio's terse format, version 3: fields by number, from 1; KiB and KiB/s.
double field(const std::vector<std::string>& fields, std::size_t number) {
  return number <= fields.size() ? std::strtod(fields[number - 1].c_str(), nullptr) : 0;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ';') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string first_lines(const std::string& text) { return text.substr(0, std::min<std::size_t>(text.size(), 300)); }

Result<FioSample> parse(const std::string& text, Bytes jobs) {
  const std::size_t at = text.rfind("3;fio-");
  const std::vector<std::string> fields =
      at == std::string::npos ? std::vector<std::string>() : split(text.substr(at, text.find('\n', at) - at));
  if (fields.size() < 90 || field(fields, 5) != 0)
    return make_error(ErrorCode::kFailed, "fio failed: " + first_lines(text));
  constexpr double kKib = 1024;
  FioSample sample;
  const double milliseconds = std::max(field(fields, 9), field(fields, 50));
  const double read = field(fields, 6) * kKib, written = field(fields, 47) * kKib;
  if (milliseconds <= 0 || read + written <= 0)
    return make_error(ErrorCode::kFailed, "fio moved nothing: " + first_lines(text));
  sample.read_bytes_per_s = read / milliseconds * 1e3;
  sample.write_bytes_per_s = written / milliseconds * 1e3;
  sample.bytes_per_s = sample.read_bytes_per_s + sample.write_bytes_per_s;
  // Percent of one core over the run, of its average job.
  sample.cpu_seconds_per_byte =
      (field(fields, 88) + field(fields, 89)) / 100 * static_cast<double>(jobs) * milliseconds / 1e3 / (read + written);
  sample.written_bytes = static_cast<Bytes>(written);
  return sample;
}

}  // namespace

std::optional<FioProgram> find_fio() {
  const char* const path = std::getenv("PATH");
  std::string folders = path == nullptr ? "/usr/bin:/bin" : path;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    FioProgram fio;
    fio.path = folders.substr(begin, end - begin) + "/fio";
    begin = end + 1;
    if (::access(fio.path.c_str(), X_OK) != 0) continue;
    const auto outcome = run_program({fio.path, "--version"}, false, Clock::now() + std::chrono::seconds(5));
    if (!outcome.ok() || outcome->status != 0 || outcome->text.rfind("fio-", 0) != 0) continue;
    fio.version = outcome->text.substr(0, outcome->text.find('\n'));
    return fio;
  }
  return std::nullopt;
}

std::string fio_setting_text(const FioSetting& setting) {
  return fmt::format("{} {} × {}, {} pages", setting.engine, format_bytes(setting.block_bytes),
                     std::max<Bytes>(setting.in_flight_bytes / setting.block_bytes, 1),
                     setting.huge_pages ? "huge" : "ordinary");
}

Result<FioSample> run_fio(const FioProgram& fio, const FioSetting& setting, const TransferRun& run,
                          std::span<const std::uint32_t> which, Traffic traffic, const SampleLimit& limit) {
  const auto jobs = static_cast<Bytes>(which.size());
  const Bytes depth = std::max<Bytes>(setting.in_flight_bytes / setting.block_bytes / jobs, 1);
  const Bytes share = traffic == Traffic::kMixed ? 2 * limit.write_bytes : limit.write_bytes;
  const Bytes io_size = traffic == Traffic::kRead ? 1024 * kGiB : std::max(share / jobs, setting.block_bytes);
  bool direct = true;
  for (const std::uint32_t file : which) direct = direct && run.files()[file].direct;
  std::vector<std::string> words{fio.path,
                                 "--output-format=terse",
                                 "--terse-version=3",
                                 "--group_reporting",
                                 "--thread",
                                 "--scramble_buffers=0",
                                 "--fallocate=none",
                                 "--allow_file_create=0",
                                 "--invalidate=1",
                                 fmt::format("--direct={}", direct ? 1 : 0),
                                 fmt::format("--ioengine={}", setting.engine),
                                 fmt::format("--bs={}", setting.block_bytes),
                                 fmt::format("--iodepth={}", depth),
                                 fmt::format("--rw={}", traffic == Traffic::kRead    ? "read"
                                                        : traffic == Traffic::kWrite ? "write"
                                                                                     : "rw"),
                                 fmt::format("--runtime={}ms", static_cast<std::int64_t>(limit.seconds * 1e3)),
                                 fmt::format("--io_size={}", io_size)};
  if (!direct && traffic != Traffic::kRead) words.emplace_back("--end_fsync=1");
  for (const std::uint32_t file : which) {
    TransferRun::Range range = traffic == Traffic::kRead ? run.read_range(file) : run.others_range(file);
    range.bytes = range.bytes / setting.block_bytes * setting.block_bytes;
    words.push_back(fmt::format("--name=path{}", file));
    words.push_back(fmt::format("--filename={}", name_for_others(run.files()[file])));
    words.push_back(fmt::format("--offset={}", range.offset));
    words.push_back(fmt::format("--size={}", range.bytes));
  }
  const auto deadline =
      Clock::now() + kGrace + std::chrono::milliseconds(static_cast<std::int64_t>(limit.seconds * 1e3));
  HEADRACE_TRY(const Outcome outcome, run_program(std::move(words), setting.huge_pages, deadline));
  return parse(outcome.text, jobs);
}

}  // namespace headrace::profile
