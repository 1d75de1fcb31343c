// SPDX-License-Identifier: Apache-2.0
// perf_adam: rate of the AdamW update and of gradient arrival, per format, SIMD target and thread count, against the
// memory bandwidth for the same streams (same arrays, same reads and writes) taken turn by turn in the same run. Prints
// one JSON report.
#include <sys/mman.h>
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "cpu_adam/adamw.h"

namespace headrace::cpu_adam {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double deviation(const std::vector<double>& values) {
  const double center = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::fabs(value - center));
  return median(distances);
}

// Zeroed memory in huge pages where the system gives them: both sides of the comparison use the same arrays.
class Memory {
 public:
  explicit Memory(Bytes bytes) : bytes_(static_cast<std::size_t>(round_up(bytes, 2 * kMiB))) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      std::perror("perf_adam: mmap");
      std::exit(1);
    }
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

enum class Access { kRead, kUpdate, kWrite };
struct Stream {
  std::uint64_t* words;
  Bytes element_bytes;
  Access access;
};

// What one pass over memory costs: reads, updates or overwrites every word of every stream, `block` elements of each in
// turn. The key is 0 at run time, so the contents survive; wide vectors are the compiler's choice.
__attribute__((target_clones("avx512f", "avx2", "default"), noinline)) std::uint64_t touch(std::uint64_t* words,
                                                                                           std::int64_t count,
                                                                                           Access access,
                                                                                           std::uint64_t key) {
  std::uint64_t sum = 0;
  if (access == Access::kRead) {
    for (std::int64_t i = 0; i < count; ++i) sum ^= words[i];
  } else if (access == Access::kUpdate) {
    for (std::int64_t i = 0; i < count; ++i) words[i] ^= key;
  } else {
    for (std::int64_t i = 0; i < count; ++i) words[i] = key;
  }
  return sum;
}

volatile std::uint64_t g_key = 0;
volatile std::uint64_t g_sink = 0;

struct Pass {
  std::int64_t elements;
  std::int64_t block;
  bool prefetch;
  int threads;
};

// Asks for the lines that lie 512 elements behind this block.
void prefetch(const Stream& s, std::int64_t at, std::int64_t count) {
  const auto begin =
      reinterpret_cast<std::uintptr_t>(s.words) + static_cast<std::uintptr_t>((at + 512) * s.element_bytes);
  for (std::uintptr_t line = 0; line < static_cast<std::uintptr_t>(count * s.element_bytes); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + line));
  }
}

void sweep(const std::vector<Stream>& streams, const Pass& pass) {
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    const std::uint64_t key = g_key;
    std::uint64_t sum = 0;
    for (std::int64_t at = begin; at < end; at += pass.block) {
      const std::int64_t count = std::min(pass.block, end - at);
      for (const Stream& s : streams) {
        if (pass.prefetch) prefetch(s, at, count);
        sum ^= touch(s.words + at * s.element_bytes / 8, count * s.element_bytes / 8, s.access, key);
      }
    }
    g_sink = sum;
  };
  std::vector<std::thread> others;
  const std::int64_t share = round_up(ceil_div(pass.elements, pass.threads), pass.block);
  for (int t = 1; t < pass.threads; ++t) {
    others.emplace_back(work, std::min(pass.elements, share * t), std::min(pass.elements, share * (t + 1)));
  }
  work(0, std::min(pass.elements, share));
  for (std::thread& other : others) other.join();
}

// The best of several ways to sweep is the ceiling of one turn.
double sweep_seconds(const std::vector<Stream>& streams, std::int64_t elements, int threads) {
  double best = INFINITY;
  for (const std::int64_t block : {64, 512, 4096}) {
    for (const bool prefetch : {false, true}) {
      if (prefetch && block > 512) continue;  // the lines asked for would be gone again
      best = std::min(best, seconds_of([&] { sweep(streams, {elements, block, prefetch, threads}); }));
    }
  }
  return best;
}

struct Format {
  const char* name;
  StateFormat format;
  DType weights;
  DType gradient;
};
constexpr Format kFormats[] = {
    {"split, bf16 gradient", StateFormat::kSplit, DType::kBf16, DType::kBf16},
    {"fp32 master + bf16 weights, bf16 gradient", StateFormat::kFp32, DType::kBf16, DType::kBf16},
    {"fp32 weights, fp32 gradient", StateFormat::kFp32, DType::kFp32, DType::kFp32},
    {"fp32 master + fp16 weights, fp16 gradient", StateFormat::kFp32, DType::kFp16, DType::kFp16},
};

struct Data {
  explicit Data(std::int64_t n)
      : elements(n),
        weights(4 * n),
        master(4 * n),
        remainder(2 * n),
        exp_avg(4 * n),
        exp_avg_sq(4 * n),
        gradient(4 * n) {}
  std::int64_t elements;
  Memory weights, master, remainder, exp_avg, exp_avg_sq, gradient;
};

bool has_master(const Format& f) { return f.format == StateFormat::kFp32 && f.weights != DType::kFp32; }

AdamWArrays arrays_of(const Data& data, const Format& f) {
  AdamWArrays a;
  a.weights = data.weights.as<void>();
  a.weights_dtype = f.weights;
  if (has_master(f)) a.master = data.master.as<float>();
  if (f.format == StateFormat::kSplit) a.remainder = data.remainder.as<std::int16_t>();
  a.exp_avg = data.exp_avg.as<float>();
  a.exp_avg_sq = data.exp_avg_sq.as<float>();
  a.gradient = data.gradient.as<void>();
  a.gradient_dtype = f.gradient;
  a.elements = data.elements;
  return a;
}

std::vector<Stream> streams_of(const Data& data, const Format& f) {
  std::vector<Stream> s = {{data.gradient.as<std::uint64_t>(), dtype_bytes(f.gradient), Access::kRead},
                           {data.exp_avg.as<std::uint64_t>(), 4, Access::kUpdate},
                           {data.exp_avg_sq.as<std::uint64_t>(), 4, Access::kUpdate}};
  if (has_master(f)) s.push_back({data.master.as<std::uint64_t>(), 4, Access::kUpdate});
  if (f.format == StateFormat::kSplit) s.push_back({data.remainder.as<std::uint64_t>(), 2, Access::kUpdate});
  s.push_back(
      {data.weights.as<std::uint64_t>(), dtype_bytes(f.weights), has_master(f) ? Access::kWrite : Access::kUpdate});
  return s;
}

// Bytes that the formula needs to move; a line that is only written counts once.
Bytes bytes_per_element(const std::vector<Stream>& streams) {
  Bytes bytes = 0;
  for (const Stream& s : streams) bytes += s.element_bytes * (s.access == Access::kUpdate ? 2 : 1);
  return bytes;
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

// Elements first … first + a.elements of the initial state.
void fill(const AdamWArrays& a, std::int64_t first) {
  for (std::int64_t i = 0; i < a.elements; ++i) {
    const float w = value_at(first + i, 1);
    if (a.remainder != nullptr) {
      const SplitMaster split = split_master(w);
      static_cast<std::uint16_t*>(a.weights)[i] = split.hi;
      static_cast<std::int16_t*>(a.remainder)[i] = split.lo;
    } else {
      put(a.weights, a.weights_dtype, i, w);
    }
    if (a.master != nullptr) a.master[i] = w;
    static_cast<float*>(a.exp_avg)[i] = 0.01F * value_at(first + i, 2);
    static_cast<float*>(a.exp_avg_sq)[i] = std::abs(0.01F * value_at(first + i, 3));
    put(const_cast<void*>(a.gradient), a.gradient_dtype, i, value_at(first + i, 4));
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
    const AdamWArrays expected = arrays_of(copy, f);
    fill(expected, first);
    for (std::int64_t t = 1; t <= steps; ++t) adamw_update(expected, f.format, hyper_at(t), Target::kScalar);
    const auto same = [&](const Memory& whole, const Memory& window, Bytes size) {
      return std::memcmp(whole.as<char>() + first * size, window.as<char>(), static_cast<std::size_t>(length * size)) ==
             0;
    };
    if (!same(data.weights, copy.weights, dtype_bytes(f.weights)) || !same(data.exp_avg, copy.exp_avg, 4) ||
        !same(data.exp_avg_sq, copy.exp_avg_sq, 4) || (has_master(f) && !same(data.master, copy.master, 4)) ||
        (expected.remainder != nullptr && !same(data.remainder, copy.remainder, 2))) {
      return false;
    }
  }
  return true;
}

struct Options {
  std::int64_t elements = std::int64_t{64} << 20;
  int samples = 5;
  std::string json;
  std::string commit = "unknown";
  bool all = false;
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

// The loop alone: a working set that the second-level cache holds.
nlohmann::json measure_in_cache(const Format& f, Target target, int samples) {
  constexpr std::int64_t kElements = 16384;
  constexpr int kRounds = 500;
  const Data data(kElements);
  const AdamWArrays arrays = arrays_of(data, f);
  fill(arrays, 0);
  std::vector<double> rates;
  for (int s = 0; s < samples; ++s) {
    const double seconds = seconds_of([&] {
      for (int r = 0; r < kRounds; ++r) adamw_update(arrays, f.format, hyper_at(1000), target);
    });
    rates.push_back(kElements * kRounds / seconds);
  }
  return report(label(f, target, 1) + ", in cache", rates, {});
}

nlohmann::json measure_update(const Data& data, const Format& f, Target target, int threads, const Options& options) {
  const AdamWArrays arrays = arrays_of(data, f);
  fill(arrays, 0);
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
  const Bytes bytes = bytes_per_element(streams);
  entry["bytes_per_parameter"] = bytes;
  entry["bytes_per_s"] = median(rates) * static_cast<double>(bytes);
  entry["ceiling_bytes_per_s"] = median(ceilings) * static_cast<double>(bytes);
  return entry;
}

nlohmann::json measure_arrival(const Data& data, bool add, int threads, const Options& options) {
  const auto chunks = static_cast<std::size_t>(ceil_div(data.elements, ParallelUpdater::kNormChunk));
  std::vector<double> sums(chunks);
  std::vector<std::int64_t> non_finite(chunks);
  const ParallelUpdater updater(threads);
  auto* source = data.master.as<float>();
  auto* destination = data.weights.as<std::uint16_t>();
  for (std::int64_t i = 0; i < data.elements; ++i) source[i] = value_at(i, 5);
  const std::vector<Stream> streams = {{data.master.as<std::uint64_t>(), 4, Access::kRead},
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
    } else if (i + 1 < argc && word == "--commit") {
      options.commit = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: perf_adam [--elements N] [--samples N] [--all] [--json FILE] [--commit NAME]\n"
                   "  --all: also the slower SIMD targets, the formats beside split, and the scalar loop\n");
      std::exit(2);
    }
  }
  if (options.elements < 4096 || options.samples < 1) {
    std::fprintf(stderr, "perf_adam: --elements must be at least 4096 and --samples at least 1\n");
    std::exit(2);
  }
  options.elements = round_up(options.elements, 4096);
  return options;
}

int run(const Options& options) {
  const Data data(options.elements);
  nlohmann::json results = nlohmann::json::array();
  const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<int> thread_counts = {1};
  if (cpus > 1) thread_counts.push_back(2);
  if (cpus > 2) thread_counts.push_back(cpus);
  for (const Format& f : kFormats) {
    for (const Target target : {Target::kAvx512, Target::kAvx2, Target::kScalar}) {
      if (!target_available(target) || (!options.all && target < Target::kAvx2)) continue;
      results.push_back(measure_in_cache(f, target, options.samples));
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
