// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/config/read_config.h"
#include "tests/runtime/config_support.h"

namespace headrace::config {
namespace {

using ::testing::HasSubstr;

RunConfig run_of(const std::vector<std::string>& overrides) {
  const auto loaded = read(kMinimal, overrides, {});
  EXPECT_TRUE(loaded.ok()) << (loaded.ok() ? "" : loaded.error().to_string());
  return loaded.ok() ? loaded->config.run : RunConfig{};
}

Error error_of(const std::vector<std::string>& overrides) {
  const auto loaded = read(kMinimal, overrides, {});
  EXPECT_FALSE(loaded.ok());
  return loaded.ok() ? Error{} : loaded.error();
}

TEST(ReadOptimizer, EachTypeHasItsParametersAndDefaults) {
  using cpu_adam::OptimizerKind;
  const auto optimizer = [](const std::vector<std::string>& overrides) { return run_of(overrides).optimizer; };
  EXPECT_EQ(optimizer({"optimizer.type=adamw"}).kind, OptimizerKind::kAdamW);
  EXPECT_EQ(optimizer({"optimizer.type=Adam", "optimizer.params.weight_decay=0.1"}).kind, OptimizerKind::kAdamW);
  EXPECT_EQ(optimizer({"optimizer.type=Adam", "optimizer.params.adam_w_mode=false"}).kind, OptimizerKind::kAdam);
  EXPECT_EQ(optimizer({"optimizer.type=Lion"}).hyper.lr, 1e-4);
  EXPECT_EQ(optimizer({"optimizer.type=Lion"}).hyper.beta2, 0.99);
  EXPECT_EQ(optimizer({"optimizer.type=Lion", "optimizer.params.lr=0.5"}).hyper.lr, 0.5);
  EXPECT_EQ(optimizer({"optimizer.type=Adagrad"}).hyper.eps, 1e-10);
  EXPECT_TRUE(optimizer({"optimizer.type=SGD", "optimizer.params.momentum=0.9", "optimizer.params.nesterov=true"})
                  .hyper.nesterov);
  EXPECT_EQ(num_moments(run_of({"optimizer.type=SGD", "bf16.enabled=true"})), 0);
  const Error unknown = error_of({"optimizer.type=SGD", "optimizer.params.eps=1e-6"});
  EXPECT_THAT(unknown.message, HasSubstr("SGD has no parameter \"eps\""));
  EXPECT_THAT(unknown.hint, HasSubstr("momentum, dampening"));
  EXPECT_THAT(error_of({"optimizer.params.momentum=0.9"}).message, HasSubstr("AdamW has no parameter"));
  EXPECT_EQ(error_of({"optimizer.type=SGD", "optimizer.params.nesterov=true"}).code, ErrorCode::kConfig);
  EXPECT_THAT(error_of({"optimizer.type=Lion", "bf16.enabled=true", "state_format=compact"}).message,
              HasSubstr("is for AdamW; the optimizer is Lion"));
}

TEST(ReadOptimizer, ADelayedFractionIsOfUpdatesThatAreDelayed) {
  const std::string half = "schedule.delayed_fraction=0.5", forward = "schedule.update=into_forward";
  EXPECT_EQ(run_of({half, forward}).schedule.delayed_fraction, Auto<double>(0.5));
  EXPECT_EQ(run_of({half}).schedule.delayed_fraction, Auto<double>(0.5));
  EXPECT_TRUE(run_of({forward, "schedule.delayed_fraction=auto"}).schedule.delayed_fraction.is_auto());
  EXPECT_EQ(run_of({"schedule.delayed_fraction=0"}).schedule.delayed_fraction, Auto<double>(0));
  for (const char* const update : {"in_backward", "after_backward"}) {
    const std::string other = std::string("schedule.update=") + update;
    EXPECT_TRUE(read(kMinimal, {other, "schedule.delayed_fraction=0"}, {}).ok());
    const Error error = error_of({half, other});
    EXPECT_EQ(error.code, ErrorCode::kConfig);
    EXPECT_THAT(error.message, HasSubstr(update));
    EXPECT_THAT(error.hint, HasSubstr("into_forward"));
  }
  EXPECT_THAT(error_of({forward, "schedule.delayed_fraction=0"}).hint, HasSubstr("after_backward"));
  EXPECT_THAT(error_of({forward, "schedule.delayed_fraction=1.5"}).message, HasSubstr("1.5"));
  EXPECT_THAT(error_of({"schedule.delayed_fracton=0.5"}).message, HasSubstr("delayed_fraction"));
}

TEST(ReadOptimizer, MuonTakesDeepSpeedsNamesAndTheNumbersOfAdamWBesideIt) {
  const OptimizerConfig plain = run_of({"optimizer.type=Muon"}).optimizer;
  EXPECT_EQ(plain.kind, cpu_adam::OptimizerKind::kMuon);
  EXPECT_EQ(plain.hyper.lr, 1e-3);
  EXPECT_EQ(plain.hyper.momentum, 0.95);
  EXPECT_EQ(plain.hyper.weight_decay, 0.1);
  EXPECT_TRUE(plain.hyper.nesterov);
  EXPECT_EQ(plain.beside_lr_factor, 1);
  const OptimizerConfig both =
      run_of({"optimizer.type=muon", "optimizer.params.lr=0.5", "optimizer.params.muon_lr=0.02",
              "optimizer.params.adam_lr=0.001", "optimizer.params.betas=[0.8, 0.95]", "optimizer.params.ns_steps=3",
              "optimizer.params.adjust_lr_fn=match_rms_adamw"})
          .optimizer;
  EXPECT_EQ(both.hyper.lr, 0.02);
  EXPECT_DOUBLE_EQ(both.hyper.lr * both.beside_lr_factor, 0.001);
  EXPECT_EQ(both.hyper.beta2, 0.95);
  EXPECT_EQ(both.hyper.newton_schulz_steps, 3);
  EXPECT_EQ(both.hyper.muon_scale, cpu_adam::MuonScale::kMatchRmsAdamW);
  EXPECT_THAT(error_of({"optimizer.type=Muon", "optimizer.params.muon_lr=0"}).message,
              HasSubstr("learning rate is 0 and AdamW's beside it 0.001"));
  EXPECT_THAT(error_of({"optimizer.type=AdamW", "optimizer.params.muon_lr=0.1"}).message,
              HasSubstr("AdamW has no parameter \"muon_lr\""));
  EXPECT_THAT(error_of({"optimizer.type=Mion"}).hint, HasSubstr("did you mean"));
}

TEST(ReadOptimizer, AdafactorHasPyTorchsNumbers) {
  const OptimizerConfig plain = run_of({"optimizer.type=Adafactor"}).optimizer;
  EXPECT_EQ(plain.hyper.lr, 1e-2);
  EXPECT_EQ(plain.hyper.eps1, 0x1p-23);
  EXPECT_EQ(run_of({"optimizer.type=Adafactor", "optimizer.params.clip_threshold=2"}).optimizer.hyper.clip_threshold,
            2);
  EXPECT_THAT(error_of({"optimizer.type=Adafactor", "optimizer.params.betas=[0.9, 0.9]"}).message,
              HasSubstr("Adafactor has no parameter \"betas\""));
}

TEST(ReadOptimizer, WholeTensorsAreNeitherCutNorUpdatedEarly) {
  for (const std::string type : {"optimizer.type=Muon", "optimizer.type=Adafactor"}) {
    EXPECT_THAT(error_of({type, "tile_bytes=1MiB"}).message, HasSubstr("its tile is a unit"));
    EXPECT_THAT(error_of({type, "schedule.update=in_backward"}).message, HasSubstr("could not be taken back"));
    EXPECT_THAT(error_of({type, "schedule.update=into_forward"}).message, HasSubstr("beside the forward pass"));
    EXPECT_THAT(error_of({type, "schedule.delayed_fraction=0.5"}).message, HasSubstr("beside the forward pass"));
    EXPECT_THAT(error_of({type, "bf16.enabled=true", "state_format=split_bf16"}).message, HasSubstr("is for AdamW"));
    EXPECT_TRUE(run_of({type, "zero_optimization.sub_group_size=100000"}).tile_elements.is_auto());
  }
}

TEST(ReadOptimizer, ATileIsNeverLargerThanAskedFor) {
  // Of 4096 parameters: weights, remainder, moments and, in compact, two scales for 64 of them.
  const auto elements = [](const std::string& format, const std::string& bytes) {
    return run_of({"bf16.enabled=true", "state_format=" + format, "tile_bytes=" + bytes}).tile_elements.value();
  };
  EXPECT_EQ(elements("split", "98303"), 4096);
  EXPECT_EQ(elements("split", "96KiB"), 8192);
  EXPECT_EQ(elements("split_bf16", "64KiB"), 8192);
  EXPECT_EQ(elements("compact", "82431"), 12288);
  EXPECT_EQ(elements("compact", "82432"), 16384);
  EXPECT_EQ(run_of({"bf16.enabled=true", "optimizer.type=Lion", "tile_bytes=64KiB"}).tile_elements.value(), 8192);
}

}  // namespace
}  // namespace headrace::config
