#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks every #include of the tree against the layers and the homes of foreign headers (CONTRIBUTING.md).

usage: check_layering.py [ROOT]    prints path:line: what is wrong; exit 1 when anything is.
Its own test plants one violation of each rule: tests/lint/check_layering_test.py.
"""
import fnmatch
import os
import re
import sys

# layer -> layers it may include (itself always). `bindings` sees io, cpu_adam and kernels through public headers alone.
LAYERS = {
    "core": [],
    "io": ["core"],
    "cpu_adam": ["core"],
    "kernels": ["core"],
    "runtime": ["core", "io", "cpu_adam", "kernels"],
    "models": ["core", "kernels", "runtime"],
    "bindings": ["core", "io", "cpu_adam", "kernels", "runtime", "models"],
}
EVERYTHING = ("perf", "tests", "examples")  # may include any layer and any foreign header

# What bindings may include of io, cpu_adam and kernels: the headers that their build file installs (HEADERS of headrace_library).
PUBLIC_LIST = re.compile(r"\bHEADERS\s+((?:[\w/.-]+\.h\s*)+)")

# part of runtime/ -> parts it may include (itself always). Files directly in runtime/ may be included by every part.
RUNTIME_PARTS = {
    "config": [],
    "plan": ["config"],
    "memory": ["config", "plan"],
    "store": ["config", "plan"],
    "comm": ["config", "plan"],
    "engine": ["config", "plan", "memory", "store", "comm"],
    "checkpoint": ["config", "plan", "memory", "store", "comm", "engine"],
    "profile": [],
}

# The plan compiler and the simulator are pure functions: no threads, no I/O, no clock.
IMPURE = [
    "thread", "mutex", "shared_mutex", "condition_variable", "future", "semaphore", "latch", "barrier", "stop_token",
    "fstream", "iostream", "cstdio", "stdio.h", "filesystem", "chrono", "ctime", "time.h", "random", "unistd.h", "fcntl.h",
    "sys/*", "io/*", "core/file.h", "core/log.h", "core/process.h", "core/host_slab.h", "core/topology.h",
]

SIMD_FILES = ["*_avx2.*", "*_avx512.*", "*_avx512bf16.*", "*_neon.*", "core/hash_*", "*-inl.h"]
# (headers, the files that may include them)
FOREIGN = [
    (["liburing.h", "liburing/*"], ["io/uring_backend.cpp"]),
    (["libaio.h"], ["io/aio_backend.cpp"]),
    (["hwloc.h", "hwloc/*"], ["core/topology.cpp"]),
    (["oneapi/tbb.h", "oneapi/tbb/*", "tbb/*"], ["cpu_adam/*.cpp", "kernels/cpu/parallel.*"]),
    (["immintrin.h", "x86intrin.h", "emmintrin.h", "avx*intrin.h", "arm_neon.h"], SIMD_FILES),
    (["xxhash.h", "xxh3.h"], ["core/hash_*"]),
    (["fmt/*"], ["*.cpp"]),
    (["spdlog/*"], ["core/log.cpp"]),
    (["utf8proc.h", "sentencepiece*"], ["models/tokenizer/*"]),
    (["dnnl.h*", "dnnl_*", "oneapi/dnnl/*"], ["kernels/cpu/gemm*.cpp"]),
    (["cuda*.h", "cublas*"], ["kernels/cuda/*", "runtime/memory/cuda_*", "runtime/comm/nccl_*"]),
    (["nccl.h"], ["runtime/comm/nccl_*"]),
    (["gloo/*"], ["runtime/comm/gloo_*"]),
    (["mpi.h"], ["runtime/comm/mpi_*"]),
    (["nlohmann/json_fwd.hpp"], ["models/files/*"]),
    (["nlohmann/*"], ["core/json*.cpp", "runtime/config/*.cpp", "models/files/*.cpp", "bindings/*.cpp"]),
    (["CLI/*"], ["bindings/cli/*"]),
    (["nanobind/*", "Python.h", "pybind11/*"], ["bindings/python/*"]),
    (["gtest/*", "gmock/*", "benchmark/*", "rapidcheck.h", "rapidcheck/*"], []),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
EXTENSIONS = (".h", ".cpp", ".cu", ".cuh")


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def source_files(root):
    for layer in (*LAYERS, *EVERYTHING):
        for folder, subfolders, names in os.walk(os.path.join(root, layer)):
            subfolders[:] = sorted(name for name in subfolders if name != "build")
            for name in sorted(names):
                if name.endswith(EXTENSIONS):
                    yield os.path.relpath(os.path.join(folder, name), root)


def runtime_part(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "runtime" and len(parts) > 2 else None


def foreign_fault(path, header):
    """What is wrong with including a foreign header here, or None. The first row that names the header decides."""
    for headers, homes in FOREIGN:
        if matches(header, headers):
            if matches(path, homes):
                return None
            return f"<{header}> may be included only in {', '.join(homes) or 'tests/ and perf/'}"
    return None


def is_public(root, header):
    layer, name = header.split("/", 1)
    with open(os.path.join(root, layer, "CMakeLists.txt"), encoding="utf-8") as file:
        found = PUBLIC_LIST.search(file.read())
    return bool(found) and name in found[1].split()


def layer_fault(root, path, header):
    """What is wrong with including one of our headers here, or None."""
    layer, target = path.split("/")[0], header.split("/")[0]
    if target != layer and target not in LAYERS[layer]:
        return f'{layer}/ may not include "{header}": includes go down only'
    if layer == "bindings" and target in ("io", "cpu_adam", "kernels") and not is_public(root, header):
        return f'bindings/ may include public headers only, "{header}" is not one'
    part, target_part = runtime_part(path), runtime_part(header)
    if part and target_part and part != target_part:
        if part not in RUNTIME_PARTS or target_part not in RUNTIME_PARTS:
            return f"runtime/ has no part {part if part not in RUNTIME_PARTS else target_part}"
        if target_part not in RUNTIME_PARTS[part]:
            return f'runtime/{part}/ may not include "{header}"'
    return None


def fault_of(root, path, quoted, angled):
    header = quoted or angled
    layer = path.split("/")[0]
    if runtime_part(path) == "plan" and matches(header, IMPURE):
        return f"runtime/plan/ is pure: no threads, no I/O, no clock, so not {header}"
    if header.split("/")[0] in LAYERS and "/" in header:
        if not os.path.exists(os.path.join(root, header)):
            return f'"{header}" does not exist'
        if angled and layer not in EVERYTHING:
            return f'write "{header}" with quotes: it is ours'
        return None if layer in EVERYTHING else layer_fault(root, path, header)
    if layer in EVERYTHING:
        return None
    if quoted:
        return f'"{header}" must be written from the root: "layer/header.h"'
    return foreign_fault(path, header)


def check(root):
    faults = []
    for path in source_files(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                found = INCLUDE.match(line)
                fault = fault_of(root, path, found[1], found[2]) if found else None
                if fault:
                    faults.append(f"{path}:{number}: {fault}")
    return faults


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = sum(1 for _ in source_files(root))
    if files == 0:
        sys.exit(f"check_layering: no source files below {root}")
    faults = check(root)
    print("\n".join(faults) if faults else f"layering: {files} files, includes go down only")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
