// SPDX-License-Identifier: Apache-2.0
// The simulated step as a Chrome trace, in the form that `train --trace` writes, so that both can be laid over each
// other.
#include <fmt/format.h>

#include "bindings/cli/plan_predict.h"
#include "runtime/engine/step_report.h"

namespace headrace::cli {

std::string simulation_trace(const Prediction& prediction, const runtime::Plan& plan) {
  std::string text = "{\"traceEvents\":[\n";
  for (int lane = 0; lane < runtime::kNumLanes; ++lane)
    text += fmt::format("{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}",
                        lane == 0 ? "" : ",\n", lane, runtime::lane_name(static_cast<runtime::Lane>(lane)));
  runtime::RunTimes times;
  times.seconds = prediction.step_seconds();
  times.busy = prediction.simulation.busy;
  for (const runtime::OperationTime& time : prediction.simulation.times) times.spans.push_back({time.start, time.end});
  text += ",\n" + runtime::trace_events(plan.operations, times, 0);
  for (const runtime::CollectiveTime& collective : prediction.simulation.collectives)
    text += fmt::format(
        ",\n{{\"ph\":\"X\",\"ts\":{:.1f},\"dur\":{:.1f},\"pid\":1,\"tid\":{},\"cat\":\"collective\",\"name\":\"{} unit "
        "{}\"}}",
        collective.time.start * 1e6, (collective.time.end - collective.time.start) * 1e6,
        static_cast<int>(runtime::Lane::kCollective), collective.use.is_gather ? "all_gather" : "reduce_scatter",
        collective.use.unit);
  return text + "\n]}\n";
}

}  // namespace headrace::cli
