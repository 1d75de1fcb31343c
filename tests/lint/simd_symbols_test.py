#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Objects compiled for one instruction set must not offer weak symbols: an inline function of theirs that the linker picks for
the whole program would run those instructions on every CPU.

usage: simd_symbols_test.py BUILD_FOLDER      usage of its own test: simd_symbols_test.py --self-test
"""
import fnmatch
import os
import subprocess
import sys
import tempfile

SIMD_OBJECTS = ["*_avx2.cpp.o", "*_avx512.cpp.o", "*_avx512bf16.cpp.o", "*_neon.cpp.o"]
WEAK = "Ww"  # code; weak data holds no instructions


def simd_objects(build):
    for folder, _, names in os.walk(build):
        if f"{os.sep}headrace_" in folder:
            for name in names:
                if any(fnmatch.fnmatch(name, pattern) for pattern in SIMD_OBJECTS):
                    yield os.path.join(folder, name)


def weak_symbols(path):
    lines = subprocess.run([os.environ.get("NM", "nm"), "--defined-only", "--demangle", path], check=True, capture_output=True, text=True).stdout.splitlines()
    # nm: [address] kind name
    found = (line.split(maxsplit=2)[-2:] if line[:1] != " " else line.split(maxsplit=1) for line in lines)
    return [name for kind, name in found if kind in WEAK]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, "planted.cpp"), os.path.join(folder, "planted.o")
        for text, expected in (("inline int leak(int x) { return x + 1; }\nint use(int x) { return leak(x); }\n", 1),
                               ("static inline int kept(int x) { return x + 1; }\nint use(int x) { return kept(x); }\n", 0)):
            with open(source, "w", encoding="utf-8") as file:
                file.write(text)
            subprocess.run(["c++", "-O0", "-c", source, "-o", made], check=True)
            if len(weak_symbols(made)) != expected:
                sys.exit(f"expected {expected} weak symbols in:\n{text}got {weak_symbols(made)}")
    print("simd_symbols: the planted weak symbol is found")


def main():
    if sys.argv[1] == "--self-test":
        return self_test()
    objects = sorted(simd_objects(sys.argv[1]))
    if not objects:
        sys.exit(f"no object of a SIMD source below {sys.argv[1]}")
    faults = [f"{os.path.basename(path)}: {name}" for path in objects for name in weak_symbols(path)]
    print("\n".join(faults) if faults else f"simd_symbols: {len(objects)} objects without weak symbols")
    return sys.exit(1 if faults else 0)


main()
