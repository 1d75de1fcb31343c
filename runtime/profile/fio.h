// SPDX-License-Identifier: Apache-2.0
// Runs fio, where it is installed, on the file that is being measured, and reads its figures: the ceiling that ours are
// put beside.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"
#include "runtime/profile/transfer_run.h"

namespace headrace::profile {

struct FioProgram {
  std::string path;
  std::string version;  // "fio-3.33"
};
[[nodiscard]] std::optional<FioProgram> find_fio();  // looks along PATH and asks it for its version

struct FioSetting {
  std::string engine = "io_uring";
  Bytes block_bytes = 4 * kMiB;
  Bytes in_flight_bytes = 32 * kMiB;  // of all files together
  bool huge_pages = true;             // its buffers come from malloc, which glibc then asks for huge pages
};
[[nodiscard]] std::string fio_setting_text(const FioSetting& setting);  // "io_uring 4M × 8, huge pages"

struct FioSample {
  double bytes_per_s = 0;
  double read_bytes_per_s = 0, write_bytes_per_s = 0;
  double cpu_seconds_per_byte = 0;
  Bytes written_bytes = 0;
};

// One job per file of `which`: reads what `run` laid out to be read; writes, and mixes, where it left room for others.
// kFailed with fio's own words when it fails or takes 30 s longer than asked.
[[nodiscard]] Result<FioSample> run_fio(const FioProgram& fio, const FioSetting& setting, const TransferRun& run,
                                        std::span<const std::uint32_t> which, Traffic traffic,
                                        const SampleLimit& limit);

}  // namespace headrace::profile
