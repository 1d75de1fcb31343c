#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step in each state format with everything on NVMe: the 150M decoder, so few tokens that the disk binds, no cache, updates in
the backward pass. Rounds in which the formats take turns; one table: bytes per parameter and step beside the design's, step
seconds, and how both relate to those of fp32.

  ./dev bench formats --data TEXT --scratch FOLDER [--rounds N] [--throttle 400MiB] [--json FILE]

--throttle limits reading and writing alike (headrace.debug.throttle), for disks that are faster than the update."""

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/bin/headrace"
DEADLINE = 900
# Bytes read and written for a parameter: weights twice (forward and backward pass), optimizer state once; both written.
FORMATS = {"fp32": (4 + 12, 14), "split": (4 + 10, 12), "split_bf16": (4 + 6, 8), "compact": (4 + 3, 5)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a file whose bytes are the tokens")
    parser.add_argument("--scratch", required=True, help="folder on the device to measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each run; the first is left out")
    parser.add_argument("--tokens", type=int, default=32, help="of a step")
    parser.add_argument("--memory", default="400MiB", help="memory.host")
    parser.add_argument("--throttle", help="bytes per second for each direction")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--program", default=str(PROGRAM))
    return parser.parse_args()


def config(args, state_format):
    offload = {"device": "nvme", "nvme_path": [args.scratch]}
    headrace = {
        "model": {"preset": "llama-150m"},
        "data": {"train": args.data, "sequence_length": args.tokens},
        "steps": args.steps,
        "seed": 1,
        "state_format": state_format,
        "memory": {"host": args.memory, "cache": False},
        "schedule": {"update": "in_backward"},
    }
    if args.throttle:
        headrace["debug"] = {"throttle": args.throttle}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
        "headrace": headrace,
    }


def checked(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr or done.stdout}")
    return done.stdout


def run(args, state_format):
    """The steps of one run but the first."""
    folder = pathlib.Path(args.scratch) / "headrace-formats"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    job = folder / "job.json"
    job.write_text(json.dumps(config(args, state_format)))
    checked([args.program, "train", str(job), "--run-dir", str(folder / "run"), "--json"])
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()][1:]
    checked([args.program, "checkpoint", "prune", str(folder / "run"), "--yes"])
    shutil.rmtree(folder)
    return steps


def parameters_of(args):
    job = pathlib.Path(args.scratch) / "headrace-formats.json"
    job.write_text(json.dumps(config(args, "split")))
    plan = json.loads(checked([args.program, "plan", str(job), "--json"]))
    job.unlink()
    return plan["parameters"]


def main():
    args = arguments()
    args.data, args.scratch = (str(pathlib.Path(path).resolve()) for path in (args.data, args.scratch))
    parameters = parameters_of(args)
    steps = {name: [] for name in FORMATS}
    for number in range(args.rounds):
        for name in FORMATS:
            steps[name] += run(args, name)
            last = steps[name][-1]
            print(f"round {number + 1}, {name}: {last['step_seconds']:.3f} s, {last['bound_lane']}", file=sys.stderr, flush=True)
    results = []
    print(f"{parameters} parameters, {args.tokens} tokens, {args.rounds * (args.steps - 1)} steps of each format")
    print(f"{'format':<11} {'read B/p':>9} {'table':>6} {'written B/p':>12} {'table':>6} {'step s (min median max)':>25} {'÷ fp32':>7} {'bytes ÷ fp32':>13}  bound")
    for name, table in FORMATS.items():
        read, written = (statistics.median(step[key] for step in steps[name]) / parameters for key in ("nvme_read_bytes", "nvme_write_bytes"))
        seconds = [step["step_seconds"] for step in steps[name]]
        ratio = statistics.median(seconds) / statistics.median(step["step_seconds"] for step in steps["fp32"])
        bytes_ratio = sum(table) / sum(FORMATS["fp32"])
        lanes = sorted({step["bound_lane"] for step in steps[name]})
        spread = f"{min(seconds):.3f} {statistics.median(seconds):.3f} {max(seconds):.3f}"
        print(f"{name:<11} {read:>9.3f} {table[0]:>6} {written:>12.3f} {table[1]:>6} {spread:>25} {ratio:>7.3f} {bytes_ratio:>13.3f}  {', '.join(lanes)}")
        results.append({"name": name, "value": statistics.median(seconds), "unit": "s", "samples": seconds, "read_bytes_per_parameter": read,
                        "write_bytes_per_parameter": written, "table": table, "time_over_fp32": ratio, "bytes_over_fp32": bytes_ratio,
                        "bound_ratio": statistics.median(step["bound_ratio"] for step in steps[name]), "bound_lanes": lanes})
    if args.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        machine = {"processor": platform.processor(), "cores": os.cpu_count()}
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine, "commit": commit, "throttle": args.throttle, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
