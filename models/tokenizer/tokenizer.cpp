// SPDX-License-Identifier: Apache-2.0
#include "models/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <array>

#include "models/tokenizer/byte_tokenizer.h"

namespace headrace::models {

Result<const Tokenizer*> find_tokenizer(std::string_view name) {
  static const std::array<const Tokenizer*, 1> known = {&byte_tokenizer()};
  std::string names;
  for (const Tokenizer* tokenizer : known) {
    if (tokenizer->name == name) return tokenizer;
    if (!names.empty()) names += ", ";
    names += tokenizer->name;
  }
  return make_error(ErrorCode::kConfig, fmt::format("the tokenizer \"{}\" is unknown", name),
                    fmt::format("Known tokenizers: {}", names));
}

}  // namespace headrace::models
