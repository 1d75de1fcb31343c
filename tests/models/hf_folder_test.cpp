// SPDX-License-Identifier: Apache-2.0
#include "models/files/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
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

namespace fs = std::filesystem;
using nlohmann::json;
using test::read_whole;
using test::reference;
using test::TempFolder;
using test::write_whole;
using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig config_of(const std::string& path) {
  const auto config = parse_model_config(read_whole(path), path);
  EXPECT_TRUE(config.ok()) << config.error().to_string();
  return config.ok() ? *config : ModelConfig{};
}

// Equal text means equal in every field that a model has.
std::string text_of(const ModelConfig& config) { return format_model_config(config, DType::kFp32); }

std::string config_fault(const json& document) {
  const auto config = parse_model_config(document.dump(), "folder/config.json");
  if (config.ok()) return "read without a fault";
  EXPECT_EQ(config.error().code, ErrorCode::kConfig);
  return config.error().message;
}

json llama_document() { return json::parse(read_whole(reference("models/llama_tied_rope3/config.json"))); }
json gpt2_document() { return json::parse(read_whole(reference("models/gpt2_tiny/config.json"))); }

// What a model of the folder wants: its file has exactly those tensors.
std::vector<runtime::TensorInfo> tensors_of(const std::string& folder) {
  const auto file = SafetensorsFile::open(reference("models/" + folder + "/model.safetensors"));
  EXPECT_TRUE(file.ok());
  std::vector<runtime::TensorInfo> out;
  for (const StoredTensor& stored : file->tensors()) {
    runtime::TensorInfo tensor;
    tensor.name = stored.name;
    tensor.shape = stored.shape;
    tensor.elements = stored.elements;
    out.push_back(tensor);
  }
  return out;
}

std::vector<float> read_all(const HfWeights& weights, const runtime::TensorInfo& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.elements));
  const auto read =
      weights.read(tensor.name, 0, tensor.elements, DType::kFp32, std::as_writable_bytes(std::span(out)).data());
  EXPECT_TRUE(read.ok()) << read.error().message;
  return out;
}

std::string open_fault(const std::string& folder) {
  const auto weights = HfWeights::open(folder);
  if (weights.ok()) return "opened without a fault";
  EXPECT_EQ(weights.error().code, ErrorCode::kConfig);
  return weights.error().message;
}

TEST(ReadModelConfig, ReadsLlamaWithScaledRotaryPositions) {
  const ModelConfig config = config_of(reference("models/llama_tied_rope3/config.json"));
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.vocab, 320);
  EXPECT_EQ(config.embed, 64);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.inner, 160);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_TRUE(config.rope_scaling.enabled);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.rope_scaling.low_freq_factor, 1);
  EXPECT_EQ(config.rope_scaling.high_freq_factor, 4);
  EXPECT_EQ(config.rope_scaling.original_max_position, 64);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_TRUE(config.tied);
}

TEST(ReadModelConfig, ReadsGpt2) {
  const ModelConfig config = config_of(reference("models/gpt2_tiny/config.json"));
  EXPECT_EQ(config.architecture, Architecture::kGpt2);
  EXPECT_EQ(config.vocab, 256);
  EXPECT_EQ(config.embed, 64);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.inner, 256);
  EXPECT_EQ(config.max_positions, 128);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.tied);
}

TEST(ReadModelConfig, BothSpellingsGiveTheSameModel) {
  for (const std::string folder : {"llama_tiny", "llama_tied_rope3", "gpt2_tiny"}) {
    EXPECT_EQ(text_of(config_of(reference("models/" + folder + "/config.json"))),
              text_of(config_of(reference("models/" + folder + "/config_v4.json"))))
        << folder;
  }
}

TEST(ReadModelConfig, ReadsTheConfigsOfAllReferenceFolders) {
  for (const std::string folder : {"llama_tiny_bf16", "llama_tied_rope3_sharded", "gpt2_tiny_hubstyle_f16"}) {
    const auto config = read_model_config(reference("models/" + folder));
    EXPECT_TRUE(config.ok()) << config.error().message;
  }
  const TempFolder folder;
  const auto missing = read_model_config(folder.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kConfig);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr("config.json"), HasSubstr("no such file")));
}

TEST(ReadModelConfig, WhatItWritesReadsBackTheSame) {
  std::vector<ModelConfig> configs;
  for (const std::string folder : {"llama_tiny", "llama_tied_rope3", "gpt2_tiny"}) {
    configs.push_back(config_of(reference("models/" + folder + "/config.json")));
  }
  configs[0].rope_theta = 500000;
  configs[0].mlp_bias = true;
  configs[2].activation = Activation::kGeluErf;
  configs[2].inner = 100;
  configs[2].tied = false;
  for (const ModelConfig& config : configs) {
    const auto again = parse_model_config(text_of(config), "config.json");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(text_of(*again), text_of(config));
    EXPECT_EQ(again->rope_theta, config.rope_theta);
    EXPECT_EQ(again->inner, config.inner);
    EXPECT_EQ(again->activation, config.activation);
    EXPECT_EQ(again->tied, config.tied);
    // An older reader knows only the older keys, a newer one only the newer.
    json older = json::parse(text_of(config)), newer = older;
    older.erase("rope_parameters");
    older.erase("dtype");
    for (const char* key : {"rope_theta", "rope_scaling", "torch_dtype"}) newer.erase(key);
    EXPECT_EQ(text_of(parse_model_config(older.dump(), "older").value()), text_of(config));
    EXPECT_EQ(text_of(parse_model_config(newer.dump(), "newer").value()), text_of(config));
  }
}

TEST(ReadModelConfig, RefusesWhatItWouldComputeWronglyAndNamesKeyAndValue) {
  const std::vector<std::pair<std::string, std::string>> llama_cases = {
      {R"({"model_type": "mistral"})", "'model_type' is \"mistral\""},
      {R"({"model_type": null})", "'model_type' is missing"},
      {R"({"hidden_act": "relu"})", "'hidden_act' is \"relu\""},
      {R"({"sliding_window": 4096})", "'sliding_window' is 4096"},
      {R"({"quantization_config": {"bits": 4}})", "'quantization_config' is {\"bits\":4}"},
      {R"({"num_local_experts": 8})", "'num_local_experts' is 8"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", "'layer_types' is \"sliding_attention\""},
      {R"({"partial_rotary_factor": 0.5})", "'partial_rotary_factor' is 0.5"},
      {R"({"rope_parameters": {"rope_type": "yarn", "factor": 4, "rope_theta": 1e4}})",
       "'rope_parameters.rope_type' is \"yarn\""},
      {R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})",
       "'rope_parameters.partial_rotary_factor' is 0.5"},
      {R"({"rope_parameters": {"rope_type": "llama3", "factor": 8}})", "'rope_parameters.low_freq_factor' is missing"},
      {R"({"rope_parameters": null, "rope_scaling": {"type": "linear", "factor": 2}})",
       "'rope_scaling.rope_type' is \"linear\""},
      {R"({"rope_parameters": 3})", "'rope_parameters' is 3 instead of an object"},
      {R"({"rope_theta": 5e5})", "'rope_theta' is 500000"},
      {R"({"hidden_size": "64"})", "'hidden_size' is \"64\" instead of an integer"},
      {R"({"hidden_size": 0})", "'hidden_size' is 0 instead of an integer from 1"},
      {R"({"hidden_size": 1e30})", "instead of an integer"},
      {R"({"vocab_size": null})", "'vocab_size' is missing"},
      {R"({"rms_norm_eps": -1})", "'rms_norm_eps' is -1 instead of a positive number"},
      {R"({"tie_word_embeddings": 1})", "'tie_word_embeddings' is 1 instead of true or false"},
      {R"({"hidden_act": 1})", "'hidden_act' is 1 instead of a string"},
      {R"({"num_key_value_heads": 3})", "cannot share 3"},
      {R"({"head_dim": null, "hidden_size": 65})", "'hidden_size' 65 is no multiple"},
  };
  for (const auto& [patch, fault] : llama_cases) {
    json document = llama_document();
    document.merge_patch(json::parse(patch));
    if (json::parse(patch).contains("rope_parameters") && json::parse(patch)["rope_parameters"].is_object()) {
      document["rope_parameters"] = json::parse(patch)["rope_parameters"];
    }
    EXPECT_THAT(config_fault(document), AllOf(HasSubstr(fault), HasSubstr("folder/config.json"))) << patch;
  }
  const std::vector<std::pair<std::string, std::string>> gpt2_cases = {
      {R"({"scale_attn_by_inverse_layer_idx": true})", "'scale_attn_by_inverse_layer_idx' is true"},
      {R"({"scale_attn_weights": false})", "'scale_attn_weights' is false"},
      {R"({"add_cross_attention": true})", "'add_cross_attention' is true"},
      {R"({"activation_function": "relu"})", "'activation_function' is \"relu\""},
      {R"({"n_head": 5})", "'n_embd' 64 is no multiple of 'n_head' 5"},
  };
  for (const auto& [patch, fault] : gpt2_cases) {
    json document = gpt2_document();
    document.merge_patch(json::parse(patch));
    EXPECT_THAT(config_fault(document), HasSubstr(fault)) << patch;
  }
}

TEST(ReadModelConfig, SaysWhereTheJsonIsBroken) {
  const auto broken = parse_model_config("{\n  \"model_type\": llama\n}", "config.json");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().file, "config.json");
  EXPECT_EQ(broken.error().line, 2);
  EXPECT_THAT(parse_model_config(R"({"model_type": "llama", "model_type": "gpt2"})", "c").error().message,
              HasSubstr("'model_type' appears twice"));
  EXPECT_THAT(parse_model_config("[]", "c").error().message, HasSubstr("object at the top"));
  EXPECT_FALSE(parse_model_config("", "c").ok());
  EXPECT_FALSE(parse_model_config("{\"a\": 1e999}", "c").ok());
}

TEST(HfWeights, ReadsShardsLikeTheSingleFile) {
  const auto sharded = HfWeights::open(reference("models/llama_tied_rope3_sharded"));
  const auto single = HfWeights::open(reference("models/llama_tied_rope3"));
  ASSERT_TRUE(sharded.ok()) << sharded.error().message;
  ASSERT_TRUE(single.ok());
  EXPECT_EQ(sharded->files().size(), 3U);
  const auto tensors = tensors_of("llama_tied_rope3");
  EXPECT_TRUE(sharded->check(tensors).ok());
  EXPECT_TRUE(single->check(tensors).ok());
  for (const runtime::TensorInfo& tensor : tensors)
    EXPECT_EQ(read_all(*sharded, tensor), read_all(*single, tensor)) << tensor.name;
}

TEST(HfWeights, ReadsPublishedGpt2FilesByTheNamesOfTheWholeModel) {
  const auto hub = HfWeights::open(reference("models/gpt2_tiny_hubstyle_f16"));
  ASSERT_TRUE(hub.ok()) << hub.error().message;
  const auto tensors = tensors_of("gpt2_tiny");
  const auto checked = hub->check(tensors);
  EXPECT_TRUE(checked.ok()) << checked.error().message;
  const auto base = HfWeights::open(reference("models/gpt2_tiny"));
  ASSERT_TRUE(base.ok());
  for (const runtime::TensorInfo& tensor : tensors) {  // the same weights, rounded to fp16 and widened
    std::vector<float> expected = read_all(*base, tensor);
    for (float& value : expected) value = to_fp32(to_fp16(value));
    EXPECT_EQ(read_all(*hub, tensor), expected) << tensor.name;
  }
}

TEST(HfWeights, ReadsAnyRangeInAnyDtype) {
  const auto weights = HfWeights::open(reference("models/llama_tiny_bf16"));
  ASSERT_TRUE(weights.ok());
  const runtime::TensorInfo tensor = tensors_of("llama_tiny")[0];
  const std::vector<float> whole = read_all(*weights, tensor);
  std::vector<Bf16> part(33);
  ASSERT_TRUE(weights->read(tensor.name, 101, 33, DType::kBf16, std::as_writable_bytes(std::span(part)).data()).ok());
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(to_fp32(part[i]), whole[101 + i]);
  EXPECT_FALSE(weights->read("none", 0, 1, DType::kBf16, std::as_writable_bytes(std::span(part)).data()).ok());
  EXPECT_FALSE(
      weights->read(tensor.name, tensor.elements, 1, DType::kBf16, std::as_writable_bytes(std::span(part)).data())
          .ok());
}

TEST(HfWeights, NamesMissingWrongAndUnusedTensors) {
  const auto weights = HfWeights::open(reference("models/llama_tiny"));
  ASSERT_TRUE(weights.ok());
  auto tensors = tensors_of("llama_tiny");
  ASSERT_TRUE(weights->check(tensors).ok());
  auto other = tensors;
  other[0].shape.push_back(1);
  EXPECT_THAT(weights->check(other).error().message,
              AllOf(HasSubstr(other[0].name), HasSubstr("should have the shape " + shape_text(other[0].shape)),
                    HasSubstr("but has " + shape_text(tensors[0].shape))));
  other = tensors;
  for (int i = 0; i < 7; ++i) {
    runtime::TensorInfo extra = tensors[0];
    extra.name = "model.layers.9.w" + std::to_string(i);
    other.push_back(extra);
  }
  EXPECT_THAT(
      weights->check(other).error().message,
      AllOf(HasSubstr("7 of"), HasSubstr("missing: model.layers.9.w0, model.layers.9.w1"), HasSubstr("and 2 more")));
  other = tensors;
  std::erase_if(other, [](const runtime::TensorInfo& tensor) { return tensor.name == "model.norm.weight"; });
  EXPECT_THAT(weights->check(other).error().message, AllOf(HasSubstr("no use for 1 tensors: model.norm.weight")));
  // A tied model may have the head's matrix in its file; an untied one must.
  other = tensors;
  std::erase_if(other, [](const runtime::TensorInfo& tensor) { return tensor.name == "lm_head.weight"; });
  EXPECT_TRUE(weights->check(other).ok());
  const auto tied = HfWeights::open(reference("models/llama_tied_rope3"));
  auto untied = tensors_of("llama_tied_rope3");
  untied.push_back(untied[0]);
  untied.back().name = "lm_head.weight";
  EXPECT_THAT(tied->check(untied).error().message, HasSubstr("missing: lm_head.weight"));
}

TEST(HfWeights, SaysWhatTheFolderHasInstead) {
  const TempFolder folder;
  EXPECT_THAT(open_fault(folder / "none"), HasSubstr("no such folder"));
  EXPECT_THAT(open_fault(folder.path()), HasSubstr("neither model.safetensors nor"));
  write_whole(folder / "pytorch_model.bin", "x");
  EXPECT_THAT(open_fault(folder.path()), HasSubstr("has pytorch_model.bin but no model.safetensors"));
  EXPECT_THAT(open_fault(folder / "pytorch_model.bin"), HasSubstr("is a file"));
}

TEST(HfWeights, NamesFaultsOfTheIndex) {
  const TempFolder folder;
  const std::string index_path = folder / "model.safetensors.index.json";
  for (const auto& entry : fs::directory_iterator(reference("models/llama_tied_rope3_sharded"))) {
    fs::copy_file(entry.path(), folder / entry.path().filename().string());
  }
  fs::permissions(index_path, fs::perms::owner_write, fs::perm_options::add);
  const json index = json::parse(read_whole(index_path));
  const auto fault_with = [&](const std::function<void(json&)>& change) {
    json changed = index;
    change(changed);
    write_whole(index_path, changed.dump());
    return open_fault(folder.path());
  };
  EXPECT_THAT(
      fault_with([](json& all) { all["weight_map"]["model.norm.weight"] = "model-00001-of-00003.safetensors"; }),
      AllOf(HasSubstr("'model.norm.weight' is in model-00001-of-00003.safetensors"), HasSubstr("it is in"),
            HasSubstr("model-00003-of-00003.safetensors")));
  EXPECT_THAT(fault_with([](json& all) { all["weight_map"]["model.none"] = "model-00001-of-00003.safetensors"; }),
              HasSubstr("no shard has it"));
  EXPECT_THAT(fault_with([](json& all) { all["weight_map"]["model.norm.weight"] = "../model.safetensors"; }),
              HasSubstr("instead of the name of a file beside the index"));
  EXPECT_THAT(fault_with([](json& all) { all["weight_map"]["model.norm.weight"] = 3; }), HasSubstr("is 3 instead"));
  EXPECT_THAT(fault_with([](json& all) { all.erase("weight_map"); }), HasSubstr("no 'weight_map'"));
  write_whole(index_path, index.dump());
  EXPECT_TRUE(HfWeights::open(folder.path()).ok());
  fs::remove(folder / "model-00002-of-00003.safetensors");
  EXPECT_THAT(open_fault(folder.path()),
              AllOf(HasSubstr("model-00002-of-00003.safetensors is missing"), HasSubstr("index.json")));
}

class ExportHfFolderTest : public ::testing::Test {
 protected:
  // Exports a reference folder; records the ranges that were asked for.
  Result<void> run(const std::string& model, DType dtype, Bytes max_shard_bytes, const std::string& out) {
    auto weights = HfWeights::open(reference("models/" + model));
    EXPECT_TRUE(weights.ok());
    tensors_ = tensors_of(model);
    HfExport request{.folder = out,
                     .config = read_model_config(reference("models/" + model)).value(),
                     .tensors = tensors_,
                     .dtype = dtype,
                     .max_shard_bytes = max_shard_bytes};
    return export_hf_folder(request,
                            [&](const runtime::TensorInfo& tensor, std::int64_t first, std::span<float> values) {
                              largest_piece_ = std::max(largest_piece_, values.size());
                              return weights->read(tensor.name, first, static_cast<std::int64_t>(values.size()),
                                                   DType::kFp32, std::as_writable_bytes(values).data());
                            });
  }
  TempFolder folder_;
  std::vector<runtime::TensorInfo> tensors_;
  std::size_t largest_piece_ = 0;
};

TEST_F(ExportHfFolderTest, ImportsAgainAsTheSameModel) {
  for (const std::string model : {"llama_tied_rope3", "llama_tiny", "gpt2_tiny"}) {
    for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16}) {
      SCOPED_TRACE(model + " " + dtype_name(dtype));
      const std::string out = folder_ / model + dtype_name(dtype) + "/";
      const auto done = run(model, dtype, 1 << 30, out);
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_EQ(text_of(read_model_config(out).value()),
                text_of(read_model_config(reference("models/" + model)).value()));
      const auto before = HfWeights::open(reference("models/" + model));
      const auto after = HfWeights::open(out);
      ASSERT_TRUE(after.ok()) << after.error().message;
      EXPECT_EQ(after->files().size(), 1U);
      ASSERT_TRUE(after->check(tensors_).ok());
      for (const runtime::TensorInfo& tensor : tensors_) {
        std::vector<float> expected = read_all(*before, tensor);
        std::vector<std::byte> narrow(expected.size() * static_cast<std::size_t>(dtype_bytes(dtype)));
        std::vector<std::byte> stored(narrow.size());
        convert_elements(DType::kFp32, std::as_bytes(std::span(expected)).data(), dtype, narrow.data(),
                         tensor.elements);
        ASSERT_TRUE(after->read(tensor.name, 0, tensor.elements, dtype, stored.data()).ok());
        ASSERT_EQ(stored, narrow) << tensor.name;
      }
    }
  }
}

TEST_F(ExportHfFolderTest, ShardsAreCutBetweenTensorsAndIndexed) {
  const Bytes limit = 100'000;
  const std::string out = folder_ / "out";
  ASSERT_TRUE(run("llama_tied_rope3", DType::kFp32, limit, out).ok());
  const auto weights = HfWeights::open(out);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_GT(weights->files().size(), 3U);
  EXPECT_TRUE(weights->check(tensors_).ok());
  for (const SafetensorsFile& file : weights->files()) {
    const Bytes bytes = file.tensors().back().end;
    EXPECT_TRUE(bytes <= limit || file.tensors().size() == 1) << file.path() << " " << bytes;
  }
  const json index = json::parse(read_whole(out + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 132032 * 4);
  EXPECT_EQ(index["weight_map"].size(), tensors_.size());
  EXPECT_FALSE(path_exists(out + "/model.safetensors"));
  const auto before = HfWeights::open(reference("models/llama_tied_rope3"));
  for (const runtime::TensorInfo& tensor : tensors_) EXPECT_EQ(read_all(*weights, tensor), read_all(*before, tensor));
}

TEST_F(ExportHfFolderTest, AsksForTensorsInAscendingPieces) {
  runtime::TensorInfo tensor;
  tensor.name = "large";
  tensor.elements = 2 * kExportPieceElements + 7;
  tensor.shape = {tensor.elements};
  std::int64_t next = 0;
  const HfExport request{.folder = folder_ / "out",
                         .config = config_of(reference("models/llama_tiny/config.json")),
                         .tensors = {&tensor, 1}};
  const auto done = export_hf_folder(
      request, [&](const runtime::TensorInfo&, std::int64_t first, std::span<float> values) -> Result<void> {
        EXPECT_EQ(first, next);
        EXPECT_LE(static_cast<std::int64_t>(values.size()), kExportPieceElements);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = static_cast<float>(first + static_cast<std::int64_t>(i));
        next = first + static_cast<std::int64_t>(values.size());
        return {};
      });
  ASSERT_TRUE(done.ok()) << done.error().message;
  const auto weights = HfWeights::open(folder_ / "out");
  const std::vector<float> all = read_all(*weights, tensor);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<float>(i));
}

TEST_F(ExportHfFolderTest, RefusesAFolderThatHasFilesAndTakesAnEmptyOne) {
  write_whole(folder_ / "notes.txt", "mine");
  const auto refused = run("llama_tiny", DType::kFp32, 1 << 30, folder_.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPreflight);
  EXPECT_THAT(refused.error().message, HasSubstr("has files already"));
  EXPECT_EQ(read_whole(folder_ / "notes.txt"), "mine");
  EXPECT_THAT(run("llama_tiny", DType::kFp32, 1 << 30, folder_ / "notes.txt").error().message, HasSubstr("is a file"));
  fs::create_directory(folder_ / "empty");
  EXPECT_TRUE(run("llama_tiny", DType::kFp32, 1 << 30, folder_ / "empty").ok());
  EXPECT_TRUE(run("llama_tiny", DType::kFp32, 1 << 30, folder_ / "a/b/c").ok());  // parents are made
}

TEST_F(ExportHfFolderTest, LeavesNothingBehindWhenTheSourceFails) {
  const auto tensors = tensors_of("llama_tiny");
  const HfExport request{
      .folder = folder_ / "out", .config = config_of(reference("models/llama_tiny/config.json")), .tensors = tensors};
  int calls = 0;
  const auto failed =
      export_hf_folder(request, [&](const runtime::TensorInfo&, std::int64_t, std::span<float>) -> Result<void> {
        return ++calls < 5 ? Result<void>() : make_error(ErrorCode::kIo, "the tile is damaged");
      });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "the tile is damaged");
  EXPECT_TRUE(folder_.empty());
}

TEST_F(ExportHfFolderTest, SaysWhenTheFileSystemIsTooSmall) {
  runtime::TensorInfo tensor;
  tensor.name = "huge";
  tensor.elements = std::int64_t{1} << 58;
  tensor.shape = {tensor.elements};
  const HfExport request{.folder = folder_ / "out",
                         .config = config_of(reference("models/llama_tiny/config.json")),
                         .tensors = {&tensor, 1}};
  const auto failed = export_hf_folder(
      request, [](const runtime::TensorInfo&, std::int64_t, std::span<float>) { return Result<void>(); });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kPreflight);
  EXPECT_TRUE(folder_.empty());
}

}  // namespace
}  // namespace headrace::models
