#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault of each kind and expects check_house.py to name it."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cmake"))
from check_house import LONGEST, SPDX, faults_of  # noqa: E402

HEADER = [f"// {SPDX}", "// What it is for.", "#pragma once"]


class CheckHouse(unittest.TestCase):
    def expect(self, path, lines, *words):
        faults = list(faults_of(path, lines))
        self.assertEqual(len(faults), len(words), faults)
        for fault, word in zip(faults, words):
            self.assertIn(word, fault)

    def test_finds_nothing_in_sound_files(self):
        self.expect("core/a.h", HEADER)
        self.expect("core/a.cpp", [f"// {SPDX}"])
        self.expect("dev", ["#!/usr/bin/env bash", f"# {SPDX}"])
        self.expect("core/a.cpp", [f"// {SPDX}"] * LONGEST)
        self.expect("notes.md", ["text"] * 900)

    def test_names_a_missing_licence_line(self):
        self.expect("core/a.cpp", ["int x;"], SPDX)
        self.expect("core/a.cpp", [], SPDX)
        self.expect("dev", ["#!/usr/bin/env bash", "set -e"], SPDX)
        self.expect("core/CMakeLists.txt", ["project(x)"], SPDX)

    def test_names_a_long_file(self):
        self.expect("core/a.cpp", [f"// {SPDX}"] * (LONGEST + 1), "501 lines")

    def test_names_a_header_without_purpose_or_guard(self):
        self.expect("core/a.h", [HEADER[0], "#pragma once"], "what it is for")
        self.expect("core/a.h", HEADER[:2], "#pragma once")
        self.expect("core/a-inl.h", HEADER[:2])


if __name__ == "__main__":
    unittest.main()
