// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/run_fields.h"

namespace headrace::config {
namespace {

using T = FieldType;
constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMany = 1'000'000'000'000;
constexpr Bytes kLargestBudget = Bytes{1} << 62;  // what core/bytes.h reads

void add_run(FieldTable& table, Draft& draft) {
  RunConfig& run = draft.run;
  table.add("headrace.steps", T::kInteger, "", "Global batches to train on. Required; may grow on resume.")
      .range(1, kMany)
      .may_change()
      .to(draft.steps);
  table.add("headrace.seed", T::kInteger, "1", "Of the initial weights and of the order of the data.")
      .at_least(0)
      .to(run.seed);
  table
      .add("headrace.max_skipped_in_a_row", T::kInteger, "5",
           "Steps in a row that may be skipped for non-finite gradients before the run ends (exit 6).")
      .range(1, kInt32Max)
      .may_change()
      .to(run.max_skipped_in_a_row);
  table
      .add("headrace.decay", T::kChoice, "\"matrices\"",
           "Tensors that weight decay applies to: matrices are those of two and more dimensions.")
      .to(run.decay, {{"matrices", DecayScope::kMatrices}, {"all", DecayScope::kAll}});
  table.add("headrace.eval.every", T::kInteger, "0", "Steps between evaluations on the validation data; 0 means never.")
      .range(0, kMany)
      .may_change()
      .to(run.eval.every);
  table
      .add("headrace.eval.samples", T::kInteger, "\"auto\"",
           "Samples of one evaluation; auto is the whole validation part.")
      .range(1, kMany)
      .or_auto()
      .may_change()
      .to(run.eval.samples);
  table
      .add("headrace.hardware", T::kText, "",
           "File of measured rates from headrace profile; without it rates are measured at the start.")
      .may_change()
      .to(run.hardware);
}

void add_memory(FieldTable& table, MemoryConfig& memory) {
  const auto budget = [&](const char* path, const char* doc, Auto<Bytes>& target) {
    table.add(path, T::kBytes, "\"auto\"", doc).range(1, kLargestBudget).or_auto().may_change().to(target);
  };
  budget("headrace.memory.host",
         "Everything the process may hold in host memory: program, libraries, buffers, and on the cpu device its "
         "arena. auto is "
         "nine tenths of what the machine and its cgroup allow.",
         memory.host);
  budget("headrace.memory.device",
         "Device memory. On the cpu device this is part of memory.host; auto sets no limit of its own.", memory.device);
  budget("headrace.memory.nvme", "Bytes on all folders of nvme_path together; auto is their free space.", memory.nvme);
  table
      .add("headrace.memory.cache", T::kBool, "true",
           "Keep state whose home is NVMe in spare host memory, written through. false reads everything again each "
           "step.")
      .may_change()
      .to(memory.cache);
}

void add_schedule(FieldTable& table, ScheduleConfig& schedule) {
  table
      .add("headrace.schedule.group_size", T::kInteger, "\"auto\"",
           "Micro-batches that visit a unit before the next unit. Larger groups read the weights less often and hold "
           "more "
           "activations.")
      .range(1, kInt32Max)
      .or_auto()
      .may_change()
      .to(schedule.group_size);
  Field& update =
      table
          .add("headrace.schedule.update", T::kChoice, "\"auto\"",
               "When the optimizer runs: in_backward updates a unit as soon as its gradient is complete, and does it "
               "again from the old state where the norm then says clip or skip; into_forward leaves the updates to "
               "the next step, each just before its unit's first use there. The weights are the same. auto is "
               "in_backward where it hides NVMe traffic and fits, and changes to into_forward while most steps are "
               "clipped and that is predicted to be faster.")
          .may_change();
  update.to(schedule.update, {{"after_backward", UpdatePolicy::kAfterBackward},
                              {"in_backward", UpdatePolicy::kInBackward},
                              {"into_forward", UpdatePolicy::kIntoForward}});
  table
      .add("headrace.schedule.delayed_fraction", T::kNumber, "\"auto\"",
           "With into_forward: the share of the parameters whose update is left to the next step. The units that it "
           "uses last are; the others are updated after the norm. 1 leaves all of them, 0 none, which is "
           "after_backward. auto is 1, or with known rates what is predicted to be fastest.")
      .number_range(0, 1)
      .or_auto()
      .may_change()
      .to(schedule.delayed_fraction);
  Field& activations =
      table
          .add("headrace.schedule.activations", T::kChoice, "\"auto\"",
               "Where a unit's input and what its forward pass saves are until its backward pass: keep in memory; "
               "recompute what is saved; host or nvme: both leave the device for that tier and come back in time (on "
               "the cpu device host memory is where they are). auto keeps or recomputes per unit by what fits, and "
               "where memory is short lets the inputs of units go to NVMe if that moves fewer bytes in all.")
          .may_change();
  activations.to(schedule.activations, {{"keep", ActivationPolicy::kKeep},
                                        {"recompute", ActivationPolicy::kRecompute},
                                        {"host", ActivationPolicy::kHost},
                                        {"nvme", ActivationPolicy::kNvme}});
  table
      .add("headrace.schedule.snake", T::kBool, "true",
           "Odd units take the micro-batches of a group in reverse, so that activations at the turn stay near.")
      .may_change()
      .to(schedule.snake);
}

void add_state(FieldTable& table, Draft& draft) {
  RunConfig& run = draft.run;
  Field& format =
      table.add("headrace.state_format", T::kChoice, "\"auto\"",
                "How weights and optimizer state are stored: split is 12 bytes per parameter and bit-identical to fp32 "
                "with 14 (12 with fp32 weights); split_bf16 (8 bytes) keeps bf16 moments and compact (5) 8-bit ones, "
                "both rounded stochastically by the seed. auto is split with bf16, else fp32.");
  format.to(draft.state_format, {{"split", StateFormat::kSplit},
                                 {"fp32", StateFormat::kFp32},
                                 {"split_bf16", StateFormat::kSplitBf16},
                                 {"compact", StateFormat::kCompact}});
  table
      .add("headrace.gradient_dtype", T::kChoice, "\"auto\"",
           "Type in which gradients are kept between micro-batches: auto is bf16 with bf16 weights, else fp32.")
      .to(draft.gradient_dtype, {{"bf16", DType::kBf16}, {"fp32", DType::kFp32}});
  table
      .add("headrace.durability", T::kChoice, "\"process\"",
           "What a committed step survives: the death of the process, or loss of power (two flushes per step).")
      .may_change()
      .to(run.durability, {{"process", Durability::kProcess}, {"power", Durability::kPower}});
  table
      .add("headrace.slots", T::kInteger, "2",
           "Places of each tile on NVMe. 2: after a kill at any instant the last step is there. 1: half the disk, but "
           "only a "
           "clean stop can be resumed.")
      .range(1, 2)
      .to(run.slots);
  table
      .add("headrace.tile_bytes", T::kBytes, "\"auto\"",
           "Weights and optimizer state that are read, updated and written at a time; rounded to 4096 elements.")
      .range(64 * kKiB, 64 * kGiB)
      .or_auto()
      .may_change()
      .to(draft.tile_bytes);
}

void add_machine(FieldTable& table, RunConfig& run) {
  table
      .add("headrace.threads", T::kInteger, "\"auto\"", "Threads that compute; auto is the cores this process may use.")
      .range(1, 4096)
      .or_auto()
      .may_change()
      .to(run.threads);
  table
      .add("headrace.device.force_copies", T::kBool, "false",
           "On the cpu device: copy weights into the arena as a GPU would need it. For tests.")
      .may_change()
      .to(run.force_copies);
  table
      .add("headrace.io.backend", T::kChoice, "\"auto\"",
           "How requests reach the kernel; auto is the first of io_uring, libaio and threads that works.")
      .may_change()
      .to(run.io.backend, {{"io_uring", IoBackendKind::kUring},
                           {"libaio", IoBackendKind::kLibaio},
                           {"threads", IoBackendKind::kThreads}});
  table
      .add("headrace.io.mode", T::kChoice, "\"auto\"",
           "direct bypasses the page cache and fails where the file system cannot; auto says when it uses buffered, "
           "and starts no run on tmpfs.")
      .may_change()
      .to(run.io.mode, {{"direct", IoMode::kDirect}, {"buffered", IoMode::kBuffered}});
  table
      .add(
          "headrace.io.striping", T::kChoice, "\"measured\"",
          "How tiles are dealt over several paths when a run starts: by their measured bandwidth, or one each in turn. "
          "Volumes keep the deal that they were made with.")
      .may_change()
      .to(run.io.striping, {{"measured", IoStriping::kMeasured}, {"equal", IoStriping::kEqual}});
  table
      .add("headrace.io.overwrite_devices", T::kBool, "false",
           "Take a block device of nvme_path for a new run although it holds a file system, a partition table or other "
           "data: all of it is lost. A mounted device is refused in any case.")
      .may_change()
      .to(run.io.overwrite_devices);
  table
      .add("headrace.io.block_bytes", T::kBytes, "\"auto\"",
           "Largest single request; a multiple of 4096. auto is 1MiB.")
      .range(4 * kKiB, kGiB)
      .or_auto()
      .may_change()
      .to(run.io.block_bytes);
  table
      .add("headrace.io.in_flight_bytes", T::kBytes, "\"auto\"",
           "Bytes given to the kernel and not yet completed, over all paths; at least block_bytes. auto is 8MiB for "
           "each path.")
      .range(4 * kKiB, 64 * kGiB)
      .or_auto()
      .may_change()
      .to(run.io.in_flight_bytes);
  table.add("headrace.io.threads", T::kInteger, "\"auto\"", "Threads of the threads backend. auto is 4.")
      .range(1, 256)
      .or_auto()
      .may_change()
      .to(run.io.threads);
}

void add_debug(FieldTable& table, DebugConfig& debug) {
  table.add("headrace.debug.seed", T::kInteger, "0", "Of the random delays below.")
      .at_least(0)
      .may_change()
      .to(debug.seed);
  table
      .add("headrace.debug.lane_delay_us", T::kInteger, "0",
           "Largest random delay before each operation, in microseconds: changes the order in time and nothing else.")
      .range(0, 10'000'000)
      .may_change()
      .to(debug.lane_delay_us);
  table
      .add("headrace.debug.throttle", T::kBytes, "",
           "Bytes per second that reads and that writes may move; unset sets no limit.")
      .range(1, kLargestBudget)
      .may_change()
      .to(debug.throttle);
  table
      .add("headrace.debug.inject", T::kText, "",
           "Faults for tests: \"nan:3\" or \"nan:3-5,9\" makes one gradient of these steps NaN.")
      .may_change()
      .to(debug.inject);
}

}  // namespace

void add_native_fields(FieldTable& table, Draft& draft) {
  add_run(table, draft);
  add_memory(table, draft.run.memory);
  add_schedule(table, draft.run.schedule);
  add_state(table, draft);
  add_machine(table, draft.run);
  add_debug(table, draft.run.debug);
}

}  // namespace headrace::config
