// SPDX-License-Identifier: Apache-2.0
// Any bytes as a trailer: refused, or exactly what an encoder writes.
#include <algorithm>

#include "io/layout.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

using namespace headrace;

void check(const std::vector<std::byte>& block) {
  const auto trailer = io::decode_trailer(block);
  if (!trailer.ok()) return;
  std::vector<std::byte> again(block.size());
  io::encode_trailer(*trailer, again);
  fuzz::require(again == block);
  fuzz::require(io::first_difference(*trailer, *trailer).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> block = headrace::fuzz::bytes_of(data, size);
  check(block);
  headrace::fuzz::put_hash(block, 72, 0, 72);
  check(block);
  return 0;
}
