// SPDX-License-Identifier: Apache-2.0
// perf_adam: rate of the AdamW update and of gradient arrival, per format, SIMD target and thread count, against the
// memory bandwidth for the same streams (same arrays, same reads and writes) taken turn by turn in the same run. Prints
// one JSON report.
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "cpu_adam/format_state.h"
#include "perf/adam_ports.h"
#include "perf/memory_ceiling.h"

namespace headrace::cpu_adam {
namespace {

using perf::Access, perf::Memory, perf::Stream, perf::deviation, perf::median, perf::seconds_of, perf::sweep_seconds;

struct Format {
  const char* name;
  StateFormat format;
  DType weights;
  DType gradient;
};
constexpr Format kFormats[] = {
    {"split, bf16 gradient", StateFormat::kSplit, DType::kBf16, DType::kBf16},
    {"split_bf16, bf16 gradient", StateFormat::kSplitBf16, DType::kBf16, DType::kBf16},
    {"compact, bf16 gradient", StateFormat::kCompact, DType::kBf16, DType::kBf16},
    {"fp32 master + bf16 weights, bf16 gradient", StateFormat::kFp32, DType::kBf16, DType::kBf16},
    {"fp32 weights, fp32 gradient", StateFormat::kFp32, DType::kFp32, DType::kFp32},
    {"fp32 master + fp16 weights, fp16 gradient", StateFormat::kFp32, DType::kFp16, DType::kFp16},
};

// Room for every format: 12 bytes of state is the most.
struct Data {
  explicit Data(std::int64_t n) : elements(n), weights(4 * n), state(12 * n), gradient(4 * n) {}
  std::int64_t elements;
  Memory weights, state, gradient;
};

bool has_master(const Format& f) { return f.format == StateFormat::kFp32 && f.weights != DType::kFp32; }

StatePlanes planes_of(const Data& data, const Format& f) { return state_planes(f.format, f.weights, data.elements); }

// Elements first … first + elements.
AdamWArrays arrays_of(const Data& data, const Format& f, std::int64_t first, std::int64_t elements) {
  AdamWArrays a;
  a.weights = data.weights.as<std::byte>() + first * dtype_bytes(f.weights);
  a.weights_dtype = f.weights;
  a.gradient = data.gradient.as<std::byte>() + first * dtype_bytes(f.gradient);
  a.gradient_dtype = f.gradient;
  point_at_state(a, f.format, planes_of(data, f), data.state.as<std::byte>(), first);
  a.elements = elements;
  a.first_element = first;
  return a;
}
AdamWArrays arrays_of(const Data& data, const Format& f) { return arrays_of(data, f, 0, data.elements); }

struct Plane {
  Bytes offset, element_bytes;
};

// Without the scales of compact, which are one byte of 64.
std::vector<Plane> wide_planes(const Data& data, const Format& f) {
  const StatePlanes p = planes_of(data, f);
  const Bytes moment = (p.exp_avg_sq - p.exp_avg) / data.elements;
  std::vector<Plane> planes = {{p.exp_avg, moment}, {p.exp_avg_sq, moment}};
  if (p.master != StatePlanes::kNone) planes.push_back({p.master, 4});
  if (p.remainder != StatePlanes::kNone) planes.push_back({p.remainder, p.exp_avg / data.elements});
  return planes;
}

std::vector<Stream> streams_of(const Data& data, const Format& f) {
  std::vector<Stream> s = {{data.gradient.as<std::uint64_t>(), dtype_bytes(f.gradient), Access::kRead}};
  for (const Plane& plane : wide_planes(data, f)) {
    auto* const words = reinterpret_cast<std::uint64_t*>(data.state.as<std::byte>() + plane.offset);
    s.push_back({words, plane.element_bytes, Access::kUpdate});
  }
  s.push_back(
      {data.weights.as<std::uint64_t>(), dtype_bytes(f.weights), has_master(f) ? Access::kWrite : Access::kUpdate});
  return s;
}

// Bytes that the formula needs to move; a line that is only written counts once.
double bytes_per_element(const std::vector<Stream>& streams, const Format& f) {
  Bytes bytes = 0;
  for (const Stream& s : streams) bytes += s.element_bytes * (s.access == Access::kUpdate ? 2 : 1);
  return static_cast<double>(bytes) + (f.format == StateFormat::kCompact ? 2 * 2.0 / kCompactBlockElements : 0.0);
}

// Deterministic contents of element i: no generator state, so that any window can be made again.
float value_at(std::int64_t i, std::uint32_t salt) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15U + salt;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9U;
  return static_cast<float>(static_cast<std::int32_t>(x >> 32)) * 0x1p-31F;
}

void put(void* to, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::kFp32) static_cast<float*>(to)[at] = value;
  if (dtype == DType::kBf16) static_cast<std::uint16_t*>(to)[at] = to_bf16(value).bits;
  if (dtype == DType::kFp16) static_cast<std::uint16_t*>(to)[at] = to_fp16(value).bits;
}

// The initial state of elements whose number in the whole is `first` and up; conversions take a piece at a time.
void fill(const Data& data, const Format& f, std::int64_t first) {
  constexpr std::int64_t kPiece = 4096;
  std::vector<float> master(kPiece), exp_avg(kPiece), exp_avg_sq(kPiece);
  for (std::int64_t at = 0; at < data.elements; at += kPiece) {
    const AdamWArrays a = arrays_of(data, f, at, std::min(kPiece, data.elements - at));
    for (std::int64_t i = 0; i < a.elements; ++i) {
      const std::int64_t number = first + at + i;
      const auto k = static_cast<std::size_t>(i);
      master[k] = value_at(number, 1);
      exp_avg[k] = 0.01F * value_at(number, 2);
      exp_avg_sq[k] = std::abs(0.01F * value_at(number, 3));
      put(const_cast<void*>(a.gradient), a.gradient_dtype, i, value_at(number, 4));
    }
    const auto count = static_cast<std::size_t>(a.elements);
    const Result<void> done = narrow_state(std::span(master).first(count), std::span(exp_avg).first(count),
                                           std::span(exp_avg_sq).first(count), f.format, a);
    if (!done.ok()) {
      std::fprintf(stderr, "perf_adam: %s\n", done.error().message.c_str());
      std::exit(1);
    }
  }
}

AdamWHyper hyper_at(std::int64_t step) {
  AdamWHyper h;
  h.optimizer_step = step;
  h.weight_decay = 0.1;
  h.gradient_scale = 0.5F;
  return h;
}

// Three windows of the arrays must hold what the scalar target makes of the same number of updates.
bool windows_are_right(const Data& data, const Format& f, std::int64_t steps) {
  const std::int64_t length = std::min<std::int64_t>(4096, data.elements);
  for (const std::int64_t first : {std::int64_t{0}, (data.elements - length) / 2, data.elements - length}) {
    const Data copy(length);
    fill(copy, f, first);
    AdamWArrays expected = arrays_of(copy, f);
    expected.first_element = first;
    for (std::int64_t t = 1; t <= steps; ++t) adamw_update(expected, f.format, hyper_at(t), Target::kScalar);
    const auto same = [&](const std::byte* whole, const std::byte* window, Bytes size) {
      return std::memcmp(whole + first * size, window, static_cast<std::size_t>(length * size)) == 0;
    };
    bool right = same(data.weights.as<std::byte>(), copy.weights.as<std::byte>(), dtype_bytes(f.weights));
    const std::vector<Plane> whole = wide_planes(data, f);
    const std::vector<Plane> window = wide_planes(copy, f);
    for (std::size_t j = 0; j < whole.size(); ++j) {
      right = right && same(data.state.as<std::byte>() + whole[j].offset, copy.state.as<std::byte>() + window[j].offset,
                            whole[j].element_bytes);
    }
    if (!right) return false;
  }
  return true;
}

struct Options {
  std::int64_t elements = std::int64_t{64} << 20;
  int samples = 5;
  std::string json;
  std::string commit = "unknown";
  bool all = false;
  int threads = 0;  // > 0: the best target on so many, and no other
  double clock_hz = 0;
};

nlohmann::json report(const std::string& name, const std::vector<double>& rates, const std::vector<double>& ceilings) {
  nlohmann::json entry = {{"name", name},       {"value", median(rates)},  {"unit", "parameters/s"},
                          {"samples", rates},   {"mad", deviation(rates)}, {"ceiling", nullptr},
                          {"fraction", nullptr}};
  if (!ceilings.empty()) {
    entry["ceiling"] = median(ceilings);
    entry["fraction"] = median(rates) / median(ceilings);
    entry["ceiling_samples"] = ceilings;
  }
  std::fprintf(stderr, "%-72s %7.3f ns/parameter", name.c_str(), 1e9 / median(rates));
  if (!ceilings.empty()) std::fprintf(stderr, "  %5.1f %% of memory", 100 * median(rates) / median(ceilings));
  std::fprintf(stderr, "\n");
  return entry;
}

std::string label(const Format& f, Target target, int threads) {
  return std::string("adamw ") + f.name + ", " + target_name(target) + ", " + std::to_string(threads) +
         (threads == 1 ? " thread" : " threads");
}

// Nanoseconds for an element that the ports of one core need; 0 for the scalar loop.
double ports_ns(const Format& f, Target target, double clock_hz, nlohmann::json& entry) {
  if (target == Target::kScalar || clock_hz <= 0) return 0;
  const perf::PortMix mix = perf::count_adamw(f.format, f.weights, f.gradient, target);
  const double ns = mix.cycles() / clock_hz * 1e9;
  entry["ports"] = {{"model", perf::kPortModel},
                    {"clock_hz", clock_hz},
                    {"divides", mix.divides},
                    {"roots", mix.roots},
                    {"arithmetic", mix.arithmetic},
                    {"bound", mix.bound},
                    {"shuffles", mix.shuffles},
                    {"loads", mix.loads},
                    {"stores", mix.stores},
                    {"divider_cycles", mix.divider_cycles},
                    {"vector_cycles", mix.vector_cycles},
                    {"shuffle_cycles", mix.shuffle_cycles},
                    {"memory_cycles", mix.memory_cycles}};
  return ns;
}

// Adds what time the ports need to the entry, and how far the measured time is from the larger limit.
void add_limits(const Format& f, Target target, int threads, double clock_hz, nlohmann::json& entry) {
  const double ports = ports_ns(f, target, clock_hz, entry) / threads;
  const double memory = entry["ceiling"].is_null() ? 0 : 1e9 / entry["ceiling"].get<double>();
  if (ports <= 0) return;
  entry["ports_ns"] = ports;
  entry["time_over_limit"] = 1e9 / entry["value"].get<double>() / std::max(ports, memory);
  std::fprintf(stderr, "  ports %.3f ns, memory %.3f ns: %.2f of the larger\n", ports, memory,
               entry["time_over_limit"].get<double>());
}

// The loop alone: a working set that the second-level cache holds. A sample is the fastest of slices that are shorter
// than a turn of the scheduler, so that other programs do not count.
nlohmann::json measure_in_cache(const Format& f, Target target, const Options& options) {
  constexpr std::int64_t kElements = 16384;
  constexpr int kSlices = 25;
  constexpr int kRounds = 20;
  const Data data(kElements);
  fill(data, f, 0);
  const AdamWArrays arrays = arrays_of(data, f);
  std::vector<double> rates;
  for (int s = 0; s < options.samples; ++s) {
    double seconds = INFINITY;
    for (int slice = 0; slice < kSlices; ++slice) {
      seconds = std::min(seconds, seconds_of([&] {
                           for (int r = 0; r < kRounds; ++r) adamw_update(arrays, f.format, hyper_at(1000), target);
                         }));
    }
    rates.push_back(kElements * kRounds / seconds);
  }
  nlohmann::json entry = report(label(f, target, 1) + ", in cache", rates, {});
  add_limits(f, target, 1, options.clock_hz, entry);
  return entry;
}

nlohmann::json measure_update(const Data& data, const Format& f, Target target, int threads, const Options& options) {
  const AdamWArrays arrays = arrays_of(data, f);
  fill(data, f, 0);
  const std::vector<Stream> streams = streams_of(data, f);
  // The sweep overwrites arrays that are only written, which the update makes anew; one update comes last.
  const ParallelUpdater updater(threads, target);
  std::vector<double> rates;
  std::vector<double> ceilings;
  std::int64_t step = 0;
  updater.update(arrays, f.format, hyper_at(++step));
  for (int s = 0; s < options.samples; ++s) {
    ceilings.push_back(static_cast<double>(data.elements) / sweep_seconds(streams, data.elements, threads));
    ++step;
    const double seconds = seconds_of([&] { updater.update(arrays, f.format, hyper_at(step)); });
    rates.push_back(static_cast<double>(data.elements) / seconds);
  }
  if (!windows_are_right(data, f, step)) {
    std::fprintf(stderr, "perf_adam: %s: the arrays differ from the scalar target's\n",
                 label(f, target, threads).c_str());
    std::exit(1);
  }
  nlohmann::json entry = report(label(f, target, threads), rates, ceilings);
  add_limits(f, target, threads, options.clock_hz, entry);
  const double bytes = bytes_per_element(streams, f);
  entry["bytes_per_parameter"] = bytes;
  entry["bytes_per_s"] = median(rates) * bytes;
  entry["ceiling_bytes_per_s"] = median(ceilings) * bytes;
  return entry;
}

nlohmann::json measure_arrival(const Data& data, bool add, int threads, const Options& options) {
  const auto chunks = static_cast<std::size_t>(ceil_div(data.elements, ParallelUpdater::kNormChunk));
  std::vector<double> sums(chunks);
  std::vector<std::int64_t> non_finite(chunks);
  const ParallelUpdater updater(threads);
  auto* source = data.state.as<float>();
  auto* destination = data.weights.as<std::uint16_t>();
  for (std::int64_t i = 0; i < data.elements; ++i) source[i] = value_at(i, 5);
  const std::vector<Stream> streams = {{data.state.as<std::uint64_t>(), 4, Access::kRead},
                                       {data.weights.as<std::uint64_t>(), 2, add ? Access::kUpdate : Access::kWrite}};
  std::vector<double> rates;
  std::vector<double> ceilings;
  for (int s = 0; s < options.samples; ++s) {
    ceilings.push_back(static_cast<double>(data.elements) / sweep_seconds(streams, data.elements, threads));
    std::memset(destination, 0, static_cast<std::size_t>(2 * data.elements));
    rates.push_back(static_cast<double>(data.elements) / seconds_of([&] {
                      updater.arrive({source, destination, DType::kBf16, add, data.elements}, sums, non_finite);
                    }));
  }
  double want = 0;
  for (std::int64_t i = 0; i < data.elements; ++i) {
    const auto stored = static_cast<double>(to_fp32(Bf16{destination[i]}));
    if (destination[i] != to_bf16(source[i]).bits) {
      std::fprintf(stderr, "perf_adam: arrival: element %lld is wrong\n", static_cast<long long>(i));
      std::exit(1);
    }
    want += stored * stored;
  }
  double got = 0;
  for (const double sum : sums) got += sum;
  if (!(std::fabs(got - want) <= 1e-9 * want)) {
    std::fprintf(stderr, "perf_adam: arrival: sum of squares %g, expected %g\n", got, want);
    std::exit(1);
  }
  return report(std::string("arrive ") + (add ? "add " : "") + "bf16, " + std::to_string(threads) +
                    (threads == 1 ? " thread" : " threads"),
                rates, ceilings);
}

nlohmann::json machine() {
  utsname system{};
  ::uname(&system);
  std::string cpu = "unknown";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  return {{"kernel", system.release},
          {"cpu", cpu},
          {"cpus", std::thread::hardware_concurrency()},
          {"target", target_name(best_target())}};
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--all") {
      options.all = true;
    } else if (i + 1 < argc && word == "--elements") {
      options.elements = std::strtoll(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && word == "--samples") {
      options.samples = std::atoi(argv[++i]);
    } else if (i + 1 < argc && word == "--json") {
      options.json = argv[++i];
    } else if (i + 1 < argc && word == "--threads") {
      options.threads = std::atoi(argv[++i]);
    } else if (i + 1 < argc && word == "--commit") {
      options.commit = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: perf_adam [--elements N] [--samples N] [--all | --threads N] [--json FILE] [--commit NAME]\n"
                   "  --all: also the scalar loop, and the slower SIMD targets on several threads\n"
                   "  --threads: the best target on so many threads, and no other\n");
      std::exit(2);
    }
  }
  if (options.elements < 4096 || options.samples < 1 || options.threads < 0) {
    std::fprintf(stderr, "perf_adam: --elements must be at least 4096, --samples at least 1, --threads at least 0\n");
    std::exit(2);
  }
  options.elements = round_up(options.elements, 4096);
  return options;
}

int run(Options options) {
  options.clock_hz = perf::measure_clock();
  const Data data(options.elements);
  nlohmann::json results = nlohmann::json::array();
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> thread_counts = {1};
  if (cpus > 1) thread_counts.push_back(2);
  if (cpus > 2) thread_counts.push_back(cpus);
  if (options.threads > 0) thread_counts = {options.threads};
  for (const Format& f : kFormats) {
    for (const Target target : {Target::kAvx512, Target::kAvx2, Target::kNeon, Target::kScalar}) {
      if (!target_available(target) || (!options.all && target < Target::kAvx2)) continue;
      if (options.threads > 0 && target != best_target()) continue;
      results.push_back(measure_in_cache(f, target, options));
      for (const int threads : thread_counts) {
        if (!options.all && threads > 1 && target != best_target()) continue;
        results.push_back(measure_update(data, f, target, threads, options));
      }
    }
  }
  for (const int threads : thread_counts) {
    for (const bool add : {false, true}) results.push_back(measure_arrival(data, add, threads, options));
  }
  const nlohmann::json document = {
      {"machine", machine()}, {"commit", options.commit}, {"elements", options.elements}, {"results", results}};
  if (options.json.empty()) {
    std::printf("%s\n", document.dump(2).c_str());
    return 0;
  }
  std::ofstream out(options.json);
  out << document.dump(2) << '\n';
  out.close();
  if (!out) {
    std::fprintf(stderr, "perf_adam: cannot write %s\n", options.json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace headrace::cpu_adam

int main(int argc, char** argv) { return headrace::cpu_adam::run(headrace::cpu_adam::parse(argc, argv)); }
