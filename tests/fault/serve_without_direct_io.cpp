// SPDX-License-Identifier: Apache-2.0
// A FUSE file system that answers direct reads and writes with EINVAL: the files of a flat folder, served at a mount
// point until it is unmounted or this process ends. `serve_without_direct_io FOLDER MOUNT-POINT [later]`; with `later`
// it begins to refuse at SIGUSR1. Says "ready" when it is mounted, exits 77 where this system has no FUSE for us.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr std::uint32_t kMaxWrite = 1 << 20;
constexpr int kNotHere = 77;
volatile std::sig_atomic_t refusing = 1;  // NOLINT: what a signal may touch

struct Node {
  std::string name;
  int fd = -1;
  std::uint64_t lookups = 0;
};

class Server {
 public:
  Server(int device, int folder) : device_(device), folder_(folder), buffer_(kMaxWrite + 64 * 1024) {}

  void run() {
    for (;;) {
      const ssize_t got = ::read(device_, buffer_.data(), buffer_.size());
      if (got < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
      if (got < static_cast<ssize_t>(sizeof(fuse_in_header))) return;  // ENODEV: unmounted
      answer(*reinterpret_cast<const fuse_in_header*>(buffer_.data()));
    }
  }

 private:
  template <typename In>
  [[nodiscard]] const In& in() const {
    return *reinterpret_cast<const In*>(buffer_.data() + sizeof(fuse_in_header));
  }
  template <typename In>
  [[nodiscard]] const char* text_after() const {
    return buffer_.data() + sizeof(fuse_in_header) + sizeof(In);
  }

  void reply(int error, std::span<const char> bytes = {}) {
    std::vector<char> out(sizeof(fuse_out_header) + bytes.size());
    const fuse_out_header header{static_cast<std::uint32_t>(out.size()), -error, unique_};
    std::memcpy(out.data(), &header, sizeof header);
    if (!bytes.empty()) std::memcpy(out.data() + sizeof header, bytes.data(), bytes.size());
    [[maybe_unused]] const ssize_t written = ::write(device_, out.data(), out.size());
  }
  template <typename Out>
  void reply_with(const Out& out) {
    reply(0, {reinterpret_cast<const char*>(&out), sizeof out});
  }
  void reply_status(bool ok) { reply(ok ? 0 : errno); }

  [[nodiscard]] int fd_of(std::uint64_t id) const {
    const auto node = nodes_.find(id);
    return id == FUSE_ROOT_ID ? folder_ : node == nodes_.end() ? -1 : node->second.fd;
  }

  static fuse_attr attributes_of(int fd, std::uint64_t id) {
    struct stat status {};
    ::fstat(fd, &status);
    fuse_attr attributes{};
    attributes.ino = id;
    attributes.size = static_cast<std::uint64_t>(status.st_size);
    attributes.blocks = static_cast<std::uint64_t>(status.st_blocks);
    attributes.mtime = static_cast<std::uint64_t>(status.st_mtime);
    attributes.mode = status.st_mode;
    attributes.nlink = static_cast<std::uint32_t>(status.st_nlink);
    attributes.uid = status.st_uid;
    attributes.gid = status.st_gid;
    attributes.blksize = static_cast<std::uint32_t>(status.st_blksize);
    return attributes;
  }

  fuse_entry_out entry(const std::string& name, int fd) {
    std::uint64_t id = 0;
    for (auto& [known, node] : nodes_)
      if (node.name == name) id = known;
    if (id == 0) {
      id = next_++;
      nodes_[id] = {name, fd, 0};
    } else {
      ::close(fd);
    }
    ++nodes_[id].lookups;
    fuse_entry_out out{};
    out.nodeid = id;
    out.attr = attributes_of(fd_of(id), id);
    return out;
  }

  void forget(std::uint64_t id, std::uint64_t lookups) {
    const auto node = nodes_.find(id);
    if (node == nodes_.end() || (node->second.lookups -= lookups) > 0) return;
    ::close(node->second.fd);
    nodes_.erase(node);
  }

  void answer(const fuse_in_header& header) {
    unique_ = header.unique;
    id_ = header.nodeid;
    switch (header.opcode) {
      case FUSE_INIT: return init();
      case FUSE_FORGET: return forget(id_, in<fuse_forget_in>().nlookup);
      case FUSE_BATCH_FORGET: {
        const auto* one = reinterpret_cast<const fuse_forget_one*>(text_after<fuse_batch_forget_in>());
        for (std::uint32_t i = 0; i < in<fuse_batch_forget_in>().count; ++i) forget(one[i].nodeid, one[i].nlookup);
        return;
      }
      case FUSE_INTERRUPT: return;
      case FUSE_LOOKUP: return look_up(buffer_.data() + sizeof(fuse_in_header));
      case FUSE_CREATE: return create(text_after<fuse_create_in>());
      case FUSE_OPEN:
      case FUSE_OPENDIR: return reply_with(fuse_open_out{});
      case FUSE_GETATTR: return reply_attributes();
      case FUSE_SETATTR:
        if ((in<fuse_setattr_in>().valid & FATTR_SIZE) != 0 &&
            ::ftruncate(fd_of(id_), static_cast<off_t>(in<fuse_setattr_in>().size)) != 0)
          return reply(errno);
        return reply_attributes();
      case FUSE_READ: return read_file(in<fuse_read_in>());
      case FUSE_WRITE: return write_file(in<fuse_write_in>());
      case FUSE_READDIR: return list(in<fuse_read_in>());
      case FUSE_FALLOCATE: {
        const auto& wanted = in<fuse_fallocate_in>();
        return reply_status(::fallocate(fd_of(id_), static_cast<int>(wanted.mode), static_cast<off_t>(wanted.offset),
                                        static_cast<off_t>(wanted.length)) == 0);
      }
      case FUSE_FSYNC: return reply_status(::fdatasync(fd_of(id_)) == 0);
      case FUSE_UNLINK: return unlink(buffer_.data() + sizeof(fuse_in_header));
      case FUSE_STATFS: return statistics();
      case FUSE_FLUSH:
      case FUSE_RELEASE:
      case FUSE_RELEASEDIR:
      case FUSE_FSYNCDIR: return reply(0);
      default: return reply(ENOSYS);
    }
  }

  void init() {
    fuse_init_out out{};
    out.major = FUSE_KERNEL_VERSION;
    out.minor = FUSE_KERNEL_MINOR_VERSION;
    out.max_readahead = in<fuse_init_in>().max_readahead;
    out.flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES | FUSE_ASYNC_DIO;
    out.max_write = kMaxWrite;
    out.max_pages = kMaxWrite / 4096;
    reply_with(out);
  }

  void look_up(const char* name) {
    const int fd = ::openat(folder_, name, O_RDWR | O_CLOEXEC);
    if (fd < 0) return reply(errno);
    reply_with(entry(name, fd));
  }

  void create(const char* name) {
    const int fd =
        ::openat(folder_, name, O_RDWR | O_CREAT | O_CLOEXEC | (static_cast<int>(in<fuse_create_in>().flags) & O_EXCL),
                 in<fuse_create_in>().mode);
    if (fd < 0) return reply(errno);
    struct {
      fuse_entry_out entry;
      fuse_open_out open;
    } out{};
    out.entry = entry(name, fd);
    reply_with(out);
  }

  void reply_attributes() {
    if (fd_of(id_) < 0) return reply(ENOENT);
    fuse_attr_out out{};
    out.attr = attributes_of(fd_of(id_), id_);
    reply_with(out);
  }

  // The flags are those of the file at this moment: O_DIRECT may have been switched on after it was opened.
  static bool is_refused(std::uint32_t flags) { return refusing != 0 && (static_cast<int>(flags) & O_DIRECT) != 0; }

  void read_file(const fuse_read_in& wanted) {
    if (is_refused(wanted.flags)) return reply(EINVAL);
    std::vector<char> bytes(wanted.size);
    const ssize_t got = ::pread(fd_of(id_), bytes.data(), bytes.size(), static_cast<off_t>(wanted.offset));
    if (got < 0) return reply(errno);
    reply(0, std::span(bytes).first(static_cast<std::size_t>(got)));
  }

  void write_file(const fuse_write_in& wanted) {
    if (is_refused(wanted.flags)) return reply(EINVAL);
    const ssize_t written =
        ::pwrite(fd_of(id_), text_after<fuse_write_in>(), wanted.size, static_cast<off_t>(wanted.offset));
    if (written < 0) return reply(errno);
    fuse_write_out out{};
    out.size = static_cast<std::uint32_t>(written);
    reply_with(out);
  }

  // All names in one answer: there are few.
  void list(const fuse_read_in& wanted) {
    std::vector<char> out;
    DIR* const folder = ::opendir(("/proc/self/fd/" + std::to_string(folder_)).c_str());
    std::uint64_t place = 0;
    while (const dirent* name = folder == nullptr ? nullptr : ::readdir(folder)) {
      const std::size_t length = std::strlen(name->d_name);
      const std::size_t whole = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
      if (++place <= wanted.offset) continue;
      if (out.size() + whole > wanted.size) break;
      const std::size_t at = out.size();
      out.resize(at + whole);
      fuse_dirent entry{name->d_ino, place, static_cast<std::uint32_t>(length), name->d_type};
      std::memcpy(out.data() + at, &entry, FUSE_NAME_OFFSET);
      std::memcpy(out.data() + at + FUSE_NAME_OFFSET, name->d_name, length);
    }
    if (folder != nullptr) ::closedir(folder);
    reply(0, out);
  }

  void unlink(const char* name) {
    for (auto& [id, node] : nodes_)
      if (node.name == name) node.name.clear();  // open descriptors go on
    reply_status(::unlinkat(folder_, name, 0) == 0);
  }

  void statistics() {
    struct statvfs status {};
    ::fstatvfs(folder_, &status);
    fuse_statfs_out out{};
    out.st.blocks = status.f_blocks;
    out.st.bfree = status.f_bfree;
    out.st.bavail = status.f_bavail;
    out.st.bsize = static_cast<std::uint32_t>(status.f_bsize);
    out.st.frsize = static_cast<std::uint32_t>(status.f_frsize);
    out.st.namelen = 255;
    reply_with(out);
  }

  int device_;
  int folder_;
  std::vector<char> buffer_;
  std::map<std::uint64_t, Node> nodes_;
  std::uint64_t next_ = FUSE_ROOT_ID + 1;
  std::uint64_t unique_ = 0;  // of the request that is being answered
  std::uint64_t id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (argc > 3) refusing = 0;
  std::signal(SIGUSR1, [](int) { refusing = 1; });
  static std::string mounted;
  std::signal(SIGTERM, [](int) {
    ::umount2(mounted.c_str(), MNT_DETACH);
    ::_exit(0);
  });
  const int folder = ::open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (folder < 0 || device < 0) return kNotHere;
  const std::string options = "fd=" + std::to_string(device) +
                              ",rootmode=40000,user_id=" + std::to_string(::geteuid()) +
                              ",group_id=" + std::to_string(::getegid());
  mounted = argv[2];
  if (::mount("headrace", argv[2], "fuse.headrace", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return kNotHere;
  std::puts("ready");
  std::fflush(stdout);
  Server(device, folder).run();
  return 0;
}
