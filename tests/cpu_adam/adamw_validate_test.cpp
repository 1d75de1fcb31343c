// SPDX-License-Identifier: Apache-2.0
// Wrong hyper-parameters and arrays are refused with the number that is wrong.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "adamw_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

using ::testing::HasSubstr;

struct HyperCase {
  std::function<void(AdamWHyper&)> change;
  const char* words;
};

TEST(ValidateHyper, every_wrong_number_is_named_with_its_value) {
  ASSERT_TRUE(validate(AdamWHyper{}).ok());
  const HyperCase cases[] = {
      {[](AdamWHyper& h) { h.lr = NAN; }, "lr is nan"},
      {[](AdamWHyper& h) { h.lr = -0.5; }, "lr is -0.5"},
      {[](AdamWHyper& h) { h.lr = 1e300; }, "lr is 1e+300"},
      {[](AdamWHyper& h) { h.beta1 = 1.0; }, "beta1 is 1"},
      {[](AdamWHyper& h) { h.beta1 = NAN; }, "beta1 is nan"},
      {[](AdamWHyper& h) { h.beta1 = 1 - 1e-12; }, "beta1"},
      {[](AdamWHyper& h) { h.beta2 = -0.1; }, "beta2 is -0.1"},
      {[](AdamWHyper& h) { h.eps = -1e-8; }, "eps is -1e-08"},
      {[](AdamWHyper& h) { h.eps = INFINITY; }, "eps is inf"},
      {[](AdamWHyper& h) { h.eps = 1e-60; }, "eps is 1e-60"},
      {[](AdamWHyper& h) { h.weight_decay = -1; }, "weight_decay is -1"},
      {[](AdamWHyper& h) { h.optimizer_step = 0; }, "optimizer_step is 0"},
      {[](AdamWHyper& h) { h.gradient_scale = INFINITY; }, "gradient_scale is inf"},
  };
  for (const HyperCase& c : cases) {
    AdamWHyper hyper;
    c.change(hyper);
    const Result<void> result = validate(hyper);
    ASSERT_FALSE(result.ok()) << c.words;
    EXPECT_EQ(result.error().code, ErrorCode::kConfig);
    EXPECT_THAT(result.error().message, HasSubstr(c.words));
  }
}

TEST(ValidateHyper, the_edges_of_the_ranges_are_accepted) {
  AdamWHyper hyper;
  hyper.lr = 0;
  hyper.beta1 = 0;
  hyper.beta2 = 0;
  hyper.eps = 0;
  hyper.gradient_scale = 0;
  hyper.optimizer_step = std::int64_t{1} << 40;
  EXPECT_TRUE(validate(hyper).ok());
}

struct ArraysCase {
  std::function<void(AdamWArrays&)> change;
  const char* words;
};

void expect_refused(Kind kind, const std::vector<ArraysCase>& cases) {
  State state(kind, 10, 0);
  Gradient gradient(DType::kFp32, 10, 0);
  ASSERT_TRUE(validate(state.arrays(gradient), format_of(kind)).ok());
  for (const ArraysCase& c : cases) {
    AdamWArrays arrays = state.arrays(gradient);
    c.change(arrays);
    const Result<void> result = validate(arrays, format_of(kind));
    ASSERT_FALSE(result.ok()) << c.words;
    EXPECT_THAT(result.error().message, HasSubstr(c.words));
  }
}

template <class T>
T* shifted(T* pointer, std::ptrdiff_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + static_cast<std::uintptr_t>(bytes));
}

TEST(ValidateArrays, missing_extra_misaligned_and_overlapping_arrays_are_named) {
  float other[10] = {};
  std::int16_t other_remainder[10] = {};
  expect_refused(Kind::kSplit, {
                                   {[](AdamWArrays& a) { a.weights = nullptr; }, "weights is null with 10 elements"},
                                   {[](AdamWArrays& a) { a.remainder = nullptr; }, "remainder is null"},
                                   {[&](AdamWArrays& a) { a.master = other; }, "master is given"},
                                   {[](AdamWArrays& a) { a.weights_dtype = DType::kFp16; }, "bf16 weights, not fp16"},
                                   {[](AdamWArrays& a) { a.elements = -3; }, "-3 elements"},
                                   {[](AdamWArrays& a) { a.exp_avg = shifted(a.exp_avg, 2); }, "exp_avg at 0x"},
                                   {[](AdamWArrays& a) { a.remainder = shifted(a.remainder, 1); }, "remainder at 0x"},
                                   {[](AdamWArrays& a) { a.gradient = static_cast<float*>(a.exp_avg) + 9; },
                                    "exp_avg and gradient overlap"},
                               });
  expect_refused(Kind::kBf16Master,
                 {
                     {[](AdamWArrays& a) { a.master = nullptr; }, "master is null"},
                     {[&](AdamWArrays& a) { a.remainder = other_remainder; }, "remainder is given"},
                     {[](AdamWArrays& a) { a.exp_avg_sq = a.exp_avg; }, "exp_avg and exp_avg_sq overlap"},
                 });
  expect_refused(Kind::kFp32,
                 {
                     {[&](AdamWArrays& a) { a.master = other; }, "master is given"},
                     {[](AdamWArrays& a) { a.gradient = nullptr; }, "gradient is null"},
                     {[](AdamWArrays& a) { a.weights = shifted(static_cast<float*>(a.weights), 1); }, "weights at 0x"},
                 });
}

TEST(ValidateArrays, nothing_at_all_is_a_valid_update) {
  AdamWArrays arrays;
  arrays.weights_dtype = DType::kBf16;
  EXPECT_TRUE(validate(arrays, StateFormat::kSplit).ok());
  adamw_update(arrays, StateFormat::kSplit, AdamWHyper{}, best_target());
  ParallelUpdater(2).update(arrays, StateFormat::kSplit, AdamWHyper{});
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
