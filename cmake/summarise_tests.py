#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a ctest run did, per label: single GoogleTest cases where a program has them, else the ctest entry.

usage: summarise_tests.py BUILD_FOLDER JUNIT_FILE GTEST_FOLDER
JUNIT_FILE is from `ctest --output-junit`, GTEST_FOLDER from GTEST_OUTPUT=xml:GTEST_FOLDER/ in the environment of the run.
"""
import collections
import glob
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree


def entries(build):
    """Name, labels and program of each ctest entry."""
    listed = json.loads(subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True,
                                       text=True).stdout)
    for test in listed["tests"]:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        yield test["name"], properties.get("LABELS", ["(none)"]), os.path.basename(test.get("command", ["?"])[0])


def gtest_cases(folder):
    """Program -> list of (case, verdict, reason). The same program run again writes NAME_1.xml."""
    cases = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(folder, "*.xml"))):
        program = os.path.basename(path)[: -len(".xml")]
        for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
            name = f'{case.get("classname")}.{case.get("name")}'
            skip = case.find("skipped")
            if case.find("failure") is not None:
                cases[program].append((name, "failed", ""))
            elif skip is not None:
                cases[program].append((name, "skipped", skip.get("message", "").strip().split("\n")[-1]))
            elif case.get("status") == "run":
                cases[program].append((name, "passed", ""))
    return cases


def junit_verdicts(path):
    verdicts = {}
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        words = {"run": "passed", "fail": "failed", "notrun": "skipped", "disabled": "skipped"}
        verdicts[case.get("name")] = words.get(case.get("status"), "failed")
    return verdicts


def python_skips(path):
    """ctest entry -> cases that its unittest program left out: it ends well and says so in its last line."""
    skips = {}
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        said = re.search(r"^(?:OK|FAILED) \(.*skipped=(\d+)", case.findtext("system-out") or "", re.MULTILINE)
        if said:
            skips[case.get("name")] = int(said.group(1))
    return skips


def main():
    build, junit, gtest_folder = sys.argv[1:4]
    verdicts, cases, python = junit_verdicts(junit), gtest_cases(gtest_folder), python_skips(junit)
    counts = collections.defaultdict(collections.Counter)
    skipped = []
    for name, labels, program in entries(build):
        if name not in verdicts:
            continue
        repeats = [key for key in cases if key == program or re.fullmatch(re.escape(program) + r"_\d+", key)]
        found = [case for key in repeats for case in cases[key]]
        results = [verdict for _, verdict, _ in found] or [verdicts[name]]
        if verdicts[name] == "failed" and "failed" not in results:
            results.append("failed")  # the program died
        for label in labels:
            counts[label].update(results + ["skipped"] * python.get(name, 0))
        skipped += [f"{name}: {case}: {reason}" for case, verdict, reason in found if verdict == "skipped"]
        if name in python:
            skipped.append(f"{name}: {python[name]} of its cases (its program run with -v says which and why)")
        if not found and verdicts[name] == "skipped":
            skipped.append(name)
    for line in sorted(set(skipped)):
        print(f"skipped  {line}")
    print(f'\n{"label":<16}{"passed":>8}{"failed":>8}{"skipped":>8}')
    for label in sorted(counts):
        print(f'{label:<16}{counts[label]["passed"]:>8}{counts[label]["failed"]:>8}{counts[label]["skipped"]:>8}')
    print()


if __name__ == "__main__":
    main()
