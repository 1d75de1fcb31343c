// SPDX-License-Identifier: Apache-2.0
// What the tests of io share: folders on the build's disk, aligned payloads with known bytes, small geometries.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/result.h"
#include "io/posix.h"
#include "io/volume_set.h"

namespace headrace::io {

// Beyond any deadline of a queue: a machine that stands still for a minute is no fault of what is tested.
inline TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::minutes(10); }

// A new folder below `parent`, removed with everything in it.
class TestFolder {
 public:
  explicit TestFolder(const std::string& parent = ".") {
    std::string name = parent + "/io_test_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "mkdtemp " << name;
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> paths() const { return {path_}; }
  [[nodiscard]] std::string volume(const std::string& run_id) const {
    return path_ + "/headrace-" + run_id + ".volume";
  }
  [[nodiscard]] std::string make_folder(const std::string& name) const {
    std::filesystem::create_directory(path_ + "/" + name);
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

// Aligned memory whose bytes follow from a seed.
class Payload {
 public:
  Payload(Bytes bytes, Bytes alignment)
      : bytes_(bytes), memory_(allocate_aligned(std::max<Bytes>(bytes, 1), alignment)) {}
  Payload& fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (Bytes i = 0; i < bytes_; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(data() + i, &word, static_cast<std::size_t>(std::min<Bytes>(8, bytes_ - i)));
    }
    return *this;
  }
  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::span<std::byte> span() const { return {data(), static_cast<std::size_t>(bytes_)}; }
  [[nodiscard]] bool equals(const Payload& other, Bytes bytes) const {
    return std::memcmp(data(), other.data(), static_cast<std::size_t>(bytes)) == 0;
  }

 private:
  Bytes bytes_;
  AlignedMemory memory_;
};

inline StreamGeometry stream_of(std::uint32_t stream, std::int64_t tiles, Bytes tile_bytes, Bytes last_bytes,
                                std::int32_t slots = 2) {
  return {stream, tiles, tile_bytes, last_bytes, slots};
}

inline VolumeGeometry small_geometry(std::int64_t tiles = 4, Bytes tile_bytes = 64 * kKiB) {
  return {{stream_of(0, tiles, tile_bytes, tile_bytes)}, 1000};
}

template <class T>
std::string text_of(const Result<T>& result) {
  return result.ok() ? "ok" : result.error().to_string();
}

#define ASSERT_OK(expression)                                        \
  do {                                                               \
    const auto& assert_ok_result = (expression);                     \
    ASSERT_TRUE(assert_ok_result.ok()) << text_of(assert_ok_result); \
  } while (false)

}  // namespace headrace::io
