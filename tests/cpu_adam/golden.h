// SPDX-License-Identifier: Apache-2.0
// Reads the stored reference values: just enough of the safetensors format for files that we made ourselves.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headrace::cpu_adam::testing {

class GoldenFile {
 public:
  // Of the folder that HEADRACE_REFERENCE names.
  explicit GoldenFile(const std::string& name) {
    const char* folder = std::getenv("HEADRACE_REFERENCE");
    std::ifstream in(std::string(folder == nullptr ? "." : folder) + "/" + name, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (bytes_.size() < 8) return;
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), 8);
    data_ = 8 + static_cast<std::size_t>(header_bytes);
    header_ = nlohmann::json::parse(bytes_.substr(8, static_cast<std::size_t>(header_bytes)), nullptr, false);
  }
  [[nodiscard]] bool ok() const { return header_.is_object(); }
  template <class T>
  [[nodiscard]] std::vector<T> read(const std::string& name) const {
    const auto& entry = header_.at(name);
    EXPECT_EQ(entry.at("dtype"), sizeof(T) == 8 ? "F64" : "F32") << name;
    const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
    return values;
  }

 private:
  std::string bytes_;
  std::size_t data_ = 0;
  nlohmann::json header_;
};

}  // namespace headrace::cpu_adam::testing
