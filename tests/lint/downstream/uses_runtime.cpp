// SPDX-License-Identifier: Apache-2.0
#include <models/model.h>
#include <runtime/unit.h>

#include <cstdio>

// Lays out a unit as a model of somebody else would, and asks the model layer about a config that cannot be.
int main() {
  headrace::runtime::UnitInfo unit;
  unit.tensors.resize(2);
  unit.tensors[0].shape = {10, 10};
  unit.tensors[1].shape = {1};
  headrace::runtime::lay_out(unit);
  const bool laid_out = unit.tensors[1].offset == 128 && unit.flat_elements == 192;
  const headrace::Result<void> verdict = headrace::models::validate(headrace::models::ModelConfig{});
  std::printf("offset %d, %s\n", static_cast<int>(unit.tensors[1].offset),
              verdict.ok() ? "valid" : verdict.error().message.c_str());
  return laid_out && !verdict.ok() ? 0 : 1;
}
