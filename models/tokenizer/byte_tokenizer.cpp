// SPDX-License-Identifier: Apache-2.0
#include "models/tokenizer/byte_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace::models {
namespace {

std::vector<std::int32_t> encode_bytes(std::string_view text) {
  std::vector<std::int32_t> ids(text.size());
  std::transform(text.begin(), text.end(), ids.begin(),
                 [](char byte) { return std::int32_t{static_cast<unsigned char>(byte)}; });
  return ids;
}

Result<std::string> decode_bytes(std::span<const std::int32_t> ids) {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= kByteVocab)
      return make_error(ErrorCode::kConfig, fmt::format("the token {} is no byte (0 to {})", id, kByteVocab - 1));
    text += static_cast<char>(id);
  }
  return text;
}

void bytes_from_file(std::span<const std::byte> stored, std::span<std::int32_t> ids) {
  std::transform(stored.begin(), stored.end(), ids.begin(),
                 [](std::byte byte) { return std::to_integer<std::int32_t>(byte); });
}

}  // namespace

const Tokenizer& byte_tokenizer() noexcept {
  static constexpr Tokenizer kBytes = {.name = "bytes",
                                       .vocab = kByteVocab,
                                       .encode = encode_bytes,
                                       .decode = decode_bytes,
                                       .stored_token_bytes = 1,
                                       .from_stored = bytes_from_file};
  return kBytes;
}

}  // namespace headrace::models
