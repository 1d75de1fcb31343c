// SPDX-License-Identifier: Apache-2.0
#include "models/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "core/file.h"
#include "models/files/convert.h"
#include "models/files/safetensors_writer.h"
#include "tests/models/files_support.h"

namespace headrace::models {
namespace {

using test::read_whole;
using test::reference;
using test::TempFolder;
using test::write_whole;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_text(const std::string& json, std::size_t data_bytes) {
  std::string out;
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>((json.size() >> (8 * byte)) & 0xFFU);
  return out + json + std::string(data_bytes, '\x11');
}

std::string open_fault(const std::string& path) {
  const auto file = SafetensorsFile::open(path);
  if (file.ok()) return "opened without a fault";
  EXPECT_EQ(file.error().code, ErrorCode::kConfig) << file.error().message;
  return file.error().message;
}

// What each malformed file of the reference set must be told.
const std::map<std::string, std::string> kFaults = {
    {"bad_header_length_beyond_file", "prefix and header need"},
    {"bad_header_length_over_100MB", "header too large"},
    {"bad_header_length_u64_max", "header too large: its length says 18446744073709551615"},
    {"bad_header_length_zero", "header is empty"},
    {"bad_not_json", "not valid JSON"},
    {"bad_json_array", "does not begin with '{'"},
    {"bad_invalid_utf8", "not valid JSON"},
    {"bad_starts_with_space", "does not begin with '{'"},
    {"bad_duplicate_key", "appears twice"},
    {"bad_overlap", "overlaps"},
    {"bad_hole", "a hole: data bytes 4 to 8"},
    {"bad_hole_at_start", "a hole: data bytes 0 to"},
    {"bad_trailing_bytes", "4 bytes after the last tensor"},
    {"bad_truncated_data", "truncated: the tensors need 24 bytes of data, the file has 23"},
    {"bad_begin_after_end", "after its end"},
    {"bad_size_mismatch", "span"},
    {"bad_dtype_size_mismatch", "F64"},
    {"bad_unknown_dtype", "unknown dtype 'F33'"},
    {"bad_dtype_lower_case", "unknown dtype 'f32'"},
    {"bad_negative_dim", "negative number -"},
    {"bad_product_overflow_64bit", "overflows 64 bits"},
    {"bad_bytes_overflow_64bit", "overflows 64 bits"},
    {"bad_negative_offset", "negative number -4"},
    {"bad_offsets_not_integers", "not a 64-bit integer"},
    {"bad_offsets_strings", "contains a string instead of an integer"},
    {"bad_three_offsets", "has 3 numbers instead of 2"},
    {"bad_missing_shape", "has no shape"},
    {"bad_metadata_not_strings", "only strings may stand"},
    {"bad_json_trailing_garbage", "not valid JSON"},
    {"bad_deep_nesting", "is a list instead of an object"},
    {"bad_git_lfs_pointer", "Git LFS pointer"},
    {"bad_empty_file", "truncated: it needs 8 bytes before the header, the file has 0"},
    {"bad_seven_bytes", "the file has 7"},
    {"bad_eight_bytes", "prefix and header need 10 bytes, the file has 8"},
};

TEST(SafetensorsFile, GivesTheExpectedVerdictOnEachReferenceFile) {
  const auto verdicts = nlohmann::json::parse(read_whole(reference("safetensors/verdicts.json")));
  std::size_t rejected = 0;
  for (const auto& entry : verdicts["files"]) {
    const auto name = entry["file"].get<std::string>();
    SCOPED_TRACE(name);
    const auto file = SafetensorsFile::open(reference("safetensors/" + name));
    ASSERT_EQ(file.ok(), entry["expected"] == "accept") << (file.ok() ? "" : file.error().message);
    if (!file.ok()) {
      ++rejected;
      const std::string stem = name.substr(0, name.rfind('.'));
      ASSERT_TRUE(kFaults.contains(stem));
      EXPECT_EQ(file.error().code, ErrorCode::kConfig);
      EXPECT_THAT(file.error().message, AllOf(HasSubstr(kFaults.at(stem)), HasSubstr(name)));
      continue;
    }
    ASSERT_EQ(file->tensors().size(), entry["tensors"].size());
    for (const auto& [tensor_name, expected] : entry["tensors"].items()) {
      const StoredTensor* tensor = file->find(tensor_name);
      ASSERT_NE(tensor, nullptr) << tensor_name;
      EXPECT_EQ(tensor->stored_dtype, expected["dtype"]);
      EXPECT_EQ(nlohmann::json(tensor->shape), expected["shape"]);
      EXPECT_EQ(nlohmann::json({tensor->begin, tensor->end}), expected["data_offsets"]);
    }
  }
  EXPECT_EQ(verdicts["files"].size(), 47U);
  EXPECT_EQ(rejected, kFaults.size());
}

TEST(SafetensorsFile, SaysWhenThePathIsADirectoryOrMissing) {
  const TempFolder folder;
  EXPECT_THAT(open_fault(folder.path()), HasSubstr("is a directory"));
  EXPECT_THAT(open_fault(folder / "none.safetensors"), HasSubstr("no such file"));
}

TEST(SafetensorsFile, NamesFurtherFaultsOfTheHeader) {
  const TempFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "'w' has the key 'dtype' twice"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":1}})", "unknown key 'scale'"},
      {R"({"w":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "contains a list"},
      {R"({"w":{"dtype":"F32","shape":{"a":1},"data_offsets":[0,4]}})", "shape of 'w' is an object"},
      {R"({"w":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", "dtype of 'w' is a list"},
      {R"({"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "dtype of 'w' is a number"},
      {R"({"w":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", "dtype of 'w' is null"},
      {R"({"w":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}})", "not a 64-bit integer"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", "beyond 2^63"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999]}})", "not a 64-bit integer"},
      {R"({"w":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}})", "contains a boolean"},
      {R"({"w":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "F4 [1], 1 bytes"},
      {R"({"__metadata__":{"a":"1","a":"2"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "'__metadata__' has the key 'a' twice"},
      {R"({"__metadata__":{},"__metadata__":{},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       "'__metadata__' appears twice"},
      {R"({"__metadata__":{"a":["1"]}})", "only strings may stand"},
      {R"({"w":[]})", "'w' is a list instead of an object"},
      {R"({"w":3})", "'w' is a number instead of an object"},
      {R"({"w":{"shape":[1],"data_offsets":[0,4]}})", "'w' has no dtype"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", "'w' has no data_offsets"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "not valid JSON"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})",
       "overlaps"},
  };
  for (const auto& [json, fault] : cases) {
    write_whole(path, file_text(json, 4));
    EXPECT_THAT(open_fault(path), HasSubstr(fault)) << json;
  }
}

TEST(SafetensorsFile, SurvivesEveryCutAndEveryFlippedBitOfAHeader) {
  const TempFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::string whole = read_whole(reference("safetensors/ok_bf16_and_metadata.safetensors"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write_whole(path, whole.substr(0, length));
    EXPECT_FALSE(SafetensorsFile::open(path).ok()) << "cut to " << length;
  }
  for (std::size_t bit = 0; bit < 96 * 8; ++bit) {
    std::string changed = whole;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    write_whole(path, changed);
    const auto file = SafetensorsFile::open(path);
    if (!file.ok()) continue;  // a changed name or metadata text is a valid file; its data must still be readable
    for (const StoredTensor& tensor : file->tensors()) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.end - tensor.begin));
      EXPECT_TRUE(file->read_bytes(tensor, 0, bytes).ok());
    }
  }
}

TEST(SafetensorsFile, ParsesHeadersAroundOneHundredThousandBytes) {
  const TempFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::string start = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (std::size_t length = 99'990; length <= 100'010; ++length) {
    write_whole(path, file_text(start + std::string(length - start.size(), ' '), 4));
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << length << file.error().message;
    std::array<float, 1> value{};
    ASSERT_TRUE(file->read_range("w", 0, value).ok());
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value[0]), 0x11111111U);
  }
}

TEST(SafetensorsFile, ReadsDataThatIsNotAlignedToItsType) {
  const auto file = SafetensorsFile::open(reference("safetensors/ok_misaligned_dtype.safetensors"));
  ASSERT_TRUE(file.ok());
  const std::string whole = read_whole(reference("safetensors/ok_misaligned_dtype.safetensors"));
  float expected = 0;
  std::memcpy(&expected, whole.data() + whole.size() - 4, 4);
  std::array<float, 1> value{};
  ASSERT_TRUE(file->read_range("w", 0, value).ok());
  EXPECT_EQ(value[0], expected);
}

TEST(SafetensorsFile, RefusesRangesOutsideATensorAndDtypesThatAreNoWeights) {
  const auto file = SafetensorsFile::open(reference("safetensors/ok_misaligned_dtype.safetensors"));
  ASSERT_TRUE(file.ok());
  std::array<float, 4> out{};
  auto* bytes = std::as_writable_bytes(std::span(out)).data();
  const StoredTensor& bytes_tensor = *file->find("a");
  const StoredTensor& floats = *file->find("w");
  EXPECT_THAT(file->read_range(bytes_tensor, 0, 1, DType::kFp32, bytes).error().message, HasSubstr("'a' is U8"));
  EXPECT_THAT(file->read_range(floats, 0, 2, DType::kFp32, bytes).error().message, HasSubstr("it has 1"));
  EXPECT_FALSE(file->read_range(floats, 2, 0, DType::kFp32, bytes).ok());
  EXPECT_FALSE(file->read_range(floats, -1, 1, DType::kFp32, bytes).ok());
  EXPECT_FALSE(file->read_range(floats, 1, INT64_MAX, DType::kFp32, bytes).ok());
  EXPECT_TRUE(file->read_range(floats, 1, 0, DType::kFp32, bytes).ok());
  EXPECT_THAT(file->read_range("none", 0, out).error().message, HasSubstr("no tensor 'none'"));
}

// Every 16-bit pattern and the rounding vectors, so that a wrong conversion cannot hide.
TEST(ConvertElements, WidensExactlyAndNarrowsToNearestEven) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(65536);
  std::vector<std::uint16_t> back(65536);
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    convert_elements(dtype, std::as_bytes(std::span(patterns)).data(), DType::kFp32,
                     std::as_writable_bytes(std::span(wide)).data(), 65536);
    convert_elements(DType::kFp32, std::as_bytes(std::span(wide)).data(), dtype,
                     std::as_writable_bytes(std::span(back)).data(), 65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (std::isnan(wide[i])) continue;
      ASSERT_EQ(back[i], patterns[i]) << dtype_name(dtype);
    }
  }
  const auto rounding = nlohmann::json::parse(read_whole(reference("rounding.json")));
  const auto hex = [](const nlohmann::json& text) {
    return static_cast<std::uint32_t>(std::stoul(text.get<std::string>(), nullptr, 16));
  };
  for (const auto& entry : rounding["cases"]) {
    if (entry.contains("nan") && entry["nan"].get<bool>()) continue;
    const float value = std::bit_cast<float>(hex(entry["f32"]));
    for (const auto& [dtype, key] : {std::pair{DType::kBf16, "bf16"}, std::pair{DType::kFp16, "fp16"}}) {
      std::array<std::uint16_t, 1> out{};
      convert_elements(DType::kFp32, std::as_bytes(std::span(&value, 1)).data(), dtype,
                       std::as_writable_bytes(std::span(out)).data(), 1);
      ASSERT_EQ(out[0], hex(entry[key])) << key << " of " << entry["f32"];
    }
  }
}

TEST(SafetensorsWriter, RoundTripsAllWeightDtypesInPieces) {
  const TempFolder folder;
  const std::string path = folder / "out.safetensors";
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<NewTensor> tensors = {{"a.fp32", DType::kFp32, {70'001}},
                                          {"b \"quoted\" ü", DType::kBf16, {3, 50'000}},
                                          {"empty", DType::kFp16, {0, 4}},
                                          {"scalar", DType::kFp16, {}},
                                          {"c.fp16", DType::kFp16, {2, 3, 5}}};
  std::vector<std::vector<std::byte>> data;
  std::vector<std::byte> all;
  for (const NewTensor& tensor : tensors) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    std::vector<std::byte> bytes(static_cast<std::size_t>(elements * dtype_bytes(tensor.dtype)));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x3FU);  // finite values
    all.insert(all.end(), bytes.begin(), bytes.end());
    data.push_back(std::move(bytes));
  }
  {
    auto writer = SafetensorsWriter::create(path, tensors, {{"format", "pt"}, {"note", "x"}});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    for (std::size_t done = 0; done < all.size();) {
      const std::size_t piece = std::min<std::size_t>(all.size() - done, 1 + random() % 40'000);
      ASSERT_TRUE(writer->append(std::span(all).subspan(done, piece)).ok());
      done += piece;
      EXPECT_FALSE(path_exists(path));  // not before it is complete
    }
    ASSERT_TRUE(writer->finish().ok());
  }
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->metadata().at("note"), "x");
  EXPECT_EQ((read_whole(path).size() - all.size()) % SafetensorsWriter::kDataAlignment, 0U);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor* stored = file->find(tensors[i].name);
    ASSERT_NE(stored, nullptr);
    EXPECT_EQ(stored->shape, tensors[i].shape);
    EXPECT_EQ(stored->dtype, tensors[i].dtype);
    std::vector<std::byte> bytes(data[i].size());
    ASSERT_TRUE(file->read_range(*stored, 0, stored->elements, tensors[i].dtype, bytes.data()).ok());
    EXPECT_EQ(bytes, data[i]);
    // The same converted, and cut at a random place into two reads.
    std::vector<float> whole(static_cast<std::size_t>(stored->elements));
    std::vector<float> parts = whole;
    convert_elements(tensors[i].dtype, data[i].data(), DType::kFp32, std::as_writable_bytes(std::span(whole)).data(),
                     stored->elements);
    const auto cut =
        static_cast<std::size_t>(stored->elements == 0 ? 0 : random() % static_cast<std::uint64_t>(stored->elements));
    ASSERT_TRUE(file->read_range(stored->name, 0, std::span(parts).first(cut)).ok());
    ASSERT_TRUE(file->read_range(stored->name, static_cast<std::int64_t>(cut), std::span(parts).subspan(cut)).ok());
    EXPECT_EQ(parts, whole);
  }
}

TEST(SafetensorsWriter, RoundTripsAFileWithoutTensors) {
  const TempFolder folder;
  const std::string path = folder / "out.safetensors";
  for (const std::map<std::string, std::string>& metadata :
       {std::map<std::string, std::string>{}, {{"only", "metadata"}}}) {
    auto writer = SafetensorsWriter::create(path, {}, metadata);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer->finish().ok());
    const auto file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->metadata(), metadata);
    EXPECT_TRUE(file->tensors().empty());
  }
}

TEST(SafetensorsWriter, LeavesTheOldFileUntouchedUntilItIsFinished) {
  const TempFolder folder;
  const std::string path = folder / "out.safetensors";
  const std::array<float, 2> values = {1, 2};
  const auto write = [&](const char* name) {
    auto writer = SafetensorsWriter::create(path, {{name, DType::kFp32, {2}}});
    EXPECT_TRUE(writer.ok());
    EXPECT_TRUE(writer->append(std::as_bytes(std::span(values))).ok());
    return writer;
  };
  ASSERT_TRUE(write("old")->finish().ok());
  const std::string before = read_whole(path);
  const auto source = SafetensorsFile::open(path);  // open while it is replaced
  ASSERT_TRUE(source.ok());
  { const auto abandoned = write("abandoned"); }
  EXPECT_EQ(read_whole(path), before);
  EXPECT_FALSE(path_exists(path + ".partial"));
  ASSERT_TRUE(write("new")->finish().ok());
  std::array<float, 2> old{};
  ASSERT_TRUE(source->read_range("old", 0, old).ok());
  EXPECT_EQ(old, values);
  EXPECT_NE(SafetensorsFile::open(path)->find("new"), nullptr);
}

TEST(SafetensorsWriter, RefusesWhatNobodyCouldReadOrStore) {
  const TempFolder folder;
  const std::string path = folder / "out.safetensors";
  EXPECT_THAT(SafetensorsWriter::create(path, {{"w", DType::kFp32, {1}}, {"w", DType::kFp32, {1}}}).error().message,
              HasSubstr("two tensors would be called 'w'"));
  EXPECT_THAT(SafetensorsWriter::create(path, {{"w", DType::kFp32, {INT64_MAX / 2, 8}}}).error().message,
              HasSubstr("cannot be stored"));
  EXPECT_THAT(SafetensorsWriter::create(path, {{"w", DType::kFp32, {-1}}}).error().message,
              HasSubstr("cannot be stored"));
  EXPECT_FALSE(SafetensorsWriter::create(path, {{"\xFF", DType::kFp32, {1}}}).ok());
  const auto large = SafetensorsWriter::create(path, {{"w", DType::kFp32, {INT64_MAX / 8}}});
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, ErrorCode::kPreflight);
  EXPECT_THAT(large.error().message, HasSubstr("free"));
  EXPECT_TRUE(folder.empty());

  auto writer = SafetensorsWriter::create(path, {{"w", DType::kFp32, {2}}});
  ASSERT_TRUE(writer.ok());
  const std::array<float, 3> values{};
  EXPECT_FALSE(writer->finish().ok());
  EXPECT_FALSE(writer->append(std::as_bytes(std::span(values))).ok());
}

TEST(SafetensorsWriter, RefusesAHeaderThatReadersRefuse) {
  SafetensorsHeader header;
  StoredTensor tensor;
  tensor.stored_dtype = "F32";
  tensor.name = std::string(1'000'000, 'n');
  header.tensors.assign(99, tensor);
  EXPECT_TRUE(format_safetensors_header(header, 4096).ok());
  header.tensors.push_back(tensor);
  const auto refused = format_safetensors_header(header, 4096);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("readers refuse more than 100000000"));
}

}  // namespace
}  // namespace headrace::models
