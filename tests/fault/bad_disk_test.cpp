// SPDX-License-Identifier: Apache-2.0
// Disks that fail, are slow or vanish, served by nbdkit through FUSE to a loop device: right bytes or a clear error.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <fstream>

#include "fault_support.h"

namespace headrace::fault {
namespace {

using io::text_of;
using io::VolumeSet;

// nbdkit with filters → nbdfuse → a file → a loop device.
class ServedDisk {
 public:
  ServedDisk(const std::string& folder, const std::string& filters, const std::string& settings) {
    socket_ = std::filesystem::absolute(folder) / "socket";
    file_ = std::filesystem::absolute(folder) / "disk";
    make_sparse_file(file_, 0);
    const std::string pid = std::filesystem::absolute(folder) / "pid";
    const std::string serve =
        "nbdkit -U " + socket_ + " -P " + pid + " " + filters + " memory 64M " + settings + " > /dev/null 2>&1";
    if (std::system(serve.c_str()) != 0) return;      // NOLINT: it goes to the background when it is ready
    for (int i = 0; i < 1000 && server_ <= 0; ++i) {  // it writes its number when it is in the background already
      std::ifstream(pid) >> server_;
      ::poll(nullptr, 0, 1);
    }
    fuse_ = ::fork();
    if (fuse_ == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 1);
      ::dup2(null, 2);
      ::execlp("nbdfuse", "nbdfuse", file_.c_str(), "--unix", socket_.c_str(), nullptr);
      ::_exit(127);
    }
    for (int i = 0; i < 1000 && std::filesystem::file_size(file_) == 0; ++i) ::usleep(10'000);
    device_ = std::make_unique<LoopDevice>(file_);
  }
  ~ServedDisk() {
    device_.reset();
    kill_server();
    ::umount2(file_.c_str(), MNT_DETACH);
    if (fuse_ > 0) {
      ::kill(fuse_, SIGKILL);
      ::waitpid(fuse_, nullptr, 0);
    }
  }
  ServedDisk(const ServedDisk&) = delete;
  ServedDisk& operator=(const ServedDisk&) = delete;
  // Returns when it is gone: a process that is being killed may still answer.
  void kill_server() {
    if (server_ <= 0) return;
    ::kill(std::exchange(server_, 0), SIGKILL);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (listens() && std::chrono::steady_clock::now() < deadline) ::poll(nullptr, 0, 1);
  }
  // The loop device reads its file through the page cache, direct I/O above it or not.
  void forget_cached() const {
    const io::UniqueFd file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  [[nodiscard]] bool valid() const { return device_ != nullptr && device_->valid(); }
  [[nodiscard]] std::vector<std::string> paths() const { return {device_->path()}; }

 private:
  [[nodiscard]] bool listens() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const io::UniqueFd caller(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return ::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }

  std::string socket_;
  std::string file_;
  pid_t server_ = 0;
  pid_t fuse_ = -1;
  std::unique_ptr<LoopDevice> device_;
};

class BadDisk : public ::testing::TestWithParam<io::IoBackendChoice> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "loop devices need root";
    if (!has_program("nbdkit") || !has_program("nbdfuse")) GTEST_SKIP() << "nbdkit or nbdfuse is not installed";
  }
  void serve(const std::string& filters, const std::string& settings) {
    disk_ = std::make_unique<ServedDisk>(folder_.path(), filters, settings);
    if (!disk_->valid()) GTEST_SKIP() << "this system serves no disk through FUSE";
    options_.backend = GetParam();
    options_.deadline = std::chrono::seconds(20);
    auto set = VolumeSet::create(disk_->paths(), "run", Tiles::geometry(), options_);
    ASSERT_OK(set);
    set_ = std::move(*set);
  }

  io::TestFolder folder_;
  io::VolumeOptions options_;
  std::unique_ptr<ServedDisk> disk_;
  std::unique_ptr<VolumeSet> set_;  // closed before the disk goes
};

TEST_P(BadDisk, ErrorsOfTheDeviceAreErrorsWithItsNameAndHealWithIt) {
  const std::string trigger = std::filesystem::absolute(folder_.path()) / "fail";
  serve("--filter=error", "error=EIO error-rate=100% error-file=" + trigger);
  if (IsSkipped() || HasFatalFailure()) return;
  Tiles tiles(*set_);
  ASSERT_EQ(tiles.round_trip(1), "ok");
  make_sparse_file(trigger, 0);
  disk_->forget_cached();
  for (const std::string& error : {tiles.write(2), tiles.read(1)}) {
    EXPECT_TRUE(contains(error, "Input/output error")) << error;
    EXPECT_TRUE(contains(error, disk_->paths().front())) << error;
    EXPECT_TRUE(contains(error, "stream 0 tile 0")) << error;
  }
  const auto record = set_->write_record({1, {}});
  EXPECT_FALSE(record.ok());
  std::filesystem::remove(trigger);
  EXPECT_EQ(tiles.round_trip(2), "ok");
  EXPECT_EQ(tiles.read(1), "ok") << "what was written before is whole";
}

TEST_P(BadDisk, ASlowOneGivesTheRightBytesAndALine) {
  options_.stall_report = std::chrono::milliseconds(40);
  serve("--filter=delay", "rdelay=100ms wdelay=100ms");
  if (IsSkipped() || HasFatalFailure()) return;
  std::string outcome;
  const std::string log = log_of([&] { outcome = Tiles(*set_).round_trip(1); });
  EXPECT_EQ(outcome, "ok");
  EXPECT_TRUE(contains(log, "no completion for") && contains(log, disk_->paths().front())) << log;
}

TEST_P(BadDisk, OneThatVanishesIsAnErrorAndNoHang) {
  serve("", "");
  if (IsSkipped() || HasFatalFailure()) return;
  Tiles tiles(*set_);
  ASSERT_EQ(tiles.round_trip(1), "ok");
  disk_->kill_server();
  const std::string error = tiles.write(2);
  EXPECT_NE(error, "ok");
  EXPECT_TRUE(contains(error, disk_->paths().front())) << error;
  EXPECT_FALSE(set_->write_record({1, {}}).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, BadDisk,
                         ::testing::Values(io::IoBackendChoice::kUring, io::IoBackendChoice::kLibaio,
                                           io::IoBackendChoice::kThreads),
                         [](const auto& suite) {
                           return suite.param == io::IoBackendChoice::kUring    ? "uring"
                                  : suite.param == io::IoBackendChoice::kLibaio ? "libaio"
                                                                                : "threads";
                         });

}  // namespace
}  // namespace headrace::fault
