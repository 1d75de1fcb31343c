// SPDX-License-Identifier: Apache-2.0
// Tokenizers by name: text to ids and back, and ids straight from a file whose tokens have a fixed size. The data
// reader and `generate` use this table and know no particular tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "core/result.h"

namespace headrace::models {

struct Tokenizer {
  std::string_view name;
  std::int64_t vocab;
  std::vector<std::int32_t> (*encode)(std::string_view text);
  Result<std::string> (*decode)(std::span<const std::int32_t> ids);  // error for an id outside the vocabulary
  Bytes stored_token_bytes;                                          // bytes of one token in a training file
  void (*from_stored)(std::span<const std::byte> stored,
                      std::span<std::int32_t> ids);  // stored = ids · stored_token_bytes
};

// kConfig error that lists the known names.
[[nodiscard]] Result<const Tokenizer*> find_tokenizer(std::string_view name);

}  // namespace headrace::models
