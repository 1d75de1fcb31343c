// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/step_record.h"

#include <fmt/format.h>

#include <bit>

#include "core/check.h"

namespace headrace::runtime {

namespace {

constexpr std::uint64_t kFormat = 0x0001'5345'4352'5248;  // "HRRCES", version 1
constexpr std::size_t kFixedBytes = 14 * 8;               // the fields below, 8 bytes each

void put(std::vector<std::byte>& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// Reads the fields in the order that encode() wrote them; never beyond the end.
class Reader {
 public:
  explicit Reader(const std::vector<std::byte>& bytes) : bytes_(bytes) {}
  std::uint64_t next() {
    if (position_ + 8 > bytes_.size()) {
      short_ = true;
      return 0;
    }
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i)
      value |= static_cast<std::uint64_t>(std::to_integer<unsigned>(bytes_[position_ + i])) << (8 * i);
    position_ += 8;
    return value;
  }
  [[nodiscard]] bool is_short() const { return short_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - position_; }
  [[nodiscard]] std::size_t position() const { return position_; }

 private:
  const std::vector<std::byte>& bytes_;
  std::size_t position_ = 0;
  bool short_ = false;
};

Error damaged(const std::string& what) {
  return make_error(ErrorCode::kIo, "commit record does not decode: " + what,
                    "it was written by another version, or the run's files were mixed up");
}

}  // namespace

Bytes step_record_capacity(std::int64_t tiles) noexcept {
  return static_cast<Bytes>(kFixedBytes) + kMaxMetricsRowBytes + ceil_div(tiles, 8);
}

std::vector<std::byte> encode(const StepRecord& record) {
  HEADRACE_CHECK(static_cast<Bytes>(record.metrics_row.size()) <= kMaxMetricsRowBytes,
                 "metrics row beyond its capacity");
  std::vector<std::byte> out;
  out.reserve(kFixedBytes + record.metrics_row.size() + record.current_slot.size() / 8 + 16);
  put(out, kFormat);
  put(out, record.step);
  put(out, record.optimizer_step);
  put(out, record.samples_consumed);
  put(out, record.skipped_steps);
  put(out, record.skipped_in_a_row);
  put(out, record.state_version);
  put(out, record.state_attempt);
  put(out, record.attempt);
  put(out, std::bit_cast<std::uint64_t>(record.loss_scale));
  put(out, record.loss_scale_good_steps);
  put(out, record.loss_scale_hysteresis);
  put(out, record.current_slot.size());
  put(out, record.metrics_row.size());
  for (const char c : record.metrics_row) out.push_back(static_cast<std::byte>(c));
  for (std::size_t i = 0; i < record.current_slot.size(); i += 8) {
    unsigned bits = 0;
    for (std::size_t j = i; j < i + 8 && j < record.current_slot.size(); ++j)
      bits |= (record.current_slot[j] ? 1U : 0U) << (j - i);
    out.push_back(static_cast<std::byte>(bits));
  }
  return out;
}

Result<StepRecord> decode_step_record(const std::vector<std::byte>& payload, std::int64_t tiles) {
  Reader reader(payload);
  if (const std::uint64_t format = reader.next(); format != kFormat)
    return damaged(fmt::format("format {:#x}, wanted {:#x}", format, kFormat));
  StepRecord record;
  record.step = reader.next();
  record.optimizer_step = reader.next();
  record.samples_consumed = reader.next();
  record.skipped_steps = reader.next();
  record.skipped_in_a_row = reader.next();
  record.state_version = reader.next();
  record.state_attempt = static_cast<std::uint32_t>(reader.next());
  record.attempt = static_cast<std::uint32_t>(reader.next());
  record.loss_scale = std::bit_cast<double>(reader.next());
  record.loss_scale_good_steps = reader.next();
  record.loss_scale_hysteresis = reader.next();
  const std::uint64_t num_tiles = reader.next();
  const std::uint64_t row_bytes = reader.next();
  if (reader.is_short()) return damaged(fmt::format("{} bytes are too few", payload.size()));
  if (num_tiles != static_cast<std::uint64_t>(tiles))
    return damaged(fmt::format("it lists {} tiles, this shard has {}", num_tiles, tiles));
  const auto bitmap_bytes = static_cast<std::size_t>(ceil_div(tiles, 8));
  if (row_bytes > static_cast<std::uint64_t>(kMaxMetricsRowBytes) || reader.left() != row_bytes + bitmap_bytes)
    return damaged(fmt::format("{} bytes left for a row of {} and {} tiles", reader.left(), row_bytes, tiles));
  const std::size_t row_begin = reader.position();
  record.metrics_row.assign(reinterpret_cast<const char*>(payload.data()) + row_begin, row_bytes);
  record.current_slot.resize(static_cast<std::size_t>(tiles));
  for (std::size_t i = 0; i < record.current_slot.size(); ++i)
    record.current_slot[i] = (std::to_integer<unsigned>(payload[row_begin + row_bytes + i / 8]) >> (i % 8) & 1U) != 0;
  return record;
}

}  // namespace headrace::runtime
