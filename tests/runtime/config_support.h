// SPDX-License-Identifier: Apache-2.0
// What the config tests share: the tables of all layers, a config that is valid, and reading with overrides.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/config_fields.h"
#include "runtime/config/read_config.h"

namespace headrace::config {

struct Loaded {
  LoadedConfig config;
  models::ModelSettings model;
  models::DataSettings data;
};

inline Result<Loaded> read(std::string_view text, const std::vector<std::string>& overrides = {},
                           const ReadOptions& options = {}) {
  Loaded loaded;
  const FieldTable model = models::model_fields(loaded.model);
  const FieldTable data = models::data_fields(loaded.data);
  const FieldTable* tables[] = {&model, &data};
  HEADRACE_TRY(loaded.config, read_config(text, "run.json", overrides, tables, options));
  return loaded;
}

// All keys of all layers, without values.
class AllTables {
 public:
  AllTables() : model_table_(models::model_fields(model_)), data_table_(models::data_fields(data_)) {
    const auto own = documented_tables();
    tables_.assign(own.begin(), own.end());
    tables_.push_back(&model_table_);
    tables_.push_back(&data_table_);
  }
  [[nodiscard]] std::span<const FieldTable* const> get() const { return tables_; }

 private:
  models::ModelSettings model_;
  models::DataSettings data_;
  FieldTable model_table_, data_table_;
  std::vector<const FieldTable*> tables_;
};

inline constexpr std::string_view kMinimal = R"({
  "train_batch_size": 4,
  "headrace": {"steps": 10, "model": {"preset": "llama-1m"}, "data": {"train": "corpus.txt"}}
})";

}  // namespace headrace::config
