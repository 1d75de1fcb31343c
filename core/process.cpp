// SPDX-License-Identifier: Apache-2.0
#include "core/process.h"

#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "core/file.h"

namespace headrace {
namespace {

// The number behind "key" in lines of the form "key:  123 kB".
std::optional<std::int64_t> field(std::string_view text, std::string_view key) {
  const std::size_t start = text.starts_with(key) ? 0 : text.find(fmt::format("\n{}", key));
  if (start == std::string_view::npos) return std::nullopt;
  const std::size_t digit = text.find_first_of("0123456789", text.find(':', start));
  if (digit == std::string_view::npos) return std::nullopt;
  std::int64_t value = 0;
  std::from_chars(text.data() + digit, text.data() + text.size(), value);
  return value;
}

Error missing(const char* path, const char* key) {
  return make_error(ErrorCode::kFailed, fmt::format("{} has no field \"{}\"", path, key));
}

double seconds(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

Result<ProcessMemory> process_memory() {
  constexpr const char* kPath = "/proc/self/status";
  HEADRACE_TRY(const std::string text, read_text_file(kPath));
  const auto resident = field(text, "VmRSS:");
  const auto peak = field(text, "VmHWM:");
  if (!resident) return missing(kPath, "VmRSS");
  if (!peak) return missing(kPath, "VmHWM");
  ProcessMemory memory;
  memory.resident = *resident * kKiB;
  memory.peak_resident = *peak * kKiB;
  memory.huge_pages = field(text, "HugetlbPages:").value_or(0) * kKiB;  // absent in kernels without explicit huge pages
  return memory;
}

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

Result<ProcessIo> process_io() {
  constexpr const char* kPath = "/proc/self/io";
  HEADRACE_TRY(const std::string text, read_text_file(kPath));
  const auto read = field(text, "read_bytes:");
  const auto written = field(text, "write_bytes:");
  if (!read) return missing(kPath, "read_bytes");
  if (!written) return missing(kPath, "write_bytes");
  return ProcessIo{*read, *written};
}

std::string lock_holder(int fd) {
  const std::string unknown = "another process";
  struct stat status {};
  const auto locks = read_text_file("/proc/locks");
  if (!locks.ok() || ::fstat(fd, &status) != 0) return unknown;
  // "7: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; the number of the process is none in another namespace.
  const std::string file = fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::istringstream lines(*locks);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, advisory, access, holder, locked;
    words >> number >> kind >> advisory >> access >> holder >> locked;
    if (kind != "FLOCK" || locked != file || holder.find_first_not_of("0123456789") != std::string::npos) continue;
    auto command = read_text_file("/proc/" + holder + "/cmdline");
    if (!command.ok() || command->empty()) continue;
    std::replace(command->begin(), command->end(), '\0', ' ');
    constexpr std::size_t kShown = 80;  // of its command line
    while (command->ends_with(' ')) command->pop_back();
    if (command->size() > kShown) command->replace(kShown, std::string::npos, "…");
    return fmt::format("process {} ({})", holder, *command);
  }
  return unknown;
}

double thread_cpu_seconds() noexcept { return seconds(CLOCK_THREAD_CPUTIME_ID); }
double process_cpu_seconds() noexcept { return seconds(CLOCK_PROCESS_CPUTIME_ID); }

void set_thread_name(std::string_view name) noexcept {
  std::array<char, 16> text{};
  name.copy(text.data(), text.size() - 1);
  pthread_setname_np(pthread_self(), text.data());
}

void limit_malloc_arenas() noexcept {
  // One arena per core lets each thread keep its own free lists: tens of MiB that no budget knows. Two is enough for
  // code that allocates outside its loops; with one, threads that do allocate would queue.
  mallopt(M_ARENA_MAX, 2);
  // Setting the thresholds turns off their growth: blocks from 1 MiB are mapped alone and unmapped when freed. Smaller:
  // more system calls; larger: freed blocks stay resident.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

}  // namespace headrace
