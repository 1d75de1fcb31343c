// SPDX-License-Identifier: Apache-2.0
#include "io/io_backend.h"

#include "core/check.h"

namespace headrace::io {

Result<std::size_t> IoBackend::submit(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    HEADRACE_CHECK(request.fd >= 0, "a request names an open file");
    HEADRACE_CHECK(request.num_segments <= IoRequest::kMaxSegments, "a request has at most kMaxSegments segments");
    HEADRACE_CHECK((request.operation == IoOperation::kFlush) == (request.num_segments == 0),
                   "a read or write has segments, a flush has none");
    HEADRACE_CHECK(request.offset >= 0, "an offset is not negative");
  }
  if (requests.empty()) return std::size_t{0};
  auto accepted = do_submit(requests);
  if (!accepted.ok()) return accepted;
  HEADRACE_CHECK(*accepted <= requests.size(), "a backend accepts a prefix of what it is offered");
  in_flight_ += *accepted;
  return accepted;
}

Result<std::size_t> IoBackend::reap(std::span<IoCompletion> out, std::size_t min_count, TimePoint deadline) {
  HEADRACE_CHECK(min_count <= out.size(), "there is room for the completions that are waited for");
  auto reaped = do_reap(out, min_count, deadline);
  if (!reaped.ok()) return reaped;
  HEADRACE_CHECK(*reaped <= in_flight_ && *reaped <= out.size(), "a backend completes what it accepted");
  in_flight_ -= *reaped;
  return reaped;
}

}  // namespace headrace::io
