// SPDX-License-Identifier: Apache-2.0
#include "core/host_slab.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

namespace headrace {
namespace {

struct Mapping {
  std::byte* data = nullptr;
  Bytes bytes = 0;
};

std::size_t size_of(Bytes bytes) { return static_cast<std::size_t>(bytes); }

Bytes page_bytes() {
  static const Bytes bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

std::optional<Mapping> map_explicit_huge(Bytes bytes) {
  constexpr int kTwoMiBPages = 21 << MAP_HUGE_SHIFT;
  const Bytes whole = round_up(bytes, 2 * kMiB);
  // Pages that are not reserved make this call fail, so a later touch cannot.
  void* data = mmap(nullptr, size_of(whole), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | kTwoMiBPages, -1, 0);
  if (data == MAP_FAILED) return std::nullopt;
  return Mapping{static_cast<std::byte*>(data), whole};
}

// Ordinary memory at a multiple of 2 MiB: maps one alignment more and gives the ends back. nullopt: errno says why.
std::optional<Mapping> map_aligned(Bytes bytes) {
  const Bytes whole = round_up(bytes, page_bytes());
  const Bytes wide = whole + HostSlab::kAlignment;
  void* start = mmap(nullptr, size_of(wide), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return std::nullopt;
  auto* first = static_cast<std::byte*>(start);
  const auto address = static_cast<Bytes>(reinterpret_cast<std::uintptr_t>(start));
  const Bytes before = round_up(address, HostSlab::kAlignment) - address;
  const Bytes after = wide - before - whole;
  if (before > 0) munmap(first, size_of(before));
  if (after > 0) munmap(first + before + whole, size_of(after));
  return Mapping{first + before, whole};
}

// Makes every page present and writable, without changing its content. Returns 0 or an errno.
int populate(const Mapping& mapping) {
  if (madvise(mapping.data, size_of(mapping.bytes), MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;  // EINVAL: a kernel before 5.14
  for (Bytes offset = 0; offset < mapping.bytes; offset += page_bytes()) {
    volatile std::byte* place = mapping.data + offset;
    *place = *place;
  }
  return 0;
}

bool transparent_huge_allowed() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return std::getline(file, text) && text.find("[never]") == std::string::npos;
}

// Bytes of the mapping that lie on transparent huge pages; nullopt where the system does not tell.
std::optional<Bytes> transparent_huge_bytes(const Mapping& mapping) {
  std::ifstream file("/proc/self/smaps");
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data);
  const std::uintptr_t end = begin + size_of(mapping.bytes);
  std::optional<Bytes> total;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t low = 0;
    std::uintptr_t high = 0;
    Bytes kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &low, &high) == 2) {
      inside = low < end && high > begin;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNd64, &kib) == 1) {
      total = total.value_or(0) + kib * kKiB;
    }
  }
  return total;
}

std::string no_huge_pages_note(Bytes bytes, std::optional<Bytes> huge) {
  if (!transparent_huge_allowed()) {
    return "transparent huge pages are off; fix: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  if (bytes < 2 * kMiB) return "smaller than one huge page";
  return fmt::format("the kernel gave huge pages for {} of {}", format_bytes(huge.value_or(0)), format_bytes(bytes));
}

std::string lock_failure(int system_error) {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  if (!limited) return fmt::format("not locked: {}", std::strerror(system_error));
  return fmt::format("not locked: limit {}; fix: ulimit -l unlimited",
                     format_bytes(static_cast<Bytes>(limit.rlim_cur)));
}

Error allocation_error(Bytes bytes, int system_error) {
  return make_error(ErrorCode::kPreflight,
                    fmt::format("host memory: wanted {} ({} bytes) in one piece: {}", format_bytes(bytes), bytes,
                                std::strerror(system_error)),
                    "lower memory.host, or free memory on this machine");
}

}  // namespace

const char* page_kind_name(PageKind kind) noexcept {
  switch (kind) {
    case PageKind::kExplicitHuge: return "explicit huge pages";
    case PageKind::kTransparentHuge: return "transparent huge pages";
    case PageKind::kOrdinary: return "ordinary pages";
  }
  return "unknown pages";
}

Result<HostSlab> HostSlab::allocate(Bytes bytes, const HostSlabOptions& options) {
  HostSlab slab;
  if (bytes <= 0) return slab;
  std::optional<Mapping> mapping;
  if (options.best_pages == PageKind::kExplicitHuge) mapping = map_explicit_huge(bytes);
  if (mapping && populate(*mapping) != 0) {  // a hugetlb cgroup limit shows only here
    munmap(mapping->data, size_of(mapping->bytes));
    mapping.reset();
  }
  if (mapping) {
    slab.page_kind_ = PageKind::kExplicitHuge;
  } else {
    mapping = map_aligned(bytes);
    if (!mapping) return allocation_error(bytes, errno);
    const bool huge_wanted = options.best_pages != PageKind::kOrdinary;
    const int advice = huge_wanted ? MADV_HUGEPAGE : MADV_NOHUGEPAGE;
    const bool advised = madvise(mapping->data, size_of(mapping->bytes), advice) == 0;
    if (const int fault = populate(*mapping); fault != 0) {
      munmap(mapping->data, size_of(mapping->bytes));
      return allocation_error(bytes, fault);
    }
    if (huge_wanted) {
      const bool possible = advised && transparent_huge_allowed() && bytes >= 2 * kMiB;
      const std::optional<Bytes> huge = possible ? transparent_huge_bytes(*mapping) : std::optional<Bytes>(0);
      if (huge.value_or(bytes) * 2 >= bytes) {
        slab.page_kind_ = PageKind::kTransparentHuge;
      } else {
        slab.pages_note_ = no_huge_pages_note(bytes, huge);
      }
    }
  }
  slab.data_ = mapping->data;
  slab.size_ = bytes;
  slab.mapped_ = mapping->bytes;
  slab.locked_ = options.lock && mlock(slab.data_, size_of(slab.mapped_)) == 0;
  if (!slab.locked_) slab.lock_note_ = options.lock ? lock_failure(errno) : "not locked: not asked for";
  return slab;
}

HostSlab::HostSlab(HostSlab&& other) noexcept { *this = std::move(other); }

HostSlab& HostSlab::operator=(HostSlab&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(page_kind_, other.page_kind_);
  std::swap(locked_, other.locked_);
  std::swap(pages_note_, other.pages_note_);
  std::swap(lock_note_, other.lock_note_);
  return *this;
}

HostSlab::~HostSlab() {
  if (data_ != nullptr) munmap(data_, size_of(mapped_));
}

std::string HostSlab::describe() const {
  if (size_ == 0) return "no buffers";
  const std::string why = pages_note_.empty() ? std::string() : fmt::format(" ({})", pages_note_);
  return fmt::format("buffers on {}{}, {}", page_kind_name(page_kind_), why, locked_ ? "locked" : lock_note_);
}

}  // namespace headrace
