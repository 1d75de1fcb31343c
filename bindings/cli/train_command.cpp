// SPDX-License-Identifier: Apache-2.0
// `headrace train`: reads the config, starts or resumes the run, prints a line per step and a summary.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <memory>
#include <thread>

#include "bindings/cli/command.h"
#include "bindings/cli/plan_text.h"
#include "bindings/cli/step_text.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/process.h"
#include "models/trainer/read_setup.h"
#include "models/trainer/trainer.h"

namespace headrace::cli {
namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string run_dir;
  std::string resume = "auto";
  std::int64_t max_steps = 0;
  int ranks = 1;
  std::string trace;
};

// Takes SIGINT and SIGTERM on a thread of its own: every other thread, made later, has them blocked, so that no
// computation and no I/O is ever interrupted. The first one asks the run to stop after its step, the second one ends
// the process.
class StopRequests {
 public:
  StopRequests() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { watch(); });
  }
  ~StopRequests() {
    ended_.store(true);
    thread_.join();
  }
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  [[nodiscard]] bool asked() const noexcept { return received_.load() > 0; }

 private:
  void watch() {
    set_thread_name("signals");
    constexpr timespec kLook{0, 100'000'000};  // how long the end of the program may wait for this thread
    while (!ended_.load()) {
      const int signal = sigtimedwait(&signals_, nullptr, &kLook);
      if (signal < 0) continue;
      if (received_.fetch_add(1) > 0) _exit(128 + signal);
      print_error("\n  finishing this step, then stopping. Again to stop at once (the last committed step is safe).\n");
    }
  }

  sigset_t signals_{};
  std::atomic<int> received_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

Result<models::ResumePolicy> parse_resume(const std::string& word) {
  if (word == "auto") return models::ResumePolicy::kAuto;
  if (word == "never") return models::ResumePolicy::kNever;
  if (word == "must") return models::ResumePolicy::kMust;
  return make_error(ErrorCode::kUsage, fmt::format("--resume {}: not one of auto, never, must", word),
                    "snapshots cannot be resumed from yet; a run folder is resumed by --run-dir");
}

// Prints where it belongs: lines of the run on standard output, or on standard error where that has a JSON document.
class Screen {
 public:
  explicit Screen(bool json)
      : file_(json ? stderr : stdout), live_(is_terminal(json ? STDERR_FILENO : STDOUT_FILENO)) {}
  void line(const std::string& text) {
    erase();
    write(text + "\n");
    std::fflush(file_);
  }
  // One line that the next one replaces; only on a terminal.
  void live(const std::string& text) {
    if (!live_) return;
    erase();
    write(text);
    std::fflush(file_);
    shown_ = true;
  }

 private:
  // A reader that has gone does not end the run.
  void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), file_); }
  void erase() {
    if (shown_) write("\r\033[K");
    shown_ = false;
  }
  FILE* file_;
  bool live_;
  bool shown_ = false;
};

std::string eta_text(std::uint64_t done, std::uint64_t total, double seconds_per_step) {
  const double left = static_cast<double>(total - done) * seconds_per_step;
  const double percent = 100.0 * static_cast<double>(done) / static_cast<double>(total);
  if (left < 90) return fmt::format("  {:.0f} % · {:.0f} s left", percent, left);
  if (left < 5400) return fmt::format("  {:.0f} % · {:.0f} min left", percent, left / 60);
  return fmt::format("  {:.0f} % · {:.1f} h left", percent, left / 3600);
}

void print_start(models::Trainer& trainer, const models::TrainingSetup& setup, Screen& screen) {
  screen.line(plan_text(trainer.plan(), setup, trainer.engine().describe_storage()));
  screen.line(bound_text(trainer.bound(), trainer.plan(), setup) + (setup.config.run.hardware.has_value()
                                                                        ? ", rates from " + *setup.config.run.hardware
                                                                        : ", rates measured alone at start"));
  for (const std::string& note : setup.config.notes) screen.line("note: " + note);
  for (const std::string& note : trainer.take_notes()) screen.line("note: " + note);
  screen.line(trainer.engine().describe_memory());
  if (!trainer.engine().durable())
    screen.line("note: state at home in host memory ends with the process: this run cannot be resumed");
  std::string how = "new";
  if (trainer.resumed()) how = fmt::format("resumed at step {}", trainer.step_done());
  screen.line(fmt::format("run {} in {} · {}", trainer.run_id(), trainer.folder().path(), how));
}

Result<void> write_trace(const models::Trainer& trainer, const std::string& path) {
  if (path.empty()) return {};
  std::string text = "{\"traceEvents\":[\n";
  for (int lane = 0; lane < runtime::kNumLanes; ++lane)
    text += fmt::format("{}{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":\"{}\"}}}}",
                        lane == 0 ? "" : ",\n", lane, runtime::lane_name(static_cast<runtime::Lane>(lane)));
  for (const std::string& events : trainer.trace()) text += ",\n" + events;
  text += "\n]}\n";
  return write_file_atomically(path, text);
}

struct Ending {
  bool stopped = false;  // on request, before the last step
  bool max_steps = false;
};

Result<Ending> run_steps(models::Trainer& trainer, const TrainArguments& arguments, const StopRequests& requests,
                         Screen& screen, Summary& summary) {
  Ending ending;
  std::int64_t taken = 0;
  while (!trainer.is_done()) {
    if (requests.asked()) {
      ending.stopped = true;
      return ending;
    }
    if (arguments.max_steps > 0 && taken >= arguments.max_steps) {
      ending.max_steps = true;
      return ending;
    }
    HEADRACE_TRY(const models::StepReport report, trainer.step());
    ++taken;
    summary.add(report, trainer);
    for (const std::string& note : trainer.take_notes()) screen.line("note: " + note);
    screen.line(step_line(report, trainer.last_step()));
    if (trainer.evaluation_due() && !trainer.is_done()) {
      HEADRACE_TRY(const double loss, trainer.evaluate());
      screen.line(fmt::format("eval   {}/{} | val_loss {:.4f}", trainer.step_done(), trainer.last_step(), loss));
    }
    screen.live(eta_text(trainer.step_done(), trainer.last_step(), summary.seconds_per_step()));
  }
  return ending;
}

// The command that goes on with this run, overrides included.
std::string command_again(const TrainArguments& arguments) {
  const auto quoted = [](const std::string& word) {
    const bool plain =
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./=:,") ==
        std::string::npos;
    return plain ? word : "'" + word + "'";
  };
  std::string text = "headrace train " + quoted(arguments.config);
  for (const std::string& override : arguments.overrides) text += " " + quoted(override);
  if (!arguments.run_dir.empty()) text += " --run-dir " + quoted(arguments.run_dir);
  return text;
}

Result<int> finish(models::Trainer& trainer, const TrainArguments& arguments, const Ending& ending, bool json,
                   Screen& screen, Summary& summary) {
  HEADRACE_RETURN_IF_ERROR(trainer.drain());
  const bool done = trainer.is_done();
  if (done && trainer.has_validation() && summary.steps() > 0) {
    HEADRACE_TRY(const double loss, trainer.evaluate());
    summary.set_validation(loss);
  }
  std::string exported;
  if (!trainer.engine().durable() && summary.steps() > 0) {
    exported = join_path(trainer.folder().path(), fmt::format("weights-{}", trainer.run_id()));
    HEADRACE_RETURN_IF_ERROR(trainer.export_weights(exported));
    HEADRACE_TRY(const std::uint64_t digest, trainer.digest());
    summary.set_digest(digest);
  }
  if (summary.steps() > 0) screen.line("\n" + summary.text(trainer));
  HEADRACE_RETURN_IF_ERROR(write_trace(trainer, arguments.trace));
  if (!exported.empty()) screen.line("weights in " + exported);
  if (json) print(summary.json(trainer) + "\n");
  const std::string again = command_again(arguments);
  if (ending.stopped) {
    screen.line(
        fmt::format("stopped after step {}. {}", trainer.step_done(),
                    trainer.engine().durable() ? "Continue with: " + again : "Its state was in host memory only."));
    return 75;
  }
  if (ending.max_steps)
    screen.line(
        fmt::format("step {} of {} (--max-steps). Continue with: {}", trainer.step_done(), trainer.last_step(), again));
  return 0;
}

Result<int> train(const TrainArguments& arguments, bool json) {
  Screen screen(json);
  if (arguments.ranks != 1)
    return make_error(ErrorCode::kUsage, fmt::format("--ranks {}: this version trains on one rank", arguments.ranks),
                      "leave --ranks out");
  models::SetupRequest request;
  request.config_file = arguments.config;
  request.overrides = arguments.overrides;
  models::TrainerOptions options;
  HEADRACE_TRY(options.resume, parse_resume(arguments.resume));
  HEADRACE_TRY(options.setup, models::read_setup(request));
  const models::TrainingSetup setup = options.setup;
  options.run_dir = arguments.run_dir.empty() ? join_path("runs", setup.config.run.name) : arguments.run_dir;
  options.trace = !arguments.trace.empty();
  const StopRequests requests;
  HEADRACE_TRY(auto trainer, models::Trainer::create(std::move(options)));
  // Not only at the end of a long run.
  HEADRACE_RETURN_IF_ERROR(write_trace(*trainer, arguments.trace));
  print_start(*trainer, setup, screen);
  if (trainer->is_done())
    screen.line(fmt::format("the run has done its {}; a larger headrace.steps goes on",
                            count_text(static_cast<std::int64_t>(trainer->last_step()), "step")));
  Summary summary;
  HEADRACE_TRY(const Ending ending, run_steps(*trainer, arguments, requests, screen, summary));
  return finish(*trainer, arguments, ending, json, screen, summary);
}

}  // namespace

void add_train(Program& program) {
  CLI::App* const command =
      program.app->add_subcommand("train", "Train a model as a config says; the same command resumes it");
  auto arguments = std::make_shared<TrainArguments>();
  command->add_option("config", arguments->config, "JSON config file")->required();
  command->add_option("overrides", arguments->overrides, "key=value: sets a key of the config (memory.host=160MiB)");
  command->add_option("--run-dir", arguments->run_dir, "Folder of the run (default: runs/NAME of the config)");
  command->add_option("--resume", arguments->resume,
                      "auto: go on where the run folder's run stands; never: a new run; must: fail without one");
  command->add_option("--max-steps", arguments->max_steps, "Take at most this many steps now")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000'000}));
  command->add_option("--ranks", arguments->ranks, "Ranks on this machine")->check(CLI::Range(1, 1'000'000));
  command->add_option("--trace", arguments->trace, "Write a Chrome trace of all steps to this file");
  command->add_flag("--json", program.json, "One JSON document on standard output, everything else on standard error");
  command->callback(
      [&program, arguments] { program.job = [&program, arguments] { return train(*arguments, program.json); }; });
}

}  // namespace headrace::cli
