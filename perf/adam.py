#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The update beside DeepSpeed's and PyTorch's: rounds in which perf_adam and the peers take turns, and a table of ratios.

usage: adam.py --program BUILD/bin/perf_adam [--elements N] [--rounds N] [--threads N] [--target avx2]
               [--peer-python PYTHON [--peer-script adam_peers.py]] [--json FILE] [--commit NAME]

--target avx2 lowers Headrace (HEADRACE_CPU_TARGET) and PyTorch (ATEN_CPU_CAPABILITY); DeepSpeed's width is that of its build,
which TORCH_EXTENSIONS_DIR names. Every figure is nanoseconds per parameter, the median over all samples of all rounds."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# Headrace's row, made of perf_adam's entries that are added; the peer's row; what the ratio says.
COMPARISONS = [
    ("split, whole step", ["arrive bf16", "adamw split, bf16 gradient"], "deepspeed, passes"),
    ("split, whole step", ["arrive bf16", "adamw split, bf16 gradient"], "torch fused, passes"),
    ("fp32 master, whole step", ["arrive bf16", "adamw fp32 master + bf16 weights, bf16 gradient"], "deepspeed, passes"),
    ("fp32 master, whole step", ["arrive bf16", "adamw fp32 master + bf16 weights, bf16 gradient"], "torch fused, passes"),
    ("fp32 weights and gradient, bare update", ["adamw fp32 weights, fp32 gradient"], "deepspeed"),
    ("fp32 weights and gradient, bare update", ["adamw fp32 weights, fp32 gradient"], "torch fused"),
    ("fp32 weights and gradient, bare update", ["adamw fp32 weights, fp32 gradient"], "torch default"),
    ("split_bf16, bare update", ["adamw split_bf16, bf16 gradient"], "deepspeed bf16"),
    ("split, bare update", ["adamw split, bf16 gradient"], "deepspeed bf16, fp32 moments"),
    ("compact, bare update", ["adamw compact, bf16 gradient"], "deepspeed bf16"),
]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--elements", type=int, default=1 << 26)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target", choices=["avx2", "avx512"])
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-script", default=str(HERE / "adam_peers.py"))
    parser.add_argument("--json")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def run(command, environment):
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout


def headrace_round(args):
    environment = dict(os.environ)
    if args.target:
        environment["HEADRACE_CPU_TARGET"] = args.target
    command = [args.program, "--elements", str(args.elements), "--samples", "3", "--commit", args.commit, "--threads", str(args.threads)]
    return json.loads(run(command, environment))


def peer_round(args):
    # The folder of its python first: DeepSpeed looks for ninja there.
    path = f"{pathlib.Path(args.peer_python).parent}:{os.environ['PATH']}"
    environment = dict(os.environ, PATH=path, DS_ACCELERATOR="cpu")
    if args.target:
        environment["ATEN_CPU_CAPABILITY"] = args.target
    command = [args.peer_python, args.peer_script, "--parameters", str(args.elements), "--rounds", "3", "--threads", str(args.threads)]
    return json.loads(run(command, environment).strip().splitlines()[-1])


def main():
    args = parse()
    ours, ceilings, peers, ports, first, versions, failures = {}, {}, {}, {}, None, {}, {}
    suffix = f", {args.threads} thread{'s' if args.threads > 1 else ''}"
    for _ in range(args.rounds):
        document = headrace_round(args)
        first = first or document
        for entry in document["results"]:
            if not entry["name"].endswith(suffix):
                continue
            words = entry["name"].removesuffix(suffix)
            name = words.removesuffix(", " + document["machine"]["target"])
            ours.setdefault(name, []).extend(1e9 / rate for rate in entry["samples"])
            ceilings.setdefault(name, []).extend(1e9 / rate for rate in entry.get("ceiling_samples", []))
            if "ports_ns" in entry:
                ports[name] = entry["ports_ns"]
        if args.peer_python:
            report = peer_round(args)
            versions, failures = report["versions"], report["failures"]
            for name, values in report["ns_per_parameter"].items():
                peers.setdefault(name, []).extend(values)
    median = statistics.median
    print(f"{first['machine']['cpu']}, {first['machine']['target']}, {args.elements} parameters, {args.threads} threads, {versions}")
    for name, values in ours.items():
        text = f"  {name:<52} {median(values):6.3f} ns"
        if ceilings[name]:
            limit = max(median(ceilings[name]), ports.get(name, 0))
            text += f"   memory {median(ceilings[name]):6.3f}   ports {ports.get(name, 0):6.3f}   {median(values) / limit:5.2f} of the larger"
        print(text)
    for name, values in peers.items():
        print(f"  {name:<52} {median(values):6.3f} ns")
    rows = []
    for label, parts, peer in COMPARISONS:
        if peer not in peers:
            continue
        mine, theirs = sum(median(ours[part]) for part in parts), median(peers[peer])
        rows.append({"headrace": label, "ns": mine, "peer": peer, "peer_ns": theirs, "ratio": theirs / mine})
        print(f"  {label:<40} {mine:6.3f}   {peer:<30} {theirs:6.3f}   {theirs / mine:5.2f} x")
    for name, reason in failures.items():
        print(f"  {name}: {reason}")
    if args.json:
        document = {
            "machine": first["machine"], "commit": args.commit, "elements": args.elements, "threads": args.threads,
            "target": first["machine"]["target"], "versions": versions, "failures": failures, "headrace_ns": ours,
            "memory_ns": ceilings, "ports_ns": ports, "peers_ns": peers, "ratios": rows,
        }  # fmt: skip
        pathlib.Path(args.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
