// SPDX-License-Identifier: Apache-2.0
// `headrace generate`: text from a Hugging Face folder or the committed state of a run.
#include <fmt/format.h>

#include <memory>

#include "bindings/cli/command.h"
#include "bindings/cli/run_reader.h"
#include "core/file.h"
#include "models/generator.h"
#include "models/sampling.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/engine/state_reader.h"

namespace headrace::cli {
namespace {

struct GenerateArguments {
  std::string source;
  std::string prompt;
  std::int64_t tokens = 200;
  models::SamplingOptions sampling;
};

Result<std::unique_ptr<models::Generator>> open_source(const std::string& source) {
  if (!is_run_folder(source)) {
    if (!path_exists(join_path(source, "config.json")))
      return make_error(
          ErrorCode::kPreflight,
          fmt::format("{} is neither a run folder (run.json) nor a Hugging Face folder (config.json)", source),
          "give the folder that headrace train printed, or one with a model");
    return models::Generator::from_folder(source);
  }
  HEADRACE_TRY(const OpenRun run, open_run(source));
  const std::uint64_t version = run.store->committed().state_version;
  return models::Generator::from_weights(run.setup.model, run.input.weights_dtype,
                                         [&](runtime::UnitId unit, std::byte* out) {
                                           return runtime::read_unit_weights(run.input, *run.store, version, unit, out);
                                         });
}

Result<int> generate(const GenerateArguments& arguments) {
  HEADRACE_RETURN_IF_ERROR(models::validate(arguments.sampling));
  HEADRACE_TRY(const std::unique_ptr<models::Generator> generator, open_source(arguments.source));
  HEADRACE_TRY(const models::Tokenizer* tokenizer, models::find_tokenizer("bytes"));
  std::vector<std::int32_t> ids = tokenizer->encode(arguments.prompt);
  if (ids.empty())
    return make_error(ErrorCode::kUsage, "--prompt is empty", "give at least one character to go on from");
  print(arguments.prompt);
  for (std::int64_t i = 0; i < arguments.tokens; ++i) {
    HEADRACE_TRY(const std::span<const float> logits, generator->next_logits(ids));
    HEADRACE_TRY(const std::int32_t id,
                 models::sample_token(logits, arguments.sampling, static_cast<std::uint64_t>(ids.size())));
    ids.push_back(id);
    HEADRACE_TRY(const std::string text, tokenizer->decode(std::span(ids).last(1)));
    print(text);
  }
  print("\n");
  return 0;
}

}  // namespace

void add_generate(Program& program) {
  CLI::App* const command = program.app->add_subcommand("generate", "Continue a text with a model folder or a run");
  auto arguments = std::make_shared<GenerateArguments>();
  command->add_option("model", arguments->source, "Hugging Face folder or run folder")->required();
  command->add_option("--prompt", arguments->prompt, "Text to go on from")->required();
  command->add_option("--tokens", arguments->tokens, "Tokens to add")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000'000}))
      ->capture_default_str();
  command
      ->add_option("--temperature", arguments->sampling.temperature,
                   "0 takes the most likely token, 1 samples as the model says")
      ->capture_default_str();
  command->add_option("--top-k", arguments->sampling.top_k, "Choose among this many only; 0 = all")
      ->capture_default_str();
  command->add_option("--seed", arguments->sampling.seed, "Of the choices")->capture_default_str();
  command->callback([&program, arguments] { program.job = [arguments] { return generate(*arguments); }; });
}

}  // namespace headrace::cli
