// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the nearest of the valid words to one that is not.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace headrace::config {

// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other, ASCII letter case ignored.
[[nodiscard]] int edit_distance(std::string_view a, std::string_view b);
[[nodiscard]] bool same_word(std::string_view a, std::string_view b) noexcept;  // equal but for ASCII letter case

// The nearest word if it is near enough to be meant (a third of its letters at most differ); the first of equals, empty
// if none is.
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string> words);

}  // namespace headrace::config
