// SPDX-License-Identifier: Apache-2.0
// `headrace config`: checks a config, explains keys, prints the schema and the settings page.
#include <fmt/format.h>

#include <array>
#include <memory>

#include "bindings/cli/command.h"
#include "core/json.h"
#include "models/config_fields.h"
#include "models/trainer/read_setup.h"
#include "runtime/config/generate.h"

namespace headrace::cli {
namespace {

struct CheckArguments {
  std::string config;
  std::vector<std::string> overrides;
};

// Every table there is, for printing; the values go nowhere.
class AllTables {
 public:
  AllTables() : model_(models::model_fields(model_settings_)), data_(models::data_fields(data_settings_)) {
    for (const config::FieldTable* table : config::documented_tables()) tables_.push_back(table);
    tables_.push_back(&model_);
    tables_.push_back(&data_);
  }
  [[nodiscard]] std::span<const config::FieldTable* const> tables() const { return tables_; }

 private:
  models::ModelSettings model_settings_;
  models::DataSettings data_settings_;
  config::FieldTable model_, data_;
  std::vector<const config::FieldTable*> tables_;
};

Result<int> check(const CheckArguments& arguments, bool json) {
  models::SetupRequest request;
  request.config_file = arguments.config;
  request.overrides = arguments.overrides;
  HEADRACE_TRY(const models::TrainingSetup setup, models::read_setup(request));
  if (json) {
    JsonObject keys;
    for (const config::ResolvedKey& key : setup.config.keys) {
      JsonObject entry;
      entry.add_raw("value", key.value.empty() ? "null" : key.value);
      entry.add("source", key.source);
      if (key.use != config::FieldUse::kUsed) entry.add("no_effect", key.reason);
      keys.add_raw(key.path, entry.text());
    }
    JsonObject document;
    document.add("ok", true);
    document.add_raw("resolved", keys.text());
    print(document.text() + "\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"key", "value", "source"}};
  for (const config::ResolvedKey& key : setup.config.keys)
    if (key.source_kind != config::SourceKind::kDefault)
      rows.push_back({key.path, key.value,
                      key.source + (key.use == config::FieldUse::kUsed ? "" : " · no effect: " + key.reason)});
  print(format_table(rows));
  for (const std::string& note : setup.config.notes) print("note: " + note + "\n");
  print(fmt::format("{}: fine; every other key has its default (docs/settings.md)\n", arguments.config));
  return 0;
}

}  // namespace

void add_config(Program& program) {
  CLI::App* const command = program.app->add_subcommand("config", "Check a config, explain its keys, print its schema");
  command->require_subcommand(1);

  CLI::App* const check_command =
      command->add_subcommand("check", "Read a config as train would and show what each given key came to");
  auto arguments = std::make_shared<CheckArguments>();
  check_command->add_option("config", arguments->config, "JSON config file")->required();
  check_command->add_option("overrides", arguments->overrides, "key=value: sets a key of the config");
  check_command->add_flag("--json", program.json, "One JSON document on standard output");
  check_command->callback(
      [&program, arguments] { program.job = [&program, arguments] { return check(*arguments, program.json); }; });

  CLI::App* const explain_command =
      command->add_subcommand("explain", "Say what a key, or every key of a section, means");
  auto key = std::make_shared<std::string>();
  explain_command->add_option("key", *key, "Full path of the key")->required();
  explain_command->callback([&program, key] {
    program.job = [key]() -> Result<int> {
      const AllTables all;
      HEADRACE_TRY(const std::string text, config::explain(all.tables(), *key));
      print(text);
      return 0;
    };
  });

  command->add_subcommand("schema", "Print the JSON Schema of the config")->callback([&program] {
    program.job = []() -> Result<int> {
      const AllTables all;
      print(config::settings_schema(all.tables()));
      return 0;
    };
  });
  command->add_subcommand("settings", "Print the settings page (docs/settings.md)")->callback([&program] {
    program.job = []() -> Result<int> {
      const AllTables all;
      print(config::settings_markdown(all.tables()));
      return 0;
    };
  });
}

}  // namespace headrace::cli
