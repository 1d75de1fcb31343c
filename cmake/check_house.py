#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what every file of the tree owes the house: the licence line, its length, and what headers start with.

usage: check_house.py [ROOT]    prints path: what is wrong; exit 1 when anything is.
Looks at the files that git knows or would add. Its own test: tests/lint/check_house_test.py.
"""
import os
import subprocess
import sys

LONGEST = 500  # lines; a longer file is asking to be split
SPDX = "SPDX-License-Identifier: Apache-2.0"
COUNTED = (".h", ".cpp", ".cu", ".cuh", ".py")
LICENSED = COUNTED + (".cmake", ".sh", "CMakeLists.txt")
SCRIPTS = ("dev", ".ci/run")


def files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout.splitlines()
    return sorted(path for path in set(listed) if os.path.isfile(os.path.join(root, path)))


def faults_of(path, lines):
    """What is wrong with one file, given as its path from the root and its lines."""
    first = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
    if (path.endswith(LICENSED) or path in SCRIPTS) and not (first and SPDX in first[0]):
        yield f'the first line must be "{SPDX}"'
    if path.endswith(COUNTED) and len(lines) > LONGEST:
        yield f"{len(lines)} lines; over {LONGEST} a file is asking to be split"
    if path.endswith((".h", ".cuh")):
        if len(lines) < 2 or not lines[1].startswith("//"):
            yield "a header says on its second line what it is for"
        if not path.endswith("-inl.h") and "#pragma once" not in lines:
            yield "#pragma once is missing"


def check(root):
    faults = []
    for path in files(root):
        if path.endswith(LICENSED) or path in SCRIPTS:
            with open(os.path.join(root, path), encoding="utf-8") as file:
                faults += [f"{path}: {fault}" for fault in faults_of(path, file.read().splitlines())]
    return faults


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    faults = check(root)
    print("\n".join(faults) if faults else "house: licence lines, lengths and headers are in order")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
