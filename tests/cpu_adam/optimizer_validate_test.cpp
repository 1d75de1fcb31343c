// SPDX-License-Identifier: Apache-2.0
// Names, planes, and wrong hyper-parameters, shapes and arrays of the optimizers.
#include <cctype>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cpu_adam/format_state.h"
#include "optimizer_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr OptimizerKind kEveryKind[] = {OptimizerKind::kAdamW,   OptimizerKind::kAdam, OptimizerKind::kLion,
                                        OptimizerKind::kAdagrad, OptimizerKind::kSgd,  OptimizerKind::kAdafactor,
                                        OptimizerKind::kMuon};

TEST(OptimizerNames, every_name_is_read_back_in_any_letter_case) {
  for (const OptimizerKind kind : kEveryKind) {
    const std::string name = optimizer_name(kind);
    std::string small = name;
    for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    ASSERT_TRUE(parse_optimizer(name).ok()) << name;
    EXPECT_EQ(parse_optimizer(name).value(), kind);
    EXPECT_EQ(parse_optimizer(small).value(), kind);
  }
}

TEST(OptimizerNames, an_unknown_name_is_answered_with_the_nearest_and_with_all) {
  const Error error = parse_optimizer("AdmW").error();
  EXPECT_EQ(error.code, ErrorCode::kConfig);
  EXPECT_THAT(error.message, AllOf(HasSubstr("\"AdmW\""), HasSubstr("AdamW"), HasSubstr("Lion"), HasSubstr("Muon"),
                                   HasSubstr("Adafactor"), HasSubstr("SGD"), HasSubstr("Adagrad")));
  EXPECT_THAT(error.hint, HasSubstr("did you mean \"AdamW\"?"));
  EXPECT_THAT(parse_optimizer("moun").error().hint, HasSubstr("\"Muon\""));
  EXPECT_THAT(parse_optimizer("CPULion8bitPaged").error().hint, IsEmpty());
  EXPECT_THAT(parse_optimizer(std::string(100000, 'a')).error().hint, IsEmpty());
  EXPECT_FALSE(parse_optimizer("").ok());
}

TEST(OptimizerPlanes, are_what_each_optimizer_keeps_for_an_element) {
  OptimizerHyper hyper = default_hyper(OptimizerKind::kSgd);
  EXPECT_THAT(moment_names(OptimizerKind::kSgd, hyper), IsEmpty());
  hyper.momentum = 0.9;
  EXPECT_EQ(num_moments(OptimizerKind::kSgd, hyper), 1);
  EXPECT_STREQ(moment_names(OptimizerKind::kAdam, hyper)[1], "exp_avg_sq");
  struct Case {
    OptimizerKind kind;
    Bytes split, bf16, fp32;
  };
  for (const Case& c :
       {Case{OptimizerKind::kAdamW, 10, 12, 8}, Case{OptimizerKind::kAdam, 10, 12, 8},
        Case{OptimizerKind::kLion, 6, 8, 4}, Case{OptimizerKind::kAdagrad, 6, 8, 4}, Case{OptimizerKind::kSgd, 6, 8, 4},
        Case{OptimizerKind::kMuon, 6, 8, 4}, Case{OptimizerKind::kAdafactor, 2, 4, 0}}) {
    const auto bytes = [&](StateFormat format, DType dtype) {
      return state_planes(format, dtype, 640, num_moments(c.kind, hyper)).bytes;
    };
    EXPECT_EQ(bytes(StateFormat::kSplit, DType::kBf16), 640 * c.split) << optimizer_name(c.kind);
    EXPECT_EQ(bytes(StateFormat::kFp32, DType::kBf16), 640 * c.bf16) << optimizer_name(c.kind);
    EXPECT_EQ(bytes(StateFormat::kFp32, DType::kFp32), 640 * c.fp32) << optimizer_name(c.kind);
  }
}

TEST(OptimizerPlanes, arrays_point_into_them_and_lack_what_they_lack) {
  for (const auto& [format, dtype] :
       {std::pair{StateFormat::kSplit, DType::kBf16}, std::pair{StateFormat::kFp32, DType::kFp16},
        std::pair{StateFormat::kFp32, DType::kFp32}}) {
    for (const std::int64_t length : {1, 64, 65, 1000}) {
      const StatePlanes adamw = state_planes(format, dtype, length);
      for (const int moments : {0, 1, 2}) {
        const StatePlanes planes = state_planes(format, dtype, length, moments);
        EXPECT_EQ(planes.master, adamw.master);
        EXPECT_EQ(planes.remainder, adamw.remainder);
        EXPECT_EQ(planes.bytes, adamw.bytes - (2 - moments) * 4 * round_up(length, 64));
        std::vector<float> state(static_cast<std::size_t>(adamw.bytes) / 4);
        auto* const bytes = reinterpret_cast<std::byte*>(state.data());
        OptimizerArrays arrays;
        point_at_state(arrays, planes, bytes, 1);
        const auto at = [&](Bytes offset, Bytes element) {
          return offset == StatePlanes::kNone ? nullptr : static_cast<void*>(bytes + offset + element);
        };
        EXPECT_EQ(arrays.master, at(adamw.master, 4));
        EXPECT_EQ(arrays.remainder, at(adamw.remainder, 2));
        EXPECT_EQ(arrays.moments[0], moments > 0 ? at(adamw.exp_avg, 4) : nullptr);
        EXPECT_EQ(arrays.moments[1], moments > 1 ? at(adamw.exp_avg_sq, 4) : nullptr);
      }
    }
  }
}

struct HyperCase {
  OptimizerKind kind;
  std::function<void(OptimizerHyper&)> change;
  const char* words;
};

TEST(OptimizerHyper, every_wrong_number_is_named_with_its_value) {
  const HyperCase cases[] = {
      {OptimizerKind::kAdam, [](OptimizerHyper& h) { h.lr = NAN; }, "Adam: lr is nan"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.lr = -0.5; }, "SGD: lr is -0.5"},
      {OptimizerKind::kLion, [](OptimizerHyper& h) { h.lr = 1e300; }, "Lion: lr is 1e+300"},
      {OptimizerKind::kAdam, [](OptimizerHyper& h) { h.lr = 1e38, h.beta1 = 0.9999999; }, "lr / (1 - beta1^t)"},
      {OptimizerKind::kAdam, [](OptimizerHyper& h) { h.beta1 = 1.0; }, "Adam: beta1 is 1, but must be in [0, 1)"},
      {OptimizerKind::kLion, [](OptimizerHyper& h) { h.beta1 = NAN; }, "Lion: beta1 is nan"},
      {OptimizerKind::kLion, [](OptimizerHyper& h) { h.beta2 = -0.1; }, "Lion: beta2 is -0.1"},
      {OptimizerKind::kLion, [](OptimizerHyper& h) { h.beta2 = 1 - 1e-12; }, "after rounding to fp32"},
      {OptimizerKind::kAdagrad, [](OptimizerHyper& h) { h.eps = -1e-8; }, "Adagrad: eps is -1e-08"},
      {OptimizerKind::kAdam, [](OptimizerHyper& h) { h.eps = 1e-60; }, "eps is 1e-60"},
      {OptimizerKind::kAdagrad, [](OptimizerHyper& h) { h.lr_decay = INFINITY; }, "lr_decay is inf"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.weight_decay = -1; }, "SGD: weight_decay is -1"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.momentum = -0.9; }, "SGD: momentum is -0.9"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.dampening = NAN; }, "SGD: dampening is nan"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.nesterov = true; }, "momentum is 0, but must be above 0"},
      {OptimizerKind::kSgd, [](OptimizerHyper& h) { h.nesterov = true, h.momentum = 0.9, h.dampening = 0.1; },
       "dampening is 0.1, but must be 0 with nesterov"},
      {OptimizerKind::kMuon, [](OptimizerHyper& h) { h.momentum = 1; }, "Muon: momentum is 1"},
      {OptimizerKind::kMuon, [](OptimizerHyper& h) { h.newton_schulz_steps = 0; }, "newton_schulz_steps is 0"},
      {OptimizerKind::kMuon, [](OptimizerHyper& h) { h.newton_schulz_coefficients[2] = NAN; }, "coefficients is nan"},
      {OptimizerKind::kMuon, [](OptimizerHyper& h) { h.newton_schulz_eps = -1; }, "newton_schulz_eps is -1"},
      {OptimizerKind::kAdafactor, [](OptimizerHyper& h) { h.beta2_decay = 0.8; }, "beta2_decay is 0.8"},
      {OptimizerKind::kAdafactor, [](OptimizerHyper& h) { h.eps1 = -1; }, "Adafactor: eps1 is -1"},
      {OptimizerKind::kAdafactor, [](OptimizerHyper& h) { h.eps2 = NAN; }, "Adafactor: eps2 is nan"},
      {OptimizerKind::kAdafactor, [](OptimizerHyper& h) { h.clip_threshold = 0.5; }, "clip_threshold is 0.5"},
      {OptimizerKind::kAdamW, [](OptimizerHyper& h) { h.optimizer_step = 0; }, "AdamW: optimizer_step is 0"},
      {OptimizerKind::kLion, [](OptimizerHyper& h) { h.gradient_scale = INFINITY; }, "gradient_scale is inf"},
  };
  for (const HyperCase& c : cases) {
    OptimizerHyper hyper = default_hyper(c.kind);
    ASSERT_TRUE(validate(c.kind, hyper).ok()) << optimizer_name(c.kind);
    c.change(hyper);
    const Result<void> result = validate(c.kind, hyper);
    ASSERT_FALSE(result.ok()) << c.words;
    EXPECT_EQ(result.error().code, ErrorCode::kConfig);
    EXPECT_THAT(result.error().message, HasSubstr(c.words));
  }
}

TEST(OptimizerHyper, the_edges_of_the_ranges_and_numbers_of_others_are_accepted) {
  for (const OptimizerKind kind : kEveryKind) {
    OptimizerHyper hyper = default_hyper(kind);
    hyper.lr = 0;
    hyper.beta1 = 0;
    hyper.beta2 = 0;
    hyper.eps = 0;
    hyper.gradient_scale = 0;
    hyper.optimizer_step = std::int64_t{1} << 40;
    EXPECT_TRUE(validate(kind, hyper).ok()) << optimizer_name(kind);
  }
  OptimizerHyper lion = default_hyper(OptimizerKind::kLion);
  lion.dampening = NAN;  // not a number of Lion
  EXPECT_TRUE(validate(OptimizerKind::kLion, lion).ok());
}

TEST(OptimizerShape, muon_takes_matrices_and_adafactor_also_vectors) {
  const std::int64_t scalar_free[] = {7, 5, 3};
  const std::span<const std::int64_t> shape(scalar_free);
  EXPECT_TRUE(validate_shape(OptimizerKind::kMuon, shape.first(2)).ok());
  const Error error = validate_shape(OptimizerKind::kMuon, shape.first(1)).error();
  EXPECT_EQ(error.code, ErrorCode::kConfig);
  EXPECT_THAT(error.message, HasSubstr("Muon updates matrices only, but this weight has the shape [7]"));
  EXPECT_THAT(error.hint, HasSubstr("AdamW"));
  EXPECT_TRUE(validate_shape(OptimizerKind::kAdafactor, shape.first(1)).ok());
  EXPECT_THAT(validate_shape(OptimizerKind::kAdafactor, shape).error().message, HasSubstr("[7, 5, 3]"));
  EXPECT_TRUE(validate_shape(OptimizerKind::kLion, shape).ok());
  EXPECT_FALSE(validate_shape(OptimizerKind::kMuon, {}).ok());
}

struct ArraysCase {
  std::function<void(OptimizerArrays&)> change;
  const char* words;
};

void expect_refused(const Variant& variant, Kind kind, const std::vector<ArraysCase>& cases) {
  State state(kind, 10, 0);
  Gradient gradient(DType::kFp32, 10, 0);
  const OptimizerHyper hyper = hyper_of(variant);
  ASSERT_TRUE(validate(variant.kind, arrays_of(variant.kind, hyper, state, gradient), format_of(kind), hyper).ok());
  for (const ArraysCase& c : cases) {
    OptimizerArrays arrays = arrays_of(variant.kind, hyper, state, gradient);
    c.change(arrays);
    const Result<void> result = validate(variant.kind, arrays, format_of(kind), hyper);
    ASSERT_FALSE(result.ok()) << c.words;
    EXPECT_THAT(result.error().message, HasSubstr(c.words));
  }
}

template <class T>
T* shifted(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + static_cast<std::uintptr_t>(bytes));
}

TEST(OptimizerArrays, missing_extra_misaligned_and_overlapping_arrays_are_named) {
  float other[10] = {};
  expect_refused({"adam", OptimizerKind::kAdam}, Kind::kSplit,
                 {{[](OptimizerArrays& a) { a.weights = nullptr; }, "weights is null with 10 elements"},
                  {[](OptimizerArrays& a) { a.remainder = nullptr; }, "remainder is null"},
                  {[&](OptimizerArrays& a) { a.master = other; }, "master is given"},
                  {[](OptimizerArrays& a) { a.weights_dtype = DType::kFp16; }, "bf16 weights, not fp16"},
                  {[](OptimizerArrays& a) { a.elements = -3; }, "-3 elements"},
                  {[](OptimizerArrays& a) { a.moments[0] = nullptr; }, "exp_avg is null"},
                  {[](OptimizerArrays& a) { a.moments[1] = shifted(a.moments[1], 2); }, "exp_avg_sq at 0x"},
                  {[](OptimizerArrays& a) { a.gradient = a.moments[0] + 9; }, "exp_avg and gradient overlap"}});
  expect_refused({"lion", OptimizerKind::kLion}, Kind::kBf16Master,
                 {{[](OptimizerArrays& a) { a.master = nullptr; }, "master is null"},
                  {[&](OptimizerArrays& a) { a.moments[1] = other; }, "a second moment is given"}});
  expect_refused({"sgd plain", OptimizerKind::kSgd}, Kind::kFp32,
                 {{[&](OptimizerArrays& a) { a.moments[0] = other; }, "a first moment is given"},
                  {[](OptimizerArrays& a) { a.gradient = nullptr; }, "gradient is null"}});
  State state(Kind::kFp32, 4, 0);
  Gradient gradient(DType::kFp32, 4, 0);
  const OptimizerHyper hyper = default_hyper(OptimizerKind::kMuon);
  EXPECT_THAT(
      validate(OptimizerKind::kMuon, arrays_of(OptimizerKind::kMuon, hyper, state, gradient), StateFormat::kFp32, hyper)
          .error()
          .message,
      HasSubstr("whole tensors"));
}

TEST(OptimizerArrays, nothing_at_all_is_a_valid_update) {
  for (const Variant& variant : kVariants) {
    const OptimizerHyper hyper = hyper_of(variant);
    EXPECT_TRUE(ParallelOptimizer(2).checked_update(variant.kind, {}, StateFormat::kSplit, hyper).ok());
  }
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
