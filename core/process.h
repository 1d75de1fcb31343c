// SPDX-License-Identifier: Apache-2.0
// What the kernel says about this process and its threads: memory held, bytes read and written, CPU time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace {

struct ProcessMemory {
  Bytes resident = 0;       // VmRSS, without explicit huge pages
  Bytes peak_resident = 0;  // VmHWM: largest VmRSS since the start or the last reset
  Bytes huge_pages = 0;     // HugetlbPages, which VmRSS does not count
};
[[nodiscard]] Result<ProcessMemory> process_memory();
// Starts VmHWM anew from the memory held now; false where the kernel does not allow it (then the peak since the start
// stays).
[[nodiscard]] bool reset_peak_memory();

// Bytes that this process caused to move from and to storage (page-cache hits do not count).
struct ProcessIo {
  std::int64_t read_bytes = 0;
  std::int64_t write_bytes = 0;
};
[[nodiscard]] Result<ProcessIo> process_io();

// Who holds a flock(2) lock on the file that is open here, for messages: "process 1234 (headrace train run.json)", or
// "another process" where the kernel does not tell.
[[nodiscard]] std::string lock_holder(int fd);

[[nodiscard]] double thread_cpu_seconds() noexcept;   // of the calling thread
[[nodiscard]] double process_cpu_seconds() noexcept;  // of all threads, ended ones too

// Names the calling thread as debuggers and top show it; the kernel keeps the first 15 bytes.
void set_thread_name(std::string_view name) noexcept;

// Keeps the heap of many threads small: few arenas, and large freed blocks go back to the system. Call before threads
// start.
void limit_malloc_arenas() noexcept;

}  // namespace headrace
