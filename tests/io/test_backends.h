// SPDX-License-Identifier: Apache-2.0
// Every backend as a parameter of the suites that must hold over each: the three that reach a disk, and memory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "fault_backend.h"
#include "io/backends.h"
#include "memory_backend.h"

namespace headrace::io {

struct TestBackend {
  const char* name = "";
  const char* reported = "";  // in VolumeSet::describe()
  IoBackendChoice choice = IoBackendChoice::kAuto;
  bool in_memory = false;

  [[nodiscard]] BackendCandidate candidate() const {
    return in_memory ? memory_candidate(std::make_shared<MemoryDevice>()) : backend_candidates(choice).front();
  }
};

inline std::vector<TestBackend> test_backends() {
  return {{"uring", "io_uring", IoBackendChoice::kUring, false},
          {"libaio", "libaio", IoBackendChoice::kLibaio, false},
          {"threads", "threads", IoBackendChoice::kThreads, false},
          {"memory", "memory", IoBackendChoice::kAuto, true}};
}

inline std::string test_backend_name(const ::testing::TestParamInfo<TestBackend>& info) { return info.param.name; }
inline void PrintTo(const TestBackend& backend, std::ostream* out) { *out << backend.name; }

// The empty string when the backend works here, else why not.
inline std::string refusal_of(const BackendCandidate& candidate) {
  const auto made = candidate.make();
  return made.ok() ? "" : made.error().to_string();
}

}  // namespace headrace::io
