// SPDX-License-Identifier: Apache-2.0
// perf_io: what our I/O moves, trailers and checksums included, beside the best of a fio sweep on the same files in the
// same run: backends × block × bytes in flight × paths, then the default and the best setting turn by turn with fio.
// Everything that is read is verified. Prints one JSON report; a table goes to standard error.
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/topology.h"
#include "runtime/profile/fio.h"
#include "runtime/profile/storage.h"
#include "runtime/profile/transfer_run.h"

namespace headrace::profile {
namespace {

using nlohmann::json;

struct Arguments {
  std::vector<std::string> paths;
  double seconds = 1.0;  // of one sample of the final; the sweep takes half
  int samples = 5;
  Bytes file_bytes = 2 * kGiB;
  std::string commit = "unknown", json_file, peer_python, peer_script;
};

[[noreturn]] void give_up(const std::string& message) {
  std::fprintf(stderr, "perf_io: %s\n", message.c_str());
  std::exit(1);
}

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) give_up(result.error().to_string());
  return std::move(result).value();
}

void check(const Result<void>& result) {
  if (!result.ok()) give_up(result.error().to_string());
}

constexpr Traffic kAll[] = {Traffic::kRead, Traffic::kWrite, Traffic::kMixed};
constexpr Bytes kBlocks[] = {kMiB, 4 * kMiB};
constexpr Bytes kInFlight[] = {8 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};

struct Backend {
  io::IoBackendChoice choice;
  const char* name;
};
constexpr Backend kBackends[] = {{io::IoBackendChoice::kUring, "io_uring"},
                                 {io::IoBackendChoice::kLibaio, "libaio"},
                                 {io::IoBackendChoice::kThreads, "threads"}};

// The samples of one thing, and what they cost.
struct Series {
  std::vector<double> rates;
  std::vector<double> cpu;  // seconds per byte
};

// One set of paths: the files of all of them exist, the runs use the first `count`.
class Bench {
 public:
  Bench(const Arguments& arguments, TransferRun& run, const FioProgram& fio, std::size_t count)
      : arguments_(arguments), run_(run), fio_(fio), which_(count) {
    std::iota(which_.begin(), which_.end(), 0U);
    memory_ = value_of(
        make_io_memory(run.memory_bytes({4 * kMiB, 64 * kMiB, io::IoBackendChoice::kAuto}), PageKind::kExplicitHuge));
    paths_text_ = count == 1 ? "1 path" : fmt::format("{} paths", count);
  }

  void measure(json& results) {
    sweep_fio();
    sweep_ours(results);
    finals(results);
  }

 private:
  static constexpr Bytes kNoLimit = 1024 * kGiB;

  Sample ours(Traffic traffic, const TransferSetting& setting, double seconds) {
    return value_of(run_.run(traffic, setting, {seconds, kNoLimit, false}, memory_.bytes(), which_));
  }
  FioSample theirs(Traffic traffic, const FioSetting& setting, double seconds) {
    return value_of(run_fio(fio_, setting, run_, which_, traffic, {seconds, kNoLimit, false}));
  }

  // The ceiling's settings: one for each traffic.
  void sweep_fio() {
    double best[3] = {};
    for (const bool huge : {true, false}) {
      for (const char* engine : {"io_uring", "libaio"}) {
        for (const Bytes block : kBlocks) {
          for (const Bytes flight : kInFlight) {
            const FioSetting setting{engine, block, flight, huge};
            if (!huge && (block != 4 * kMiB || flight != 32 * kMiB)) continue;
            for (std::size_t i = 0; i < 3; ++i) {
              const double rate = theirs(kAll[i], setting, arguments_.seconds / 2).bytes_per_s;
              if (rate <= best[i]) continue;
              best[i] = rate;
              fio_best_[i] = setting;
            }
          }
        }
      }
    }
    for (std::size_t i = 0; i < 3; ++i)
      std::fprintf(stderr, "fio, %s, %s: %s with %s\n", paths_text_.c_str(), traffic_name(kAll[i]),
                   format_rate(best[i]).c_str(), fio_setting_text(fio_best_[i]).c_str());
  }

  void sweep_ours(json& results) {
    double best[3] = {};
    for (const Backend& backend : kBackends) {
      for (const Bytes block : kBlocks) {
        for (const Bytes flight : kInFlight) {
          const TransferSetting setting{block, flight, backend.choice};
          for (std::size_t i = 0; i < 3; ++i) {
            const auto sample =
                run_.run(kAll[i], setting, {arguments_.seconds / 2, kNoLimit, false}, memory_.bytes(), which_);
            if (!sample.ok()) {
              std::fprintf(stderr, "%s: %s\n", backend.name, sample.error().message.c_str());
              continue;
            }
            const double rate = sample->whole_bytes_per_s;
            results.push_back(
                {{"name", fmt::format("sweep: {}, {}, {}, block {}, {} in flight", traffic_name(kAll[i]), paths_text_,
                                      backend.name, format_bytes(block), format_bytes(flight))},
                 {"value", rate},
                 {"unit", "bytes/s"},
                 {"ceiling", nullptr},
                 {"fraction", nullptr},
                 {"samples", {rate}},
                 {"cores_per_2_GB_per_s", sample->cpu_seconds_per_byte * 2e9}});
            if (rate <= best[i]) continue;
            best[i] = rate;
            our_best_[i] = setting;
          }
        }
      }
    }
  }

  // Turn by turn: fio at its best, we at the default and at our best.
  void finals(json& results) {
    Series fio[3], standard[3], best[3];
    for (int turn = 0; turn < arguments_.samples; ++turn) {
      for (std::size_t i = 0; i < 3; ++i) {
        const auto add = [&](Series& series, const TransferSetting& setting) {
          const Sample sample = ours(kAll[i], setting, arguments_.seconds);
          series.rates.push_back(sample.whole_bytes_per_s);
          series.cpu.push_back(sample.cpu_seconds_per_byte);
        };
        add(standard[i], default_setting(which_.size()));
        const FioSample sample = theirs(kAll[i], fio_best_[i], arguments_.seconds);
        fio[i].rates.push_back(sample.bytes_per_s);
        fio[i].cpu.push_back(sample.cpu_seconds_per_byte);
        add(best[i], our_best_[i]);
      }
    }
    const double additive = 2 / (1 / median_of(fio[0].rates) + 1 / median_of(fio[1].rates));
    for (std::size_t i = 0; i < 3; ++i) {
      const double alone = median_of(fio[i].rates);
      const double ceiling = kAll[i] == Traffic::kMixed ? std::max(alone, additive) : alone;
      report(results, fmt::format("{}, {}", traffic_name(kAll[i]), paths_text_), standard[i], ceiling,
             setting_text(default_setting(which_.size())));
      report(results, fmt::format("{} at its best setting, {}", traffic_name(kAll[i]), paths_text_), best[i], ceiling,
             setting_text(our_best_[i]));
      json line = entry(fmt::format("fio {}, {}", traffic_name(kAll[i]), paths_text_), fio[i], ceiling);
      line["setting"] = fio_setting_text(fio_best_[i]);
      if (kAll[i] == Traffic::kMixed) line["additive_bound"] = additive;
      results.push_back(line);
    }
  }

  static std::string setting_text(const TransferSetting& setting) {
    const auto* const backend = std::find_if(std::begin(kBackends), std::end(kBackends),
                                             [&](const Backend& one) { return one.choice == setting.backend; });
    return fmt::format("{}, block {}, {} in flight", backend == std::end(kBackends) ? "auto" : backend->name,
                       format_bytes(setting.block_bytes), format_bytes(setting.in_flight_bytes));
  }

  static json entry(const std::string& name, const Series& series, double ceiling) {
    const double value = median_of(series.rates);
    return {{"name", name},
            {"value", value},
            {"unit", "bytes/s"},
            {"ceiling", ceiling},
            {"fraction", value / ceiling},
            {"samples", series.rates},
            {"cores_per_2_GB_per_s", median_of(series.cpu) * 2e9}};
  }

  void report(json& results, const std::string& name, const Series& series, double ceiling,
              const std::string& setting) {
    json line = entry(name, series, ceiling);
    line["setting"] = setting;
    std::fprintf(stderr, "%-40s %10s  of fio %.3f  spread %2.0f %%  %.2f cores per 2 GB/s  (%s)\n", name.c_str(),
                 format_rate(median_of(series.rates)).c_str(), median_of(series.rates) / ceiling,
                 100 * spread_of(series.rates), median_of(series.cpu) * 2e9, setting.c_str());
    results.push_back(line);
  }

  Arguments arguments_;
  TransferRun& run_;
  FioProgram fio_;
  std::vector<std::uint32_t> which_;
  HostSlab memory_;
  std::string paths_text_;
  FioSetting fio_best_[3];
  TransferSetting our_best_[3];
};

// DeepSpeed's handle by the peers' script: at the best of its own sweep turn by turn with us. The script's fio lines
// are left out, ours is the ceiling.
class Peer {
 public:
  Peer(const Arguments& arguments, TransferRun& run) : arguments_(arguments), run_(run) {
    memory_ = value_of(make_io_memory(run.memory_bytes(TransferSetting{}), PageKind::kExplicitHuge));
  }

  void measure(json& results) {
    const json sweep = script("--blocks-mib 1 4 8 --rounds 3");
    const Traffic kinds[] = {Traffic::kRead, Traffic::kWrite};
    Series peer[2], standard[2];
    for (int turn = 0; turn < arguments_.samples; ++turn) {
      for (std::size_t i = 0; i < 2; ++i) {
        const json& setting = best_of(sweep, kinds[i])["setting"];
        const json report = script(fmt::format("--blocks-mib {} --handle-depths {} --handle-threads {} --rounds 1",
                                               setting[0].dump(), setting[1].dump(), setting[2].dump()));
        peer[i].rates.push_back(best_of(report, kinds[i])["GB_per_s"]["median"].get<double>() * 1e9);
        const std::uint32_t first[] = {0};
        const Sample sample = value_of(
            run_.run(kinds[i], TransferSetting{}, {arguments_.seconds, 1024 * kGiB, false}, memory_.bytes(), first));
        standard[i].rates.push_back(sample.whole_bytes_per_s);
      }
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const double theirs = median_of(peer[i].rates), ours = median_of(standard[i].rates);
      const char* kind = traffic_name(kinds[i]);
      std::fprintf(stderr, "%s, 1 path: %s, DeepSpeed's aio %s: %.3f of it\n", kind, format_rate(ours).c_str(),
                   format_rate(theirs).c_str(), ours / theirs);
      results.push_back({{"name", fmt::format("{} beside DeepSpeed's aio, 1 path", kind)},
                         {"value", ours},
                         {"unit", "bytes/s"},
                         {"ceiling", theirs},
                         {"fraction", ours / theirs},
                         {"samples", standard[i].rates},
                         {"peer_samples", peer[i].rates},
                         {"peer_setting", best_of(sweep, kinds[i])["setting"]}});
    }
    std::filesystem::remove_all(arguments_.paths[0] + "/peer");
  }

 private:
  static const json& best_of(const json& report, Traffic traffic) {
    return report["best"][fmt::format("handle {}", traffic_name(traffic))];
  }

  json script(const std::string& options) {
    const std::string folder = arguments_.paths[0] + "/peer", file = folder + "/report.json";
    std::filesystem::create_directories(folder);
    const std::string command =
        fmt::format("'{}' '{}' --dir '{}' --json '{}' --engines io_uring --fio-sizes-mib 64 --fio-depths 8 {} >&2",
                    arguments_.peer_python, arguments_.peer_script, folder, file, options);
    if (std::system(command.c_str()) != 0) give_up("the peer's script failed: " + command);
    std::ifstream stream(file);
    json report = json::parse(stream, nullptr, false);
    if (report.is_discarded() || !report.contains("best")) give_up("the peer's report cannot be read: " + file);
    return report;
  }

  Arguments arguments_;
  TransferRun& run_;
  HostSlab memory_;
};

int run(const Arguments& arguments) {
  const std::optional<FioProgram> fio = find_fio();
  if (!fio) give_up("fio is the ceiling and is not installed: apt-get install fio");
  std::vector<TestFile> files = value_of(make_test_files(arguments.paths, arguments.file_bytes));
  TransferRun transfers(files, 4 * kMiB);
  check(transfers.lay_out(TransferSetting{}, 120));
  json results = json::array();
  for (std::size_t count = 1; count <= arguments.paths.size(); ++count)
    Bench(arguments, transfers, *fio, count).measure(results);
  if (!arguments.peer_python.empty()) Peer(arguments, transfers).measure(results);
  check(transfers.verify(TransferSetting{}));
  utsname system{};
  ::uname(&system);
  const Topology topology = detect_topology();
  std::string pages = "page cache";
  if (files.front().direct) pages = "direct";
  const json report{{"machine",
                     {{"kernel", system.release},
                      {"cpu", topology.cpu_model},
                      {"cpus", topology.usable_cores},
                      {"fio", fio->version},
                      {"mode", pages}}},
                    {"commit", arguments.commit},
                    {"results", results},
                    {"written_bytes", transfers.written_bytes()},
                    {"verified_bytes", transfers.verified_bytes()}};
  std::fprintf(stderr, "%s written by us (as much again by fio), %s read through checksums\n",
               format_bytes(transfers.written_bytes()).c_str(), format_bytes(transfers.verified_bytes()).c_str());
  if (arguments.json_file.empty()) {
    std::printf("%s\n", report.dump(1).c_str());
  } else {
    std::ofstream(arguments.json_file) << report.dump(1) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace headrace::profile

int main(int argc, char** argv) {
  headrace::profile::Arguments arguments;
  const char* const usage =
      "usage: perf_io FOLDER [FOLDER…] [--seconds S] [--samples N] [--file-size SIZE] [--json FILE] [--commit ID]\n"
      "               [--peer-python PYTHON --peer-script bench_storage.py]\n";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word.rfind("--", 0) != 0) {
      arguments.paths.push_back(word);
    } else if (word == "--seconds" && has_value) {
      arguments.seconds = std::max(0.05, std::atof(argv[++i]));
    } else if (word == "--samples" && has_value) {
      arguments.samples = std::max(1, std::atoi(argv[++i]));
    } else if (word == "--file-size" && has_value) {
      const auto size = headrace::parse_bytes(argv[++i]);
      if (!size.ok()) headrace::profile::give_up(size.error().to_string());
      arguments.file_bytes = *size;
    } else if (word == "--json" && has_value) {
      arguments.json_file = argv[++i];
    } else if (word == "--commit" && has_value) {
      arguments.commit = argv[++i];
    } else if (word == "--peer-python" && has_value) {
      arguments.peer_python = argv[++i];
    } else if (word == "--peer-script" && has_value) {
      arguments.peer_script = argv[++i];
    } else {
      std::fputs(usage, stderr);
      return 2;
    }
  }
  if (arguments.paths.empty() || arguments.peer_python.empty() != arguments.peer_script.empty()) {
    std::fputs(usage, stderr);
    return 2;
  }
  return headrace::profile::run(arguments);
}
