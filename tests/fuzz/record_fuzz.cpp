// SPDX-License-Identifier: Apache-2.0
// Any bytes as a commit record: refused, or the same record when it is encoded again.
#include <algorithm>

#include "io/layout.h"
#include "tests/fuzz/fuzz_support.h"

namespace {

using namespace headrace;

void check(const std::vector<std::byte>& area) {
  const std::uint64_t run_hash = fuzz::number_at(area, 16, 8);
  const auto record = io::decode_record(area, run_hash);
  if (!record.ok()) return;
  std::vector<std::byte> again(area.size());
  io::encode_record(*record, run_hash, again);
  const auto second = io::decode_record(again, run_hash);
  fuzz::require(second.ok() && second->sequence == record->sequence && second->payload == record->payload);
  fuzz::require(!io::decode_record(area, run_hash + 1).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> area = headrace::fuzz::bytes_of(data, size);
  check(area);
  const std::uint64_t payload_bytes = headrace::fuzz::number_at(area, 32, 8);
  if (payload_bytes <= area.size()) headrace::fuzz::put_hash(area, 40, 64, 64 + payload_bytes);
  headrace::fuzz::put_hash(area, 48, 0, 48);
  check(area);
  return 0;
}
