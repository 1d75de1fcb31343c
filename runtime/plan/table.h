// SPDX-License-Identifier: Apache-2.0
// The numbers that a plan states about itself: bytes on disk, bytes per step, and the memory table. Private to the
// compiler.
#pragma once

#include "runtime/plan/search.h"

namespace headrace::runtime::planning {

// Fills the sizes and the table of `plan`, whose buffers and operations are complete.
void add_numbers(Plan& plan, const Facts& facts, const Rung& rung);

}  // namespace headrace::runtime::planning
