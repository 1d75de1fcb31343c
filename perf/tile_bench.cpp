// SPDX-License-Identifier: Apache-2.0
// perf_tile: what a tile's trailer and checksum cost beside the bare bytes: the same queue, file, memory and sizes,
// turn by turn, once without and once with them; and how long opening a volume of 100 GiB takes. Prints one JSON
// report.
#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/host_slab.h"
#include "io/backends.h"
#include "io/layout.h"
#include "io/queue.h"
#include "io/volume_file.h"

namespace headrace::io {
namespace {

constexpr Bytes kTileBytes = 4 * kMiB;
constexpr std::int64_t kTiles = 64;
constexpr Bytes kStride = kTileBytes + kMinAlignment;

template <class T>
T value_of(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "perf_tile: %s\n", result.error().to_string().c_str());
  std::exit(1);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;  // of the I/O thread
};

// All tiles of the file once, each with its own part of the memory.
Sample move_all(Queue& queue, IoOperation operation, MoveCheck check, std::span<std::byte> memory) {
  std::vector<Move> moves(static_cast<std::size_t>(kTiles));
  const auto parts = static_cast<std::int64_t>(memory.size()) / kTileBytes;
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    Move& move = moves[static_cast<std::size_t>(tile)];
    move.operation = operation;
    move.offset = tile * kStride;
    move.data = memory.data() + tile % parts * kTileBytes;
    move.bytes = kTileBytes;
    move.check = check;
    move.trailer = {1, {0, tile, 0}, {1, 0}, kTileBytes, 0};
  }
  const double cpu = queue.counters().cpu_seconds;
  const double start = now();
  const auto done = queue.submit(std::move(moves), {}).wait(TimePoint::max());
  if (!done.ok()) {
    std::fprintf(stderr, "perf_tile: %s\n", done.error().to_string().c_str());
    std::exit(1);
  }
  return {now() - start, queue.counters().cpu_seconds - cpu};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure_tiles(const std::string& folder, int samples) {
  UniqueFd file = value_of(make_nameless_file(folder));
  if (::posix_fallocate(file.get(), 0, kTiles * kStride) != 0 || set_direct(file.get(), true) != 0) {
    std::fprintf(stderr, "perf_tile: no space or no direct I/O in %s\n", folder.c_str());
    std::exit(1);
  }
  HostSlab slab = value_of(HostSlab::allocate(8 * kTileBytes));
  const std::span<std::byte> memory = slab.bytes();
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 131 + i / 4096);
  const auto candidates = backend_candidates(IoBackendChoice::kAuto);
  const BackendTrial trial{file.get(), 0, kMinAlignment, folder, true, false};
  Queue queue(value_of(choose_backend(candidates, {&trial, 1})), {{file.get(), folder, true}}, {});
  nlohmann::json results = nlohmann::json::array();
  for (const IoOperation operation : {IoOperation::kWrite, IoOperation::kRead}) {
    std::vector<double> bare, whole, ratio, cpu;
    move_all(queue, IoOperation::kWrite, MoveCheck::kTrailer, memory);  // blocks made, trailers there
    for (int i = 0; i < samples; ++i) {
      const Sample without = move_all(queue, operation, MoveCheck::kNone, memory);
      const Sample with = move_all(queue, operation, MoveCheck::kTrailer, memory);
      bare.push_back(without.seconds);
      whole.push_back(with.seconds);
      ratio.push_back(with.seconds / without.seconds - 1);
      cpu.push_back((with.cpu_seconds - without.cpu_seconds) / (static_cast<double>(kTiles * kTileBytes) / 1e9));
    }
    const std::string verb = operation == IoOperation::kWrite ? "write" : "read";
    const double bytes = static_cast<double>(kTiles * kTileBytes);
    results.push_back({{"name", verb + " with trailers and checksums"},
                       {"value", bytes / median(whole)},
                       {"unit", "B/s"},
                       {"ceiling", bytes / median(bare)},
                       {"fraction", median(bare) / median(whole)},
                       {"overhead_of_device_time", median(ratio)},
                       {"cpu_seconds_per_GB", median(cpu)},
                       {"samples", whole}});
  }
  return results;
}

nlohmann::json measure_open(const std::string& folder, int samples) {
  const std::string run = "perf-tile-" + std::to_string(::getpid());
  const VolumeGeometry geometry{{{0, 12'800, kTileBytes, kTileBytes, 2}}, 64 * kKiB};
  const VolumeLayout layout = value_of(VolumeLayout::make(geometry, 1, kMinAlignment));
  const Superblock superblock{run, 1, 0, kMinAlignment, layout.file_bytes(0), geometry, kSuperblockFormat, 1, {1}};
  const std::string path = volume_path(folder, run);
  {
    const UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (::ftruncate(file.get(), superblock.file_bytes) != 0) std::exit(1);
    const auto written = write_superblocks(file.get(), path, superblock);
    if (!written.ok()) std::exit(1);
  }
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) {
    const double start = now();
    const auto set = value_of(VolumeSet::open({folder}, run, {}));
    seconds.push_back(now() - start);
  }
  ::unlink(path.c_str());
  return {{"name", "open a sparse volume of 100 GiB"}, {"value", median(seconds)}, {"unit", "s"}, {"ceiling", 0.05},
          {"fraction", median(seconds) / 0.05},        {"samples", seconds}};
}

int run(const std::string& folder, int samples, const std::string& commit) {
  utsname system{};
  ::uname(&system);
  nlohmann::json results = measure_tiles(folder, samples);
  results.push_back(measure_open(folder, samples));
  const nlohmann::json report{{"machine", {{"kernel", system.release}}}, {"commit", commit}, {"results", results}};
  std::printf("%s\n", report.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace headrace::io

int main(int argc, char** argv) {
  std::string folder = ".";
  std::string commit = "unknown";
  int samples = 9;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--samples" && i + 1 < argc) {
      samples = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--commit" && i + 1 < argc) {
      commit = argv[++i];
    } else if (!word.starts_with("-")) {
      folder = word;
    } else {
      std::fputs("usage: perf_tile [FOLDER] [--samples N] [--commit NAME]\n", stderr);
      return 2;
    }
  }
  return headrace::io::run(folder, samples, commit);
}
