// SPDX-License-Identifier: Apache-2.0
// Activations that leave the device and come back give the bits of those that stay, under every update policy and in
// every kind of memory; the bytes are the plan's, and a disk that fails is a clear error.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "io/backends.h"
#include "tests/integration/engine_course.h"
#include "tests/io/fault_backend.h"

namespace headrace::models {
namespace {

using runtime::ActivationPolicy;
using runtime::OperationKind;
using runtime::UpdatePolicy;

EngineRunOptions on_nvme(ActivationPolicy activations = ActivationPolicy::kNvme) {
  EngineRunOptions options = accumulating();
  options.activations = activations;
  return options;
}

std::size_t count(const std::vector<runtime::Operation>& operations, OperationKind kind) {
  return static_cast<std::size_t>(std::count_if(operations.begin(), operations.end(),
                                                [&](const runtime::Operation& op) { return op.kind == kind; }));
}

TEST(EngineActivations, ClippedAndDroppedStepsGiveTheBitsOfActivationsThatStay) {
  EngineRunOptions kept = accumulating();
  kept.activations = ActivationPolicy::kKeep;
  kept.more_host_bytes = 64 * kMiB;
  const std::vector<double> limits = close_limits(kept);
  const Course want = run_course(kept, limits);
  ASSERT_EQ(want.digests.size(), kSteps);
  for (const ActivationPolicy activations : {ActivationPolicy::kNvme, ActivationPolicy::kBoundaries})
    for (const UpdatePolicy update :
         {UpdatePolicy::kAfterBackward, UpdatePolicy::kInBackward, UpdatePolicy::kIntoForward})
      for (const Variant& variant : variants(on_nvme(activations), update)) {
        if (variant.name == "all at home in memory") continue;  // there is no NVMe
        const std::string what = variant.name + ", " + runtime::update_policy_name(update) +
                                 (activations == ActivationPolicy::kNvme ? ", all" : ", outputs");
        expect_same(run_course(variant.options, limits), want, what);
      }
}

TEST(EngineActivations, HostMemoryBehindACopyGivesTheSameBits) {
  EngineRunOptions kept = accumulating();
  kept.activations = ActivationPolicy::kRecompute;
  const std::vector<double> limits(3, 1.0);
  const Course want = run_course(kept, limits, 0);
  for (const UpdatePolicy update :
       {UpdatePolicy::kAfterBackward, UpdatePolicy::kInBackward, UpdatePolicy::kIntoForward})
    for (const Bytes more : {Bytes{0}, 64 * kMiB}) {
      EngineRunOptions options = on_nvme(ActivationPolicy::kHost);
      options.update = update;
      options.force_copies = true;
      options.more_host_bytes = more;
      expect_same(run_course(options, limits, 0), want, runtime::update_policy_name(update));
    }
}

TEST(EngineActivations, WeightsThatStayOnTheDeviceGiveTheSameBits) {
  const std::vector<double> limits = close_limits(accumulating());
  const Course want = run_course(accumulating(), limits);
  for (const UpdatePolicy update : {UpdatePolicy::kAfterBackward, UpdatePolicy::kIntoForward})
    for (const Bytes more : {Bytes{0}, 300 * kKiB, 64 * kMiB}) {
      EngineRunOptions options = accumulating();
      options.update = update;
      options.force_copies = options.separate_device = true;
      options.more_host_bytes = more;
      expect_same(run_course(options, limits), want,
                  std::string(runtime::update_policy_name(update)) + ", " + std::to_string(more));
    }
}

TEST(EngineActivations, OtherGroupSizesAndLateLanesToo) {
  for (const std::int32_t size : {1, 3, 4})
    for (const bool copies : {false, true}) {
      EngineRunOptions options = accumulating();
      options.group_size = size;
      const std::vector<double> limits(3, 1.0);
      const Course want = run_course(options, limits, 0);
      options.activations = ActivationPolicy::kNvme;
      options.force_copies = copies;
      options.executor.lane_delay_us = 300;
      options.executor.seed = static_cast<std::uint64_t>(size);
      expect_same(run_course(options, limits, 0), want, "group size " + std::to_string(size));
    }
}

TEST(EngineActivations, BytesAreThoseOfThePlan) {
  for (const ActivationPolicy activations : {ActivationPolicy::kNvme, ActivationPolicy::kBoundaries}) {
    const TemporaryFolder folder;
    const auto run = EngineRun::start(on_nvme(activations), folder.path());
    ASSERT_NE(run, nullptr);
    const runtime::Plan& plan = run->engine().plan();
    EXPECT_GT(count(plan.operations, OperationKind::kReadActivation), 0U);
    EXPECT_GT(plan.activation_read_bytes, 0);
    EXPECT_EQ(plan.activation_read_bytes, plan.activation_write_bytes);
    const auto step = run->step(1, 1.0);
    ASSERT_TRUE(step.ok()) << step.error().to_string();
    EXPECT_EQ(step->outcome.nvme_read_bytes, plan.read_bytes_per_step);
    EXPECT_NEAR(static_cast<double>(step->outcome.nvme_write_bytes), static_cast<double>(plan.write_bytes_per_step),
                0.01 * static_cast<double>(plan.write_bytes_per_step));
  }
}

TEST(EngineActivations, ASmallerBudgetIsEnoughForLongGroups) {
  const auto smallest = [](ActivationPolicy activations) {
    EngineRunOptions options = accumulating();
    options.group_size = 4;
    options.activations = activations;
    const TemporaryFolder folder;
    const auto run = EngineRun::start(options, folder.path());
    return run == nullptr ? Bytes{0} : run->engine().plan().host_peak_bytes;
  };
  const Bytes outputs = smallest(ActivationPolicy::kBoundaries);
  EXPECT_LT(outputs, smallest(ActivationPolicy::kRecompute));
  EXPECT_EQ(smallest(ActivationPolicy::kAuto), outputs);
}

// A request of the second step's activations fails; the first step stays.
void expect_named(bool write, const std::string& operation) {
  const TemporaryFolder folder;
  const auto plan = std::make_shared<io::FaultPlan>();
  const io::BackendSeam seam = io::fault_seam(io::IoBackendChoice::kThreads, plan);
  EngineRunOptions options = on_nvme();
  options.volume.seam = &seam;
  auto run = EngineRun::start(options, folder.path());
  ASSERT_NE(run, nullptr);
  ASSERT_TRUE(run->step(1, 1.0).ok());
  const std::string file = folder.path() + "/headrace-test-spill.volume";
  struct stat wanted {};
  ASSERT_EQ(::stat(file.c_str(), &wanted), 0);
  plan->arm([&](const io::IoRequest& request, std::uint64_t) {
    struct stat found {};
    const bool is_write = request.operation == io::IoOperation::kWrite;
    const bool hit = is_write == write && ::fstat(request.fd, &found) == 0 && found.st_ino == wanted.st_ino;
    return hit ? io::Fault{io::Fault::Kind::kError, EIO, 0} : io::Fault{};
  });
  const auto failed = run->step(2, 1.0);
  ASSERT_FALSE(failed.ok());
  const std::string message = failed.error().to_string();
  EXPECT_EQ(failed.error().code, ErrorCode::kIo) << message;
  for (const std::string& word : {operation, std::string("unit "), std::string("micro-batch "), file,
                                  std::string("Input/output error"), std::string("offset")})
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  plan->arm({});
  run.reset();
  options.volume.seam = nullptr;
  run = EngineRun::start(options, folder.path(), runtime::StartMode::kResume);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->engine().committed().step, 1U);
  ASSERT_TRUE(run->step(2, 1.0).ok());
  const auto digest = run->digest();
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(*digest, run_course(accumulating(), {1.0, 1.0}, 0).digests.back());
}

TEST(EngineActivations, AWriteThatFailsIsNamedAndTheLastStepStays) { expect_named(true, "write_activation"); }
TEST(EngineActivations, AReadThatFailsIsNamedAndTheLastStepStays) { expect_named(false, "read_activation"); }

}  // namespace
}  // namespace headrace::models
