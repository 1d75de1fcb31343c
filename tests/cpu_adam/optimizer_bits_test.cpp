// SPDX-License-Identifier: Apache-2.0
// The same bits from every target, thread count, split and restart, and from the split format and the fp32 master.
#include <thread>

#include <gtest/gtest.h>

#include "optimizer_testing.h"

namespace headrace::cpu_adam::testing {
namespace {

OptimizerHyper hyper_at(const Variant& variant, int t) {
  OptimizerHyper hyper = hyper_of(variant, t, 0.1);
  hyper.gradient_scale = 0.731F;
  if (t % 2 == 0) hyper.eps = 0;  // keeps subnormal moments
  if (t == 3) hyper.lr = 0;
  return hyper;
}

void update(const Variant& variant, State& state, Gradient& gradient, int t, Target target) {
  const OptimizerHyper hyper = hyper_at(variant, t);
  update_span(variant.kind, arrays_of(variant.kind, hyper, state, gradient), format_of(state.kind), hyper, target);
}

TEST(OptimizerBits, every_target_gives_the_bits_of_scalar_also_for_odd_values) {
  const std::vector<Target> all = targets();
  for (const Variant& variant : kVariants) {
    for (const Kind kind : kAllKinds) {
      for (const DType dtype : kAllDTypes) {
        for (const bool odd : {false, true}) {
          for (const std::int64_t n : {1, 5, 8, 15, 16, 17, 31, 33, 64, 1003, 4007}) {
            const std::uint64_t seed = static_cast<std::uint64_t>(n) * 8 + (odd ? 1 : 0);
            Random random(seed);
            State truth(kind, n, 0);
            fill(truth, random, odd);
            std::vector<State> states(all.size(), truth);
            Gradient gradient(dtype, n, 3);
            for (int t = 1; t <= 4; ++t) {
              fill(gradient, n, random, odd);
              for (std::size_t k = 0; k < all.size(); ++k) {
                update(variant, states[k], gradient, t, all[k]);
                ASSERT_TRUE(states[k].same_bits(states[0]))
                    << variant.name << " " << kind_name(kind) << " gradient " << dtype_name(dtype) << " n=" << n
                    << " t=" << t << " seed=" << seed << " " << target_name(all[k]) << ": "
                    << first_difference_of(states[k], states[0]);
              }
            }
          }
        }
      }
    }
  }
}

// One element more than a task's share, and many of them.
TEST(OptimizerBits, thread_counts_do_not_change_a_bit) {
  for (const std::int64_t n : {std::int64_t{32768}, std::int64_t{32769}, std::int64_t{150007}}) {
    for (const Variant& variant : kVariants) {
      Random random(99);
      State truth(Kind::kSplit, n, 1);
      fill(truth, random, true);
      Gradient gradient(DType::kBf16, n, 1);
      fill(gradient, n, random, false);
      State alone = truth;
      update(variant, alone, gradient, 7, best_target());
      for (const int threads : {1, 2, 3}) {
        const ParallelOptimizer optimizer(threads);
        State state = truth;
        const OptimizerHyper hyper = hyper_at(variant, 7);
        optimizer.update(variant.kind, arrays_of(variant.kind, hyper, state, gradient), StateFormat::kSplit, hyper);
        ASSERT_TRUE(state.same_bits(alone))
            << variant.name << " " << threads << " threads: " << first_difference_of(state, alone);
        ASSERT_TRUE(state.guards_intact());
      }
    }
  }
}

TEST(OptimizerBits, splits_do_not_change_a_bit) {
  constexpr std::int64_t kElements = 9011;
  for (const Target target : targets()) {
    for (const Variant& variant : kVariants) {
      for (const Kind kind : kAllKinds) {
        for (const std::int64_t parts : {2, 7, 100}) {
          Random random(static_cast<std::uint64_t>(parts));
          State whole(kind, kElements, 0);
          fill(whole, random, true);
          Gradient gradient(DType::kFp16, kElements, 0);
          fill(gradient, kElements, random, true);
          State pieces = whole;
          update(variant, whole, gradient, 2, target);
          const OptimizerHyper hyper = hyper_at(variant, 2);
          const OptimizerArrays arrays = arrays_of(variant.kind, hyper, pieces, gradient);
          for (std::int64_t at = 0; at < kElements;) {
            const std::int64_t end = std::min(kElements, at + 1 + random.below(2 * kElements / parts));
            update_span(variant.kind, slice(arrays, at, end - at), format_of(kind), hyper, target);
            at = end;
          }
          ASSERT_TRUE(pieces.same_bits(whole)) << variant.name << " " << kind_name(kind) << " " << parts
                                               << " parts: " << first_difference_of(pieces, whole);
        }
      }
    }
  }
}

TEST(OptimizerBits, the_split_format_is_the_fp32_master_bit_for_bit_over_thirty_steps) {
  constexpr std::int64_t kElements = 1031;
  for (const Variant& variant : kVariants) {
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
    Gradient gradient(DType::kBf16, kElements, 0);
    for (int t = 1; t <= 30; ++t) {
      fill(gradient, kElements, random, false);
      update(variant, split, gradient, t, best_target());
      update(variant, master, gradient, t, best_target());
      ASSERT_TRUE(split.half.same_bits(master.half)) << variant.name << " t=" << t << " seed=" << kSeed;
      for (std::int64_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(split.master_at(i)), std::bit_cast<std::uint32_t>(master.master[i]))
            << variant.name << " i=" << i << " t=" << t << " seed=" << kSeed;
      }
    }
  }
}

// Ten steps in one go are five, everything copied elsewhere, and five more.
TEST(OptimizerBits, a_state_that_was_saved_and_loaded_continues_bit_for_bit) {
  constexpr std::int64_t kElements = 517;
  for (const Variant& variant : kVariants) {
    Random random(8);
    State straight(Kind::kSplit, kElements, 0);
    fill(straight, random, false);
    State resumed = straight;
    Random gradients(9);
    Gradient gradient(DType::kFp32, kElements, 0);
    for (int t = 1; t <= 10; ++t) {
      if (t == 6) {
        State loaded(Kind::kSplit, kElements, 5);
        for (std::int64_t i = 0; i < kElements; ++i) {
          loaded.half[i] = resumed.half[i];
          loaded.remainder[i] = resumed.remainder[i];
          loaded.exp_avg[i] = resumed.exp_avg[i];
          loaded.exp_avg_sq[i] = resumed.exp_avg_sq[i];
        }
        resumed = loaded;
      }
      fill(gradient, kElements, gradients, false);
      update(variant, straight, gradient, t, best_target());
      update(variant, resumed, gradient, t, best_target());
    }
    EXPECT_TRUE(resumed.same_bits(straight)) << variant.name << ": " << first_difference_of(resumed, straight);
  }
}

TEST(ParallelOptimizer, measures_the_bits_of_arriving_gradients_on_every_target) {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{4096}, std::int64_t{4097}, std::int64_t{100003}}) {
    Random random(static_cast<std::uint64_t>(n));
    for (const DType dtype : kAllDTypes) {
      Gradient gradient(dtype, n, 0);
      GuardedArray<float> wide(n, 0);
      for (std::int64_t i = 0; i < n; ++i) {
        gradient.set(i, random.gradient());
        wide[i] = gradient.at(i);
      }
      const auto chunks = static_cast<std::size_t>(ceil_div(n, ParallelUpdater::kNormChunk));
      std::vector<double> sums(chunks);
      std::vector<std::int64_t> counts(chunks);
      ParallelUpdater(1).arrive({wide.data(), wide.data(), DType::kFp32, false, n}, sums, counts);
      double expected = 0;
      for (const double sum : sums) expected += sum;
      for (const Target target : targets()) {
        for (const int threads : {1, 2}) {
          const GradientMeasure measured = ParallelOptimizer(threads, target).measure(gradient.data(), dtype, n);
          EXPECT_EQ(std::bit_cast<std::uint64_t>(measured.sum_of_squares), std::bit_cast<std::uint64_t>(expected))
              << n << " " << dtype_name(dtype) << " " << target_name(target);
          EXPECT_EQ(measured.non_finite, 0);
        }
      }
    }
  }
}

TEST(ParallelOptimizer, several_threads_may_use_one_at_once) {
  constexpr std::int64_t kElements = 90001;
  constexpr int kCallers = 3;
  const ParallelOptimizer optimizer(2);
  constexpr Variant kVariant = {"lion", OptimizerKind::kLion};
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
      for (int t = 1; t <= 4; ++t) {
        const OptimizerHyper hyper = hyper_at(kVariant, t);
        optimizer.update(kVariant.kind, arrays_of(kVariant.kind, hyper, state, gradient), StateFormat::kSplit, hyper);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int t = 1; t <= 4; ++t) update(kVariant, truth, gradient, t, Target::kScalar);
  for (const State& state : states) ASSERT_TRUE(state.same_bits(truth)) << first_difference_of(state, truth);
}

}  // namespace
}  // namespace headrace::cpu_adam::testing
