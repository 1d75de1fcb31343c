// SPDX-License-Identifier: Apache-2.0
// How many tiles of each round a path of a new volume set gets: by the bandwidth that all paths reach together. Decided
// once, when the volumes are made. Internal to io.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "io/volume_file.h"
#include "io/volume_set.h"

namespace headrace::io {

// Shares from bandwidths: ones where they are about equal, else up to 16 for the fastest path.
[[nodiscard]] std::vector<std::uint32_t> shares_of(const std::vector<double>& bytes_per_s);
// Bytes per second of reading and writing, all paths at once: as they will be used. Writes 32 MiB to a nameless file in
// each folder, and zeros to the place of the tiles of each device.
[[nodiscard]] Result<std::vector<double>> measure_paths(const std::vector<std::string>& paths,
                                                        const std::vector<FolderProbe>& probes,
                                                        const VolumeOptions& options);
// What create() uses: options.shares if given, ones for a single disk or when asked, else measured and said in a line.
[[nodiscard]] Result<std::vector<std::uint32_t>> deal_for(const std::vector<std::string>& paths,
                                                          const std::vector<FolderProbe>& probes,
                                                          const VolumeOptions& options);

// For new volumes in these folders, by measuring; ones for a single disk, where nothing is measured.
struct MeasuredDeal {
  std::vector<std::uint32_t> shares;
  Bytes written_bytes = 0;
};
[[nodiscard]] Result<MeasuredDeal> measured_deal(const std::vector<std::string>& folders);

}  // namespace headrace::io
