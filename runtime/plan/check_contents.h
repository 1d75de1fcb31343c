// SPDX-License-Identifier: Apache-2.0
// Part of the plan checker: what every byte of the slabs holds while the operations run in order (which is the only
// result that any order of them can have, once check_conflicts() has passed).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/result.h"
#include "runtime/plan/plan.h"

namespace headrace::runtime::checking {

struct Content {
  enum class Kind : std::uint8_t {
    kNothing,           // unknown or scratch
    kWeights,           // of `unit`; version = 0 before the update, 1 after, 2 when that was done again; with delayed
                        // updates: so many of them were made
    kOptimizer,         // of `unit`, index = tile; version as above
    kGradient,          // of `unit`; version = groups added so far
    kAccumulator,       // of `unit`, index = group; version = contributions so far
    kBoundary,          // output of `unit` for micro-batch `index`
    kBoundaryGradient,  // gradient of that output
    kSaved,             // by forward of `unit` for micro-batch `index`
  } kind = Kind::kNothing;
  UnitId unit = -1;
  std::int64_t index = 0;
  std::int64_t version = 0;
  std::int64_t step = 0;  // that made it; of state 0
  friend bool operator==(const Content&, const Content&) = default;
};
[[nodiscard]] std::string describe(const Content& content);

// One slab.
class Memory {
 public:
  Memory() { pieces_[0]; }
  // Bytes [begin, begin + bytes) become bytes `from` … of `content`.
  void write(Bytes begin, Bytes bytes, const Content& content, Bytes from);
  // Fails with what is there instead.
  [[nodiscard]] Result<void> expect(Bytes begin, Bytes bytes, const Content& content, Bytes from) const;

 private:
  struct Piece {
    Content content;
    Bytes shift = 0;  // position in the content − position in the slab
  };
  void cut_at(Bytes where);
  std::map<Bytes, Piece> pieces_;  // by first byte
};

}  // namespace headrace::runtime::checking
