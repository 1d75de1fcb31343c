// SPDX-License-Identifier: Apache-2.0
// The choice of a backend when some are refused, and what the user reads about it.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "fault_backend.h"
#include "io/backends.h"
#include "io/volume_file.h"
#include "io_test_support.h"

namespace headrace::io {
namespace {

BackendCandidate refused(int error_number) {
  return {"io_uring", [error_number]() -> Result<std::unique_ptr<IoBackend>> { return uring_refusal(error_number); }};
}
BackendCandidate working() {
  return {"threads", [] { return make_threads_backend(16); }, false, "at more CPU time per byte"};
}
// Sets up and writes, then spoils every read.
BackendCandidate spoiled(Fault fault) {
  return {"io_uring", [fault]() -> Result<std::unique_ptr<IoBackend>> {
            auto plan = std::make_shared<FaultPlan>();
            plan->arm([fault](const IoRequest& request, std::uint64_t) {
              return request.operation == IoOperation::kRead ? fault : Fault{};
            });
            HEADRACE_TRY(std::unique_ptr<IoBackend> inner, make_threads_backend(16));
            return std::unique_ptr<IoBackend>(std::make_unique<FaultBackend>(std::move(inner), plan));
          }};
}

class ChooseBackend : public ::testing::Test {
 protected:
  // The name of what was chosen; `log_` is what was said.
  std::string choose(const std::vector<BackendCandidate>& candidates) {
    auto file = make_nameless_file(folder_.path());
    if (!file.ok()) return file.error().to_string();
    ::testing::internal::CaptureStderr();
    const BackendTrial trial{file->get(), 65'536, 4096, folder_.path(), direct_};
    auto backend = choose_backend(candidates, {&trial, 1});
    log_ = ::testing::internal::GetCapturedStderr();
    if (!backend.ok()) return backend.error().to_string();
    return (*backend)->capabilities().name;
  }
  [[nodiscard]] auto lines() const { return std::count(log_.begin(), log_.end(), '\n'); }

  TestFolder folder_;
  bool direct_ = true;
  std::string log_;
};

TEST_F(ChooseBackend, ARefusedRingIsReplacedWithOneLineOfReasonEffectAndFix) {
  const std::vector<std::pair<int, std::string>> refusals{
      {EPERM, "seccomp"}, {ENOSYS, "kernel"}, {ENOMEM, "ulimit -l unlimited"}, {EINVAL, "headrace.io.backend"}};
  for (const auto& [error_number, fix] : refusals) {
    EXPECT_EQ(choose({refused(error_number), working()}), "threads");
    EXPECT_EQ(lines(), 1) << log_;
    EXPECT_NE(log_.find(errno_text(error_number)), std::string::npos) << log_;
    EXPECT_NE(log_.find("CPU time"), std::string::npos) << log_;
    EXPECT_NE(log_.find(fix), std::string::npos) << log_;
  }
}

TEST_F(ChooseBackend, TheOrderIsRingThenNativeThenThreads) {
  const auto candidates = backend_candidates(IoBackendChoice::kAuto);
  std::vector<std::string> names;
  for (const BackendCandidate& candidate : candidates) names.emplace_back(candidate.name);
  if (names.size() == 2) names.insert(names.begin(), "io_uring");  // built without it
  EXPECT_EQ(names, (std::vector<std::string>{"io_uring", "libaio", "threads"}));
}

TEST_F(ChooseBackend, ARefusedNativeContextSaysHowMuchOfTheSystemsLimitIsUsed) {
  const BackendCandidate used_up{"libaio", []() -> Result<std::unique_ptr<IoBackend>> { return aio_refusal(EAGAIN); }};
  EXPECT_EQ(choose({refused(EPERM), used_up, working()}), "threads");
  EXPECT_EQ(lines(), 2) << log_;
  EXPECT_NE(log_.find("fs.aio-nr is "), std::string::npos) << log_;
  EXPECT_NE(log_.find("sysctl -w fs.aio-max-nr="), std::string::npos) << log_;
}

TEST_F(ChooseBackend, NativeIoIsPassedOverWhereItWouldBlock) {
  direct_ = false;
  auto candidates = backend_candidates(IoBackendChoice::kAuto);
  candidates.erase(candidates.begin(), candidates.end() - 2);
  EXPECT_EQ(choose(candidates), "threads");
  EXPECT_NE(log_.find("direct I/O only"), std::string::npos) << log_;
  EXPECT_EQ(choose(backend_candidates(IoBackendChoice::kLibaio)), "libaio") << "who asks for it gets it";
}

TEST_F(ChooseBackend, EachFileHasToWork) {
  auto good = make_nameless_file(folder_.path());
  ASSERT_OK(good);
  const UniqueFd read_only(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const BackendTrial trials[] = {{good->get(), 65'536, 4096, "first", false},
                                 {read_only.get(), 0, 4096, "second", false}};
  const auto backend = choose_backend(std::vector{working()}, trials);
  ASSERT_FALSE(backend.ok());
  EXPECT_NE(backend.error().message.find("second"), std::string::npos) << backend.error().message;
}

TEST_F(ChooseBackend, AWorkingOneIsTakenWithoutAWord) {
  EXPECT_EQ(choose({working()}), "threads");
  EXPECT_EQ(log_, "");
}

TEST_F(ChooseBackend, ARingThatSetsUpAndThenRefusesIsReplacedToo) {
  EXPECT_EQ(choose({spoiled({Fault::Kind::kError, EOPNOTSUPP, 0}), working()}), "threads");
  EXPECT_EQ(lines(), 1) << log_;
}

TEST_F(ChooseBackend, ARingThatMovesOtherBytesIsReplacedToo) {
  EXPECT_EQ(choose({spoiled({Fault::Kind::kFlip, 0, 0}), working()}), "threads");
  EXPECT_NE(log_.find("came back different"), std::string::npos) << log_;
}

TEST_F(ChooseBackend, ARingThatMovesTooLittleIsReplacedToo) {
  EXPECT_EQ(choose({spoiled({Fault::Kind::kShort, 0, 4096}), working()}), "threads");
  EXPECT_NE(log_.find("4096 of 8192"), std::string::npos) << log_;
}

TEST_F(ChooseBackend, NoneThatWorksIsAnErrorWithTheFix) {
  const std::string error = choose({refused(EPERM)});
  EXPECT_NE(error.find("Operation not permitted"), std::string::npos) << error;
  EXPECT_NE(error.find("seccomp"), std::string::npos) << error;
}

TEST_F(ChooseBackend, AVolumeSetRunsOnWhatIsLeft) {
  const BackendSeam seam{{refused(EPERM), working()}};
  VolumeOptions options;
  options.seam = &seam;
  ::testing::internal::CaptureStderr();
  auto set = VolumeSet::create(folder_.paths(), "run", small_geometry(), options);
  log_ = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(set);
  EXPECT_EQ((*set)->describe().substr(0, 7), "threads");
  Payload out(64 * kKiB, (*set)->payload_alignment());
  Payload in(64 * kKiB, (*set)->payload_alignment());
  const TileTransfer write{{0, 0, 0}, {1, 0}, out.fill(1).data()};
  const TileTransfer read{{0, 0, 0}, {1, 0}, in.data()};
  ASSERT_OK((*set)->write({&write, 1}).wait(soon()));
  ASSERT_OK((*set)->read({&read, 1}).wait(soon()));
  EXPECT_TRUE(in.equals(out, 64 * kKiB));
}

}  // namespace
}  // namespace headrace::io
