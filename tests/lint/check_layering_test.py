#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation of each rule in a small tree and expects check_layering.py to name it, and nothing else."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cmake"))
import check_layering  # noqa: E402

# A tree that keeps all rules.
SOUND = {
    "core/bytes.h": "#pragma once\n#include <cstdint>\n",
    "core/log.cpp": "#include <spdlog/logger.h>\n",
    "core/hash_avx2.cpp": "#include <xxhash.h>\n#include <immintrin.h>\n",
    "core/topology.cpp": '#include <hwloc.h>\n#include <fmt/format.h>\n',
    "io/CMakeLists.txt": "headrace_library(io SOURCES a.cpp\n  HEADERS volume_set.h\n  PUBLIC headrace::core)\n",
    "io/volume_set.h": '#include "core/bytes.h"\n',
    "io/queue.h": '#include "core/bytes.h"\n',
    "io/uring_backend.cpp": '#include <liburing.h>\n#include "io/queue.h"\n',
    "cpu_adam/adamw.h": '#include "core/bytes.h"\n',
    "kernels/cpu/gemm.h": '#include "core/bytes.h"\n',
    "kernels/cpu/gemm_tile.cpp": '#include <oneapi/dnnl/dnnl.hpp>\n#include "kernels/cpu/gemm.h"\n',
    "runtime/unit.h": '#include "core/bytes.h"\n',
    "runtime/config/run_config.h": '#include "core/bytes.h"\n',
    "runtime/config/read.cpp": '#include <nlohmann/json.hpp>\n',
    "runtime/plan/plan.h": '#include "runtime/unit.h"\n#include "runtime/config/run_config.h"\n#include <vector>\n',
    "runtime/store/store.h": '#include "io/volume_set.h"\n#include "runtime/plan/plan.h"\n#include <mutex>\n',
    "runtime/memory/budget.h": '#include "runtime/plan/plan.h"\n',
    "runtime/engine/engine.h": '#include "runtime/store/store.h"\n#include "cpu_adam/adamw.h"\n',
    "models/model.h": '#include "runtime/unit.h"\n#include "kernels/cpu/gemm.h"\n',
    "bindings/cli/main.cpp": '#include <CLI/CLI.hpp>\n#include "models/model.h"\n#include "io/volume_set.h"\n',
    "tests/io/queue_test.cpp": '#include <gtest/gtest.h>\n#include <liburing.h>\n#include "io/queue.h"\n#include "helper.h"\n',
    "perf/io_bench.cpp": '#include "runtime/engine/engine.h"\n#include <nlohmann/json.hpp>\n',
}

# (file, line added to it, words of the message)
PLANTED = [
    ("core/bytes.h", '#include "io/queue.h"', "go down only"),
    ("io/queue.h", '#include "runtime/unit.h"', "go down only"),
    ("io/queue.h", '#include "kernels/cpu/gemm.h"', "go down only"),
    ("cpu_adam/adamw.h", '#include "io/queue.h"', "go down only"),
    ("kernels/cpu/gemm.h", '#include "cpu_adam/adamw.h"', "go down only"),
    ("runtime/unit.h", '#include "models/model.h"', "go down only"),
    ("models/model.h", '#include "io/volume_set.h"', "go down only"),
    ("models/model.h", '#include "cpu_adam/adamw.h"', "go down only"),
    ("bindings/cli/main.cpp", '#include "io/queue.h"', "public headers only"),
    ("core/bytes.h", '  #  include "io/queue.h"', "go down only"),
    ("runtime/config/run_config.h", '#include "runtime/plan/plan.h"', "runtime/config/ may not include"),
    ("runtime/plan/plan.h", '#include "runtime/store/store.h"', "runtime/plan/ may not include"),
    ("runtime/store/store.h", '#include "runtime/memory/budget.h"', "runtime/store/ may not include"),
    ("runtime/memory/budget.h", '#include "runtime/engine/engine.h"', "runtime/memory/ may not include"),
    ("runtime/plan/plan.h", '#include <mutex>', "is pure"),
    ("runtime/plan/plan.h", '#include <chrono>', "is pure"),
    ("runtime/plan/plan.h", '#include "io/volume_set.h"', "is pure"),
    ("io/queue.h", '#include <liburing.h>', "io/uring_backend.cpp"),
    ("io/queue.h", '#include <libaio.h>', "io/aio_backend.cpp"),
    ("core/log.cpp", '#include <hwloc.h>', "core/topology.cpp"),
    ("core/log.cpp", '#include <oneapi/tbb/task_arena.h>', "kernels/cpu/parallel"),
    ("cpu_adam/adamw.h", '#include <immintrin.h>', "_avx2"),
    ("cpu_adam/adamw.h", '#include <arm_neon.h>', "_neon"),
    ("core/log.cpp", '#include <xxhash.h>', "core/hash_"),
    ("core/bytes.h", '#include <fmt/format.h>', "*.cpp"),
    ("core/topology.cpp", '#include <spdlog/spdlog.h>', "core/log.cpp"),
    ("models/model.h", '#include <sentencepiece_processor.h>', "models/tokenizer"),
    ("kernels/cpu/gemm.h", '#include <dnnl.hpp>', "kernels/cpu/gemm"),
    ("runtime/engine/engine.h", '#include <cuda_runtime.h>', "kernels/cuda"),
    ("runtime/engine/engine.h", '#include <nccl.h>', "runtime/comm/nccl_"),
    ("runtime/engine/engine.h", '#include <gloo/context.h>', "runtime/comm/gloo_"),
    ("runtime/engine/engine.h", '#include <mpi.h>', "runtime/comm/mpi_"),
    ("runtime/config/run_config.h", '#include <nlohmann/json.hpp>', "runtime/config/*.cpp"),
    ("models/model.h", '#include <CLI/CLI.hpp>', "bindings/cli"),
    ("models/model.h", '#include <nanobind/nanobind.h>', "bindings/python"),
    ("core/log.cpp", '#include <gtest/gtest.h>', "tests/ and perf/"),
    ("io/queue.h", '#include "volume_set.h"', "written from the root"),
    ("io/queue.h", '#include "io/gone.h"', "does not exist"),
    ("tests/io/queue_test.cpp", '#include "io/gone.h"', "does not exist"),
    ("io/queue.h", '#include <core/bytes.h>', "with quotes"),
]


def write(root, path, text):
    whole = os.path.join(root, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "w", encoding="utf-8") as file:
        file.write(text)


class CheckLayering(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for path, text in SOUND.items():
            write(self.root, path, text)

    def test_finds_nothing_in_a_sound_tree(self):
        self.assertEqual(check_layering.check(self.root), [])

    def test_names_each_planted_violation_and_nothing_else(self):
        for path, line, words in PLANTED:
            with self.subTest(path=path, line=line):
                write(self.root, path, SOUND[path] + line + "\n")
                faults = check_layering.check(self.root)
                write(self.root, path, SOUND[path])
                self.assertEqual(len(faults), 1, faults)
                number = SOUND[path].count("\n") + 1
                self.assertTrue(faults[0].startswith(f"{path}:{number}: "), faults[0])
                self.assertIn(words, faults[0])

    def test_plants_a_violation_of_each_row_of_foreign_headers(self):
        for headers, _ in check_layering.FOREIGN:
            if headers == ["nlohmann/json_fwd.hpp"]:
                continue  # an exception to the row below it
            planted = any(check_layering.matches(line.split()[1].strip('<>"'), headers) for _, line, _ in PLANTED)
            self.assertTrue(planted, headers)


if __name__ == "__main__":
    unittest.main()
