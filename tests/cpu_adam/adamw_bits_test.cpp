// SPDX-License-Identifier: Apache-2.0
// The same bits from every target, thread count and split, and from the split format and the fp32 master.
#include <thread>

#include <gtest/gtest.h>

#include "adamw_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

AdamWHyper hyper_at(int t) {
  AdamWHyper hyper;
  hyper.optimizer_step = t;
  hyper.beta2 = 0.95;
  hyper.weight_decay = 0.1;
  hyper.gradient_scale = 0.731F;
  if (t % 2 == 0) hyper.eps = 0;  // keeps subnormal moments
  return hyper;
}

TEST(AdamWBits, every_target_gives_the_bits_of_scalar_also_for_odd_values) {
  const std::vector<Target> all = targets();
  for (const Kind kind : kAllKinds) {
    for (const DType dtype : kAllDTypes) {
      for (const bool odd : {false, true}) {
        for (const std::int64_t n : {1, 5, 8, 15, 16, 17, 31, 33, 64, 1003, 10007}) {
          const std::uint64_t seed = static_cast<std::uint64_t>(n) * 8 + (odd ? 1 : 0);
          Random random(seed);
          State truth(kind, n, 0);
          fill(truth, random, odd);
          std::vector<State> states(all.size(), truth);
          Gradient gradient(dtype, n, 3);
          for (int t = 1; t <= 3; ++t) {
            fill(gradient, n, random, odd);
            for (std::size_t k = 0; k < all.size(); ++k) {
              adamw_update(states[k].arrays(gradient), format_of(kind), hyper_at(t), all[k]);
              ASSERT_TRUE(states[k].same_bits(states[0]))
                  << kind_name(kind) << " gradient " << dtype_name(dtype) << " n=" << n << " t=" << t
                  << " seed=" << seed << " " << target_name(all[k]) << ": "
                  << first_difference_of(states[k], states[0]);
            }
          }
        }
      }
    }
  }
}

TEST(AdamWBits, thread_counts_do_not_change_a_bit) {
  constexpr std::int64_t kElements = 250007;
  for (const Target target : targets()) {
    for (const Kind kind : {Kind::kSplit, Kind::kFp16Master}) {
      Random random(99);
      State truth(kind, kElements, 1);
      fill(truth, random, true);
      Gradient gradient(DType::kBf16, kElements, 1);
      fill(gradient, kElements, random, false);
      State alone = truth;
      adamw_update(alone.arrays(gradient), format_of(kind), hyper_at(7), target);
      for (const int threads : {1, 2, 3}) {
        const ParallelUpdater updater(threads, target);
        ASSERT_EQ(updater.target(), target);
        State state = truth;
        updater.update(state.arrays(gradient), format_of(kind), hyper_at(7));
        ASSERT_TRUE(state.same_bits(alone))
            << threads << " threads, " << target_name(target) << ": " << first_difference_of(state, alone);
        ASSERT_TRUE(state.guards_intact());
      }
    }
  }
}

// From 2^18 elements on, weights that have a master are written past the caches where they are aligned.
TEST(AdamWBits, weights_of_large_arrays_that_pass_the_caches_have_the_same_bits) {
  constexpr std::int64_t kElements = (1 << 18) + 37;
  constexpr std::uint64_t kSeed = 43;
  for (const Kind kind : {Kind::kBf16Master, Kind::kFp16Master}) {
    for (const std::int64_t offset : {0, 3}) {
      Random random(kSeed);
      State truth(kind, kElements, offset);
      fill(truth, random, true);
      Gradient gradient(DType::kBf16, kElements, offset);
      fill(gradient, kElements, random, true);
      const State before = truth;
      adamw_update(truth.arrays(gradient), format_of(kind), hyper_at(7), Target::kScalar);
      for (const Target target : targets()) {
        State state(kind, kElements, offset);  // a copy as a whole would lie at another alignment
        for (std::int64_t i = 0; i < kElements; ++i) {
          state.half[i] = before.half[i];
          state.master[i] = before.master[i];
          state.exp_avg[i] = before.exp_avg[i];
          state.exp_avg_sq[i] = before.exp_avg_sq[i];
        }
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(state.half.data()) % 64 == 0, offset == 0);
        adamw_update(state.arrays(gradient), format_of(kind), hyper_at(7), target);
        ASSERT_TRUE(state.same_bits(truth)) << kind_name(kind) << " offset " << offset << " " << target_name(target)
                                            << ": " << first_difference_of(state, truth);
        ASSERT_TRUE(state.guards_intact());
      }
    }
  }
}

AdamWArrays part(const AdamWArrays& a, std::int64_t begin, std::int64_t end) {
  AdamWArrays p = a;
  p.weights = static_cast<std::byte*>(a.weights) + begin * dtype_bytes(a.weights_dtype);
  if (a.master != nullptr) p.master = a.master + begin;
  if (a.remainder != nullptr) p.remainder = static_cast<std::int16_t*>(a.remainder) + begin;
  p.exp_avg = static_cast<float*>(a.exp_avg) + begin;
  p.exp_avg_sq = static_cast<float*>(a.exp_avg_sq) + begin;
  p.gradient = static_cast<const std::byte*>(a.gradient) + begin * dtype_bytes(a.gradient_dtype);
  p.elements = end - begin;
  return p;
}

TEST(AdamWBits, random_splits_do_not_change_a_bit) {
  constexpr std::int64_t kElements = 20011;
  for (const Target target : targets()) {
    for (const Kind kind : kAllKinds) {
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        Random random(seed);
        State whole(kind, kElements, 0);
        fill(whole, random, true);
        Gradient gradient(DType::kFp32, kElements, 0);
        fill(gradient, kElements, random, true);
        State pieces = whole;
        adamw_update(whole.arrays(gradient), format_of(kind), hyper_at(3), target);
        const AdamWArrays arrays = pieces.arrays(gradient);
        for (std::int64_t at = 0; at < kElements;) {
          const std::int64_t end = std::min(kElements, at + random.below(700));
          adamw_update(part(arrays, at, end), format_of(kind), hyper_at(3), target);
          at = end;
        }
        ASSERT_TRUE(pieces.same_bits(whole))
            << kind_name(kind) << " seed " << seed << ": " << first_difference_of(pieces, whole);
      }
    }
  }
}

TEST(AdamWBits, the_split_format_is_the_fp32_master_bit_for_bit_over_fifty_steps) {
  constexpr std::int64_t kElements = 4099;
  for (const Target target : targets()) {
    for (const DType dtype : kAllDTypes) {
      constexpr std::uint64_t kSeed = 31;
      Random random(kSeed);
      State split(Kind::kSplit, kElements, 0);
      fill(split, random, false);
      State master(Kind::kBf16Master, kElements, 0);
      for (std::int64_t i = 0; i < kElements; ++i) {
        master.set_master(i, split.master_at(i));
        master.exp_avg[i] = split.exp_avg[i];
        master.exp_avg_sq[i] = split.exp_avg_sq[i];
      }
      Gradient gradient(dtype, kElements, 0);
      for (int t = 1; t <= 50; ++t) {
        fill(gradient, kElements, random, false);
        adamw_update(split.arrays(gradient), StateFormat::kSplit, hyper_at(t), target);
        adamw_update(master.arrays(gradient), StateFormat::kFp32, hyper_at(t), target);
        ASSERT_TRUE(split.half.same_bits(master.half) && split.exp_avg.same_bits(master.exp_avg) &&
                    split.exp_avg_sq.same_bits(master.exp_avg_sq))
            << "t=" << t << " seed=" << kSeed;
        for (std::int64_t i = 0; i < kElements; ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(split.master_at(i)), std::bit_cast<std::uint32_t>(master.master[i]))
              << "i=" << i << " t=" << t << " seed=" << kSeed << " " << target_name(target);
        }
      }
    }
  }
}

TEST(ParallelUpdater, several_threads_may_use_one_updater_at_once) {
  constexpr std::int64_t kElements = 150001;
  constexpr int kCallers = 4;
  const ParallelUpdater updater(2);
  Random random(5);
  State truth(Kind::kSplit, kElements, 0);
  fill(truth, random, false);
  Gradient gradient(DType::kBf16, kElements, 0);
  fill(gradient, kElements, random, false);
  std::vector<State> states(kCallers, truth);
  std::vector<std::thread> callers;
  callers.reserve(kCallers);
  for (State& state : states) {
    callers.emplace_back([&] {
      for (int t = 1; t <= 5; ++t) updater.update(state.arrays(gradient), StateFormat::kSplit, hyper_at(t));
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int t = 1; t <= 5; ++t) adamw_update(truth.arrays(gradient), StateFormat::kSplit, hyper_at(t), Target::kScalar);
  for (const State& state : states) ASSERT_TRUE(state.same_bits(truth)) << first_difference_of(state, truth);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
