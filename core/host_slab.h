// SPDX-License-Identifier: Apache-2.0
// One large piece of host memory, taken once at start: on the largest pages the system gives, every page present,
// locked where the limits allow. The plan assigns offsets inside it; nothing is freed before the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace {

enum class PageKind : std::uint8_t { kExplicitHuge, kTransparentHuge, kOrdinary };
[[nodiscard]] const char* page_kind_name(PageKind kind) noexcept;  // "explicit huge pages", …

struct HostSlabOptions {
  PageKind best_pages = PageKind::kExplicitHuge;  // the first kind that is tried; then the next ones, down to ordinary
  bool lock = true;                               // mlock; failing to is reported by describe(), never an error
};

// Move-only; one owner thread, the memory itself may be used by any thread.
class HostSlab {
 public:
  static constexpr Bytes kAlignment = 2 * kMiB;

  // `bytes` (≥ 0) zeroed bytes that start at a multiple of kAlignment. What becomes resident is at most `bytes` rounded
  // up to a page (explicit huge pages: to 2 MiB). Touches every page: takes about 0.2 s per GiB. kPreflight error with
  // the bytes wanted and what the system said.
  [[nodiscard]] static Result<HostSlab> allocate(Bytes bytes, const HostSlabOptions& options = {});

  HostSlab() = default;  // empty
  HostSlab(HostSlab&& other) noexcept;
  HostSlab& operator=(HostSlab&& other) noexcept;
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;
  ~HostSlab();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] PageKind page_kind() const noexcept { return page_kind_; }
  [[nodiscard]] bool locked() const noexcept { return locked_; }
  // "buffers on transparent huge pages, not locked: limit 8 MiB; fix: ulimit -l unlimited"
  [[nodiscard]] std::string describe() const;

 private:
  std::byte* data_ = nullptr;
  Bytes size_ = 0;
  Bytes mapped_ = 0;
  PageKind page_kind_ = PageKind::kOrdinary;
  bool locked_ = false;
  std::string pages_note_;  // why the pages are no larger; empty when they are the best kind
  std::string lock_note_;   // why it is not locked
};

}  // namespace headrace
