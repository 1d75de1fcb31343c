// SPDX-License-Identifier: Apache-2.0
// The tokenizer "bytes": the id of a token is the value of one byte. Any file is valid input and no vocabulary file is
// needed.
#pragma once

#include "models/tokenizer/tokenizer.h"

namespace headrace::models {

inline constexpr std::int64_t kByteVocab = 256;

[[nodiscard]] const Tokenizer& byte_tokenizer() noexcept;

}  // namespace headrace::models
