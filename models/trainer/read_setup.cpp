// SPDX-License-Identifier: Apache-2.0
#include "models/trainer/read_setup.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "models/config_fields.h"
#include "models/files/hf_folder.h"
#include "models/presets.h"
#include "models/trainer/injection.h"

namespace headrace::models {

namespace {

void fill_data(TrainingSetup& setup, const DataSettings& data) {
  TokenDataOptions train;
  train.path = data.train;
  train.tokenizer = data.tokenizer;
  train.sequence_length = sequence_length_of(data, setup.model);
  train.order = data.order;
  train.seed = setup.config.run.seed;
  train.validation_fraction = data.validation.has_value() ? 0 : data.validation_fraction;
  train.model_vocab = setup.model.vocab;
  setup.train_data = train;
  if (!data.validation.has_value() && data.validation_fraction <= 0) return;
  TokenDataOptions validation = train;
  validation.order = DataOrder::kSequential;
  if (data.validation.has_value()) {
    validation.path = *data.validation;
  } else {
    validation.part = DataPart::kValidation;
  }
  setup.validation_data = validation;
}

}  // namespace

Result<TrainingSetup> read_setup(const SetupRequest& request) {
  TrainingSetup setup;
  ModelSettings model;
  DataSettings data;
  const config::FieldTable model_table = model_fields(model);
  const config::FieldTable data_table = data_fields(data);
  const std::array<const config::FieldTable*, 2> tables{&model_table, &data_table};
  config::ReadOptions options;
  options.purpose = request.purpose;
  options.world_size = request.world_size;
  std::vector<std::string> overrides = request.overrides;
  if (request.preset.has_value()) {
    HEADRACE_TRY(const ModelConfig shape, preset(*request.preset));
    overrides.push_back("headrace.model.preset=\"" + *request.preset + "\"");
    // Without a config there is no tokenizer to follow: the preset's own vocabulary.
    if (request.config_file.empty())
      overrides.insert(overrides.begin(), fmt::format("headrace.model.vocab={}", shape.vocab));
  }
  if (request.config_file.empty()) {
    HEADRACE_TRY(setup.config, config::read_config("{}", "(no config)", overrides, tables, options));
  } else {
    HEADRACE_TRY(setup.config, config::load_config(request.config_file, overrides, tables, options));
  }
  HEADRACE_TRY(const Tokenizer* tokenizer, find_tokenizer(data.tokenizer));
  HEADRACE_TRY(setup.model, resolve_model(model, tokenizer->vocab));
  if (model.path.has_value()) setup.model_folder = *model.path;
  fill_data(setup, data);
  if (auto injection = parse_injection(setup.config.run.debug.inject); !injection.ok())
    return std::move(injection).error();
  HEADRACE_RETURN_IF_ERROR(
      validate(setup.model, setup.config.run.batch.micro_batch_size, setup.train_data.sequence_length));
  return setup;
}

Result<TrainingSetup> setup_of_run(const std::string& config_text, const std::string& run_dir) {
  HEADRACE_TRY(const config::JsonValue root, config::parse_json(config_text, run_dir + "/run.json"));
  SetupRequest request;
  request.purpose = config::Purpose::kPlan;
  for (const config::JsonMember& member : root.members)
    if (member.value.kind != config::JsonValue::Kind::kNull)
      request.overrides.push_back(member.key + "=" + config::to_json_text(member.value));
  return read_setup(request);
}

}  // namespace headrace::models
