// SPDX-License-Identifier: Apache-2.0
// What a commit record means: everything, beside the tiles, that is needed to go on after the step it stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace::runtime {

struct StepRecord {
  std::uint64_t step = 0;            // attempted global batches done
  std::uint64_t optimizer_step = 0;  // updates made: bias correction and schedule follow it
  std::uint64_t samples_consumed = 0;
  std::uint64_t skipped_steps = 0;
  std::uint64_t skipped_in_a_row = 0;
  std::uint64_t state_version = 0;  // step that wrote the current tiles
  std::uint32_t state_attempt = 0;  // attempt that wrote them
  std::uint32_t attempt = 0;        // attempt (session of this run) that wrote this record
  double loss_scale = 1.0;          // fp16: state of the loss scaler for the next step
  std::uint64_t loss_scale_good_steps = 0;
  std::uint64_t loss_scale_hysteresis = 0;
  std::string metrics_row;         // this step's line of metrics.jsonl, without the line end
  std::vector<bool> current_slot;  // per tile of the state geometry
};

inline constexpr Bytes kMaxMetricsRowBytes = 4096;
// Capacity that record_bytes() of any record for a shard of `tiles` tiles needs.
[[nodiscard]] Bytes step_record_capacity(std::int64_t tiles) noexcept;
[[nodiscard]] std::vector<std::byte> encode(const StepRecord& record);
// kIo for another format, a wrong length, or another number of tiles.
[[nodiscard]] Result<StepRecord> decode_step_record(const std::vector<std::byte>& payload, std::int64_t tiles);

}  // namespace headrace::runtime
