// SPDX-License-Identifier: Apache-2.0
// Kernels, containers and file systems that refuse something: the run goes on another way with one clear line, or ends
// with a clear error. Never a hang, never silence.
#include <sys/resource.h>

#include "core/file.h"
#include "core/host_slab.h"
#include "fault_support.h"
#include "io/backends.h"
#include "io/layout.h"
#include "io/volume_file.h"

namespace headrace::fault {
namespace {

using io::IoBackendChoice;
using io::text_of;
using io::VolumeSet;

class Environment : public ::testing::Test {
 protected:
  // Log and outcome of using a volume in a child that `prepare` has set up.
  std::string use_after(const std::function<bool()>& prepare, const io::VolumeOptions& options = {}) {
    return in_child([&] {
      if (!prepare()) return std::string("cannot be set up here");
      std::string used;
      const std::string log = log_of([&] { used = use_volume(folder_.paths(), options); });
      return log + used;
    });
  }
  io::TestFolder folder_;
};

#define SKIP_WHERE_REFUSED(text) \
  if (contains(text, "cannot be set up here")) GTEST_SKIP() << "this system forbids the set-up"

TEST_F(Environment, ARingRefusedByAContainersFilterIsReplacedByNativeIo) {
  for (const int error_number : {EPERM, ENOSYS, ENOMEM}) {
    const io::TestFolder folder;
    const std::string text = in_child([&] {
      if (!refuse_system_call(SYS_io_uring_setup, error_number)) return std::string("cannot be set up here");
      std::string used;
      const std::string log = log_of([&] { used = use_volume(folder.paths()); });
      return log + used;
    });
    SKIP_WHERE_REFUSED(text);
    EXPECT_TRUE(contains(text, "io_uring is refused")) << text;
    EXPECT_TRUE(contains(text, io::errno_text(error_number))) << text;
    EXPECT_TRUE(contains(text, "to fix: ")) << text;
    EXPECT_TRUE(contains(text, "libaio, direct I/O") || contains(text, "threads, buffered I/O")) << text;
  }
}

TEST_F(Environment, WithoutRingAndNativeIoThreadsDoTheWork) {
  const std::string text = use_after(
      [] { return refuse_system_call(SYS_io_uring_setup, EPERM) && refuse_system_call(SYS_io_setup, EAGAIN); });
  SKIP_WHERE_REFUSED(text);
  EXPECT_TRUE(contains(text, "seccomp")) << text;
  EXPECT_TRUE(contains(text, "fs.aio-nr is ")) << text;
  EXPECT_TRUE(contains(text, "sysctl -w fs.aio-max-nr")) << text;
  EXPECT_TRUE(contains(text, "threads, ")) << text;
}

TEST_F(Environment, NativeIoTakesWhatIsLeftOfTheSystemsLimit) {
  io::VolumeOptions options;
  options.backend = IoBackendChoice::kLibaio;
  const std::string text = use_after([] { return refuse_system_call(SYS_io_setup, EAGAIN, 40); }, options);
  SKIP_WHERE_REFUSED(text);
  EXPECT_TRUE(contains(text, "libaio holds 32 requests at a time instead of 256")) << text;
  EXPECT_TRUE(contains(text, "libaio, ")) << text;
}

TEST_F(Environment, ARingSwitchedOffByTheAdministratorNamesTheSwitch) {
  const std::string setting = folder_.path() + "/disabled";
  ASSERT_OK(write_file_atomically(setting, "2\n"));
  const std::string text = use_after([&] {
    return own_mounts() &&
           ::mount(setting.c_str(), "/proc/sys/kernel/io_uring_disabled", nullptr, MS_BIND, nullptr) == 0 &&
           refuse_system_call(SYS_io_uring_setup, EPERM);
  });
  SKIP_WHERE_REFUSED(text);
  EXPECT_TRUE(contains(text, "sysctl -w kernel.io_uring_disabled=0")) << text;
}

TEST_F(Environment, NoLockedMemoryIsNoFailure) {
  const std::string text = use_after([this] {
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_MEMLOCK, &none) != 0) return false;
    if (::geteuid() != 0) return true;
    return ::chown(folder_.path().c_str(), 65'534, 65'534) == 0 && ::setresuid(65'534, 65'534, 65'534) == 0;
  });
  EXPECT_TRUE(contains(text, "1 volume in ")) << text;
}

// The ring's kernel threads count against the limit on processes. Where none can be made the owner moves the bytes.
TEST_F(Environment, ARingThatGetsNoThreadsOfItsOwnMovesTheSameBytes) {
  const std::string text = in_child([this]() -> std::string {
    if (::geteuid() != 0) return "cannot be set up here";
    auto file = io::make_nameless_file(folder_.path());
    auto backend = io::make_uring_backend(16);
    if (!file.ok() || !backend.ok()) return "cannot be set up here";
    const HostSlab memory = HostSlab::allocate(2 * kMiB).value();
    const std::span<std::byte> written = memory.bytes().first(kMiB), read = memory.bytes().last(kMiB);
    std::fill(written.begin(), written.end(), std::byte{'w'});
    const rlimit one{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &one) != 0 || ::setresuid(65'534, 65'534, 65'534) != 0)
      return "cannot be set up here";
    const auto move = [&](io::IoOperation operation, std::span<std::byte> bytes) {
      const iovec segment{bytes.data(), bytes.size()};
      const io::IoRequest request{operation, file->get(), 0, &segment, 1, 7};
      io::IoCompletion done;
      const auto accepted = (*backend)->submit({&request, 1});
      if (!accepted.ok() || *accepted != 1) return std::string("not accepted");
      const auto reaped = (*backend)->reap({&done, 1}, 1, std::chrono::steady_clock::now() + std::chrono::seconds(30));
      if (!reaped.ok() || *reaped != 1) return std::string("no answer");
      return done.error_number != 0 ? io::errno_text(done.error_number) : std::to_string(done.bytes);
    };
    const std::string wrote = move(io::IoOperation::kWrite, written), got = move(io::IoOperation::kRead, read);
    return wrote + ", " + got + (std::ranges::equal(read, written) ? ", the same bytes" : ", other bytes");
  });
  SKIP_WHERE_REFUSED(text);
  EXPECT_EQ(text, "1048576, 1048576, the same bytes");
}

TEST_F(Environment, WithoutDirectIoModeDirectRefusesAndModeAutoSaysSo) {
  const std::string mount = folder_.make_folder("mount");
  const auto on_tmpfs = [&](io::IoMode mode) {
    return in_child([&] {
      if (!own_mounts() || ::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=64m") != 0)
        return std::string("cannot be set up here");
      io::VolumeOptions options;
      options.mode = mode;
      std::string used;
      const std::string log = log_of([&] { used = use_volume({mount}, options); });
      return log + used;
    });
  };
  const std::string direct = on_tmpfs(io::IoMode::kDirect);
  SKIP_WHERE_REFUSED(direct);
  EXPECT_TRUE(contains(direct, "direct I/O is not possible in " + mount)) << direct;
  EXPECT_TRUE(contains(direct, "headrace.io.mode")) << direct;
  const std::string automatic = on_tmpfs(io::IoMode::kAuto);
  EXPECT_TRUE(contains(automatic, "direct I/O is not used")) << automatic;
  EXPECT_TRUE(contains(automatic, "buffered I/O, 1 volume")) << automatic;
  EXPECT_FALSE(contains(on_tmpfs(io::IoMode::kBuffered), "warning")) << "who asks for it is not warned";
}

// A real mount whose server answers direct reads and writes with EINVAL.
TEST_F(Environment, AFuseMountThatRefusesDirectIoIsUsedThroughThePageCacheAndSaysSo) {
  const std::string mount = folder_.make_folder("mount");
  const FuseMount served(folder_.make_folder("behind"), mount, false);
  if (!served.valid()) GTEST_SKIP() << "this system serves nothing through FUSE";
  for (const IoBackendChoice backend : {IoBackendChoice::kAuto, IoBackendChoice::kUring, IoBackendChoice::kThreads}) {
    io::VolumeOptions options;
    options.backend = backend;
    std::string used;
    const std::string log = log_of([&] { used = use_volume({mount}, options); });
    EXPECT_TRUE(contains(log, mount + ": direct I/O is not used (direct I/O fails there: Invalid argument")) << log;
    EXPECT_TRUE(contains(used, "buffered I/O, 1 volume")) << used;
    options.mode = io::IoMode::kDirect;
    const std::string direct = use_volume({mount}, options, "other");
    EXPECT_TRUE(contains(direct, "direct I/O is not possible in " + mount)) << direct;
    EXPECT_TRUE(contains(direct, "headrace.io.mode")) << direct;
    ASSERT_OK(io::remove_volumes({mount}, "run"));
  }
}

// One that accepts direct I/O at the start and refuses it later, on every backend.
TEST_F(Environment, AFuseMountThatBeginsToRefuseDirectIoMovesItsFileToThePageCache) {
  for (const IoBackendChoice backend : {IoBackendChoice::kUring, IoBackendChoice::kLibaio, IoBackendChoice::kThreads}) {
    const io::TestFolder folder;
    const std::string mount = folder.make_folder("mount");
    const FuseMount served(folder.make_folder("behind"), mount, true);
    if (!served.valid()) GTEST_SKIP() << "this system serves nothing through FUSE";
    io::VolumeOptions options;
    options.backend = backend;
    const auto set = VolumeSet::create({mount}, "run", Tiles::geometry(), options);
    ASSERT_OK(set);
    EXPECT_TRUE(contains((*set)->describe(), ", direct I/O")) << (*set)->describe();
    Tiles tiles(**set);
    EXPECT_EQ(tiles.round_trip(1), "ok");
    served.refuse_now();
    std::string outcome;
    const std::string log = log_of([&] { outcome = tiles.round_trip(2); });
    EXPECT_EQ(outcome, "ok");
    EXPECT_TRUE(contains(log, "headrace-run.volume") && contains(log, "page cache")) << log;
    EXPECT_TRUE(contains((*set)->describe(), "buffered I/O")) << (*set)->describe();
    EXPECT_EQ(tiles.read(1), "ok") << "what went past the page cache before";
  }
}

// A sparse volume stands for a file system that gives no real blocks: the disk fills up in mid-write.
TEST_F(Environment, ADiskThatFillsUpInMidWriteIsAnErrorAndTheTransferCanBeTriedAgain) {
  const std::string mount = folder_.make_folder("mount");
  for (const IoBackendChoice backend : {IoBackendChoice::kUring, IoBackendChoice::kLibaio, IoBackendChoice::kThreads}) {
    const std::string text = in_child([&]() -> std::string {
      if (!own_mounts() || ::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=5m") != 0) return "cannot be set up here";
      const io::VolumeGeometry geometry = io::small_geometry(16, kMiB);
      const auto layout = io::VolumeLayout::make(geometry, 1, 4096);
      const io::Superblock superblock{"run", 1, 0, 4096, layout->file_bytes(0), geometry, 1, 0, {}};
      const std::string file = mount + "/headrace-run.volume";
      make_sparse_file(file, superblock.file_bytes);
      const std::string filler = mount + "/filler";
      {
        const io::UniqueFd volume(::open(file.c_str(), O_RDWR));
        if (io::write_fully(volume.get(), *io::encode_superblock(superblock), 0) != 0) return "no superblock";
        const io::UniqueFd other(::open(filler.c_str(), O_CREAT | O_RDWR, 0600));
        const std::vector<std::byte> bytes(3 << 20, std::byte{1});
        if (io::write_fully(other.get(), bytes, 0) != 0) return "no filler";
      }
      io::VolumeOptions options;
      options.backend = backend;
      options.mode = io::IoMode::kBuffered;
      options.block_bytes = 256 * kKiB;
      auto set = VolumeSet::open({mount}, "run", options);
      if (!set.ok()) return set.error().to_string();
      io::Payload out(kMiB, (*set)->payload_alignment());
      io::Payload in(kMiB, (*set)->payload_alignment());
      std::string errors;
      for (std::int64_t tile = 0; tile < 3 && errors.empty(); ++tile) {
        const io::TileTransfer one{{0, tile, 0}, {1, 0}, out.fill(static_cast<std::uint64_t>(tile)).data()};
        if (auto done = (*set)->write({&one, 1}).wait(io::soon()); !done.ok()) errors += done.error().to_string();
      }
      ::unlink(filler.c_str());
      const io::TileTransfer write{{0, 2, 0}, {1, 0}, out.fill(9).data()};
      const io::TileTransfer read{{0, 2, 0}, {1, 0}, in.data()};
      if (auto done = (*set)->write({&write, 1}).wait(io::soon()); !done.ok())
        return "again: " + done.error().to_string();
      if (auto done = (*set)->read({&read, 1}).wait(io::soon()); !done.ok()) return "read: " + done.error().to_string();
      return errors + (in.equals(out, kMiB) ? " healed" : " other bytes");
    });
    SKIP_WHERE_REFUSED(text);
    EXPECT_TRUE(contains(text, "No space left on device")) << text;
    EXPECT_TRUE(contains(text, "wanted ") && contains(text, "bytes, got ")) << text;
    EXPECT_TRUE(contains(text, "free space on that disk")) << text;
    EXPECT_TRUE(contains(text, " healed")) << text;
  }
}

TEST_F(Environment, AReadOnlyMountCanBeReadAndNotWritten) {
  EXPECT_TRUE(contains(use_volume(folder_.paths()), "1 volume"));
  const std::string text = in_child([&]() -> std::string {
    const char* path = folder_.path().c_str();
    if (!own_mounts() || ::mount(path, path, nullptr, MS_BIND, nullptr) != 0 ||
        ::mount(nullptr, path, nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY, nullptr) != 0)
      return "cannot be set up here";
    io::VolumeOptions options;
    const auto writable = VolumeSet::open(folder_.paths(), "run", options);
    const auto fresh = VolumeSet::create(folder_.paths(), "other", Tiles::geometry(), options);
    options.read_only = true;
    auto set = VolumeSet::open(folder_.paths(), "run", options);
    if (!set.ok()) return set.error().to_string();
    auto second = VolumeSet::open(folder_.paths(), "run", options);
    Tiles tiles(**set);
    const auto record = (*set)->write_record({2, {}});
    return "open: " + text_of(writable) + "\ncreate: " + text_of(fresh) + "\nread: " + tiles.read(1) +
           "\nsecond: " + text_of(second) + "\nwrite: " + tiles.write(3) + "\nrecord: " + text_of(record);
  });
  SKIP_WHERE_REFUSED(text);
  EXPECT_TRUE(contains(text, "open: opening the volume")) << text;
  EXPECT_TRUE(contains(text, "Read-only file system")) << text;
  EXPECT_TRUE(contains(text, "read: ok")) << text;
  EXPECT_TRUE(contains(text, "second: ok")) << text;
  EXPECT_TRUE(contains(text, "write: the volumes of run run are open for reading")) << text;
  EXPECT_TRUE(contains(text, "record: the volumes of run run are open for reading")) << text;
}

TEST_F(Environment, AReaderWaitsForAWriterAndAWriterForAReader) {
  EXPECT_TRUE(contains(use_volume(folder_.paths()), "1 volume"));
  io::VolumeOptions reading;
  reading.read_only = true;
  const auto now = std::chrono::milliseconds(0);
  {
    const auto writer = VolumeSet::open(folder_.paths(), "run", {});
    ASSERT_OK(writer);
    EXPECT_TRUE(contains(text_of(VolumeSet::open(folder_.paths(), "run", reading, now)), "in use"));
  }
  const auto reader = VolumeSet::open(folder_.paths(), "run", reading);
  ASSERT_OK(reader);
  EXPECT_TRUE(contains(text_of(VolumeSet::open(folder_.paths(), "run", {}, now)), "in use"));
}

}  // namespace
}  // namespace headrace::fault
