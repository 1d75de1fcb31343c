// SPDX-License-Identifier: Apache-2.0
// What the fault tests build their worlds from: children in namespaces, system calls that are refused, loop devices,
// disks served by nbdkit. Everything is undone when its owner goes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/io/io_test_support.h"

namespace headrace::fault {

// Runs `body` in a forked child and returns what it returned; "killed by signal N" when it died. Fork before threads.
inline std::string in_child(const std::function<std::string()>& body) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return "pipe failed";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    [[maybe_unused]] const ssize_t written = ::write(pipe[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? "killed by signal " + std::to_string(WTERMSIG(status)) : text;
}

// What was logged while `body` ran.
inline std::string log_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

// From now on this process and its children get `error_number` from a system call; with `above` ≥ 0 only where its
// first argument is larger.
inline bool refuse_system_call(int number, int error_number, std::int64_t above = -1) {
  const auto nr = static_cast<std::uint32_t>(number);
  const auto limit = static_cast<std::uint32_t>(std::max<std::int64_t>(above, 0));
  sock_filter filter[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
                          {BPF_JMP | BPF_JEQ | BPF_K, 0, static_cast<std::uint8_t>(above >= 0 ? 3 : 1), nr},
                          {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, args)},
                          {BPF_JMP | BPF_JGT | BPF_K, 0, 1, limit},
                          {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error_number)},
                          {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  if (above < 0) {
    filter[2] = filter[4];
    filter[3] = filter[5];
  }
  const sock_fprog program{static_cast<unsigned short>(above >= 0 ? 6 : 4), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// A mount namespace of this process alone: what it mounts goes with it. For children.
inline bool own_mounts() {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

inline bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;  // NOLINT
}

// A file as a block device. Not valid where the system has none to give.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file, unsigned block_bytes = 512, bool read_only = false) {
    const io::UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    const io::UniqueFd backing(::open(file.c_str(), (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC));
    if (!control.valid() || !backing.valid()) return;
    for (int attempt = 0; attempt < 20; ++attempt) {  // another process may take the same number
      const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
      if (number < 0) return;
      const std::string path = "/dev/loop" + std::to_string(number);
      const io::UniqueFd device(::open(path.c_str(), O_RDWR | O_CLOEXEC));
      loop_config config{};
      config.fd = static_cast<std::uint32_t>(backing.get());
      config.block_size = block_bytes;
      config.info.lo_flags = read_only ? LO_FLAGS_READ_ONLY : 0;
      if (!device.valid() || ::ioctl(device.get(), LOOP_CONFIGURE, &config) != 0) {
        if (device.valid() && errno == EBUSY) continue;
        return;
      }
      path_ = path;
      return;
    }
  }
  ~LoopDevice() {
    if (!valid()) return;
    const io::UniqueFd device(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (device.valid()) ::ioctl(device.get(), LOOP_CLR_FD, 0);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;
  [[nodiscard]] bool valid() const { return !path_.empty(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A folder served through FUSE by serve_without_direct_io, at `mount`. Not valid where this system has no FUSE for us.
class FuseMount {
 public:
  FuseMount(const std::string& folder, std::string mount, bool refuses_later) : mount_(std::move(mount)) {
    const std::string program = std::filesystem::canonical("/proc/self/exe").parent_path() / "serve_without_direct_io";
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) return;
    server_ = ::fork();
    if (server_ == 0) {
      ::dup2(pipe[1], STDOUT_FILENO);
      ::execl(program.c_str(), program.c_str(), folder.c_str(), mount_.c_str(), refuses_later ? "later" : nullptr,
              nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    char line[16] = {};
    valid_ = ::read(pipe[0], line, sizeof line - 1) > 0 && std::string(line) == "ready\n";
    ::close(pipe[0]);
  }
  ~FuseMount() {
    if (server_ <= 0) return;
    ::kill(server_, SIGTERM);
    ::waitpid(server_, nullptr, 0);
    ::umount2(mount_.c_str(), MNT_DETACH);
  }
  FuseMount(const FuseMount&) = delete;
  FuseMount& operator=(const FuseMount&) = delete;
  [[nodiscard]] bool valid() const { return valid_; }
  // Direct I/O, answered until now, is refused as soon as the server has seen the signal.
  void refuse_now() const { ::kill(server_, SIGUSR1); }

 private:
  std::string mount_;
  pid_t server_ = -1;
  bool valid_ = false;
};

inline std::string make_sparse_file(const std::string& path, Bytes bytes) {
  const io::UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (::ftruncate(file.get(), bytes) != 0) ADD_FAILURE() << path << ": " << io::errno_text(errno);
  return path;
}

// A volume set of a few tiles with one version written, and reading it back; errors as text, "ok" when right.
class Tiles {
 public:
  static constexpr std::int64_t kTiles = 8;
  static constexpr Bytes kTileBytes = 256 * kKiB;
  static io::VolumeGeometry geometry() { return io::small_geometry(kTiles, kTileBytes); }
  explicit Tiles(io::VolumeSet& set)
      : set_(set), out_(kTileBytes, set.payload_alignment()), in_(kTileBytes, set.payload_alignment()) {}
  std::string write(std::uint64_t version) { return move(version, true); }
  std::string read(std::uint64_t version) { return move(version, false); }
  std::string round_trip(std::uint64_t version) {
    if (std::string text = write(version); text != "ok") return text;
    return read(version);
  }

 private:
  std::string move(std::uint64_t version, bool write) {
    for (std::int64_t tile = 0; tile < kTiles; ++tile) {
      out_.fill(version * 100 + static_cast<std::uint64_t>(tile));
      const io::TileTransfer transfer{
          {0, tile, static_cast<std::int32_t>(version % 2)}, {version, 0}, write ? out_.data() : in_.data()};
      const auto done = (write ? set_.write({&transfer, 1}) : set_.read({&transfer, 1})).wait(io::soon());
      if (!done.ok()) return done.error().to_string();
      if (!write && !in_.equals(out_, kTileBytes)) return "other bytes";
    }
    return "ok";
  }
  io::VolumeSet& set_;
  io::Payload out_;
  io::Payload in_;
};

// Creates, writes, reads and commits one version; describe() when all is well, else the error.
inline std::string use_volume(const std::vector<std::string>& paths, const io::VolumeOptions& options = {},
                              const std::string& run_id = "run") {
  auto set = io::VolumeSet::create(paths, run_id, Tiles::geometry(), options);
  if (!set.ok()) return set.error().to_string();
  Tiles tiles(**set);
  if (const std::string text = tiles.round_trip(1); text != "ok") return text;
  if (auto written = (*set)->write_record({1, {std::byte{1}}}); !written.ok()) return written.error().to_string();
  return (*set)->describe();
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace headrace::fault
