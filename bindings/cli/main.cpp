// SPDX-License-Identifier: Apache-2.0
// The `headrace` program: picks the command, runs its job, turns an error into its exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "bindings/cli/command.h"
#include "core/process.h"
#include "runtime/config/suggest.h"

namespace headrace::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const std::string nearest = config::nearest(word, names);
  return nearest.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", nearest);
}

// CLI11 names neither the unknown command nor the nearest valid one.
Error usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const CLI::App* where = &app;
  std::string name_of_where = "headrace";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("-", 0) == 0) {
      const std::string name = word.substr(0, word.find('='));
      const auto known = option_names(*where);
      if (name.size() > 2 && std::find(known.begin(), known.end(), name) == known.end()) {
        return make_error(ErrorCode::kUsage,
                          fmt::format("headrace: unknown option \"{}\"{}", name, did_you_mean(name, known)));
      }
      continue;
    }
    const auto commands = command_names(*where);
    if (commands.empty()) continue;
    const auto found = std::find(commands.begin(), commands.end(), word);
    if (found == commands.end()) {
      return make_error(ErrorCode::kUsage,
                        fmt::format("headrace: unknown command \"{}\"{}", word, did_you_mean(word, commands)));
    }
    where = where->get_subcommand(word);
    name_of_where += " " + word;
  }
  return make_error(ErrorCode::kUsage, fmt::format("headrace: {}", error.what()),
                    name_of_where + " --help shows what it takes");
}

int report(const Error& error, bool json) {
  if (json) print(error_json(error) + "\n");
  print_error(error.to_string() + "\n");
  return exit_code(error.code);
}

int run_job(const Program& program) {
  const Result<int> result = program.job();
  if (!result.ok()) return report(result.error(), program.json);
  if (!lost_output()) return *result;
  print_error("headrace: standard output could not be written; what was asked for is done\n");
  return exit_code(ErrorCode::kFailed);
}

int run(int argc, char** argv) {
  CLI::App app(
      "Trains models far larger than memory: their state lives on NVMe and comes to the arithmetic just in time.",
      "headrace");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  Program program;
  program.app = &app;
  add_train(program);
  add_plan(program);
  add_profile(program);
  add_tune(program);
  add_generate(program);
  add_config(program);
  add_doctor(program);
  add_checkpoint(program);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    const bool json =
        std::any_of(argv + 1, argv + argc, [](const char* word) { return std::string(word) == "--json"; });
    return report(usage_error(app, error, argc, argv), json);
  }
  return run_job(program);
}

// A volume must never get the number of a closed standard stream: what is printed would be written into it.
void fill_standard_streams() {
  for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR))
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
}

}  // namespace
}  // namespace headrace::cli

int main(int argc, char** argv) {
  headrace::cli::fill_standard_streams();
  headrace::limit_malloc_arenas();
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an error of the write, with path and offset
  std::signal(SIGPIPE, SIG_IGN);
  return headrace::cli::run(argc, argv);
}
