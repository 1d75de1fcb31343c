// SPDX-License-Identifier: Apache-2.0
// Writes valid superblocks, trailers and records as the first inputs of the fuzz targets: make_seeds FOLDER.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "io/layout.h"

namespace {

using namespace headrace;

void write(const std::filesystem::path& folder, const std::string& name, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / name, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

io::Superblock superblock_of(std::uint32_t format, std::uint32_t num_volumes, std::uint32_t num_streams) {
  io::Superblock superblock;
  superblock.run_id = "seed-" + std::to_string(num_streams);
  superblock.num_volumes = num_volumes;
  superblock.alignment = 4096;
  superblock.geometry.record_payload_bytes = 5000;
  for (std::uint32_t i = 0; i < num_streams; ++i) superblock.geometry.streams.push_back({i, 7 + i, 100'000, 777, 2});
  superblock.format = format;
  if (format > 1) {
    superblock.set_id = 0x123456789ABCDEF1;
    for (std::uint32_t i = 0; i < num_volumes; ++i) superblock.shares.push_back(1 + i);
  }
  superblock.file_bytes =
      io::VolumeLayout::make(superblock.geometry, num_volumes, 4096, superblock.shares)->file_bytes(0);
  return superblock;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_seeds FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  for (const std::uint32_t format : {1U, 2U}) {
    for (const std::uint32_t streams : {0U, 1U, 9U}) {
      const auto bytes = io::encode_superblock(superblock_of(format, 1 + streams % 4, streams));
      if (!bytes.ok()) return 1;
      write(folder / "superblock_fuzz", "format" + std::to_string(format) + "-" + std::to_string(streams), *bytes);
    }
  }
  std::vector<std::byte> block(4096);
  io::encode_trailer({0x1122334455667788, {3, 9, 1}, {42, 2}, 4'194'304, 0x8877665544332211}, block);
  write(folder / "trailer_fuzz", "block", block);
  write(folder / "trailer_fuzz", "shortest", std::span(block).first(io::kTrailerBytes));
  for (const std::size_t payload : {std::size_t{0}, std::size_t{1}, std::size_t{700}}) {
    io::encode_record({7, std::vector<std::byte>(payload, std::byte{5})}, 99, block);
    write(folder / "record_fuzz", std::to_string(payload), std::span(block).first(64 + payload));
  }
  return 0;
}
