#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured steps, over sizes, group sizes, budgets, update policies and throttled disks. In each round
every configuration measures the machine (a start of the run itself), plans with those rates, and trains with them, one
after the other, so that profile, prediction and run belong to the same minutes. Nothing is fitted. Before
the first round the first configuration is run once and thrown away: the machine comes from other work.

  perf/simulator.py --data TEXT --scratch FOLDER [--json FILE] [--rounds 5] [--only WORD …] [--tiny]

A prediction is good when it is within a tenth of the median measured step, or within half the spread of the repeats
where that is more. Below the table: what a schedule gains over another, measured and predicted; it is good when the
measured gain is 0.95 of the predicted one. Exit status 1 when anything is not. Rounds that the report has already are
kept and new ones added, as long as the program is the same.
"""

import argparse
import hashlib
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
DEADLINE = 1800
TOLERANCE = 0.10
WARM_UP = 3  # steps; the simulator plays the steady state, and a run's first steps are up to a third slower than its later ones

SMALL = {"preset": "llama-20m"}
MIDDLE = {"architecture": "llama", "layers": 8, "embed": 768, "heads": 12, "kv_heads": 12, "inner": 2048}
LARGE = {"architecture": "llama", "layers": 6, "embed": 1280, "heads": 20, "kv_heads": 20, "inner": 3456}

# name, model, micro-batches, tokens per sequence, overrides
CONFIGURATIONS = [
    ("20M, one micro-batch, tight", SMALL, 1, 256, ["memory.host=150MiB"]),
    ("20M, one micro-batch, roomy", SMALL, 1, 256, ["memory.host=700MiB"]),
    ("20M, 4 micro-batches, groups of 4", SMALL, 4, 256, ["memory.host=250MiB", "schedule.group_size=4"]),
    ("20M, 4 micro-batches, groups of 1", SMALL, 4, 256, ["memory.host=250MiB", "schedule.group_size=1"]),
    ("20M, short sequences: the disk binds", SMALL, 2, 32, ["memory.host=200MiB"]),
    ("20M, early updates", SMALL, 2, 64, ["memory.host=250MiB", "schedule.update=in_backward"]),
    ("20M, delayed updates", SMALL, 2, 64, ["memory.host=250MiB", "schedule.update=into_forward", "schedule.delayed_fraction=1"]),
    ("20M, half of the updates delayed", SMALL, 2, 64,
     ["memory.host=250MiB", "schedule.update=into_forward", "schedule.delayed_fraction=0.5"]),
    ("20M, late updates", SMALL, 2, 64, ["memory.host=250MiB", "schedule.update=after_backward"]),
    ("20M, disk throttled to 200 MB/s", SMALL, 2, 128, ["memory.host=200MiB", "debug.throttle=200000000"]),
    ("20M, disk throttled to 60 MB/s", SMALL, 1, 128, ["memory.host=200MiB", "debug.throttle=60000000"]),
    ("20M, throttled, groups of 1 of 4", SMALL, 4, 64, ["memory.host=200MiB", "debug.throttle=200000000", "schedule.group_size=1"]),
    ("20M, 8 micro-batches of 16, groups of 8", SMALL, 8, 16, ["memory.host=500MiB", "memory.cache=false", "schedule.group_size=8"]),
    ("20M, 8 micro-batches of 16, groups of 1", SMALL, 8, 16, ["memory.host=500MiB", "memory.cache=false", "schedule.group_size=1"]),
    ("20M, 8 at 200 MB/s, groups of 8", SMALL, 8, 64, ["memory.host=500MiB", "memory.cache=false", "debug.throttle=200000000", "schedule.group_size=8"]),
    ("20M, 8 at 200 MB/s, groups of 1", SMALL, 8, 64, ["memory.host=500MiB", "memory.cache=false", "debug.throttle=200000000", "schedule.group_size=1"]),
    ("20M, Adafactor", SMALL, 2, 64, ["memory.host=250MiB", "optimizer.type=Adafactor"]),
    ("20M, Muon", SMALL, 2, 64, ["memory.host=250MiB", "optimizer.type=Muon"]),
    ("20M, copies to the device", SMALL, 2, 128, ["memory.host=300MiB", "device.force_copies=true"]),
    ("60M, 2 micro-batches", MIDDLE, 2, 128, ["memory.host=400MiB"]),
    ("60M, computed again", MIDDLE, 2, 128, ["memory.host=400MiB", "schedule.activations=recompute"]),
    ("60M, nothing stays in memory", MIDDLE, 2, 64, ["memory.host=500MiB", "memory.cache=false"]),
    ("120M, early updates", LARGE, 1, 64, ["memory.host=600MiB", "schedule.update=in_backward"]),
    ("120M, delayed updates", LARGE, 1, 64, ["memory.host=600MiB", "schedule.update=into_forward", "schedule.delayed_fraction=1"]),
    ("120M, late updates", LARGE, 1, 64, ["memory.host=600MiB", "schedule.update=after_backward"]),
]

# The faster schedule, the slower one; both are in the list above.
PAIRS = [
    ("20M, 8 micro-batches of 16, groups of 8", "20M, 8 micro-batches of 16, groups of 1"),
    ("20M, 8 at 200 MB/s, groups of 8", "20M, 8 at 200 MB/s, groups of 1"),
    ("20M, early updates", "20M, late updates"),
    ("120M, early updates", "120M, late updates"),
    ("20M, delayed updates", "20M, late updates"),
    ("120M, delayed updates", "120M, late updates"),
    ("20M, half of the updates delayed", "20M, late updates"),
]
GAIN_KEPT = 0.95


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a file whose bytes are the tokens")
    parser.add_argument("--scratch", required=True, help="folder on the device to measure")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each run; the first three are left out")
    parser.add_argument("--only", nargs="+", help="only configurations whose name has one of these words")
    parser.add_argument("--tiny", action="store_true", help="models of 200 thousand parameters: whether the script works")
    parser.add_argument("--program", default=str(PROGRAM))
    return parser.parse_args()


def config_of(args, model, micro_batches, length):
    offload = {"device": "nvme", "nvme_path": [args.scratch]}
    if args.tiny:
        model = {"architecture": "llama", "layers": 3, "embed": 64, "heads": 4, "kv_heads": 2, "inner": 160}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0,  # a step that is updated twice is not the step that was planned
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
        "headrace": {"model": model, "data": {"train": args.data, "sequence_length": length}, "steps": args.steps, "seed": 1},
    }


def call(args, *words):
    done = subprocess.run([args.program, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode != 0:
        sys.exit(f"{words}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def prune(args, run):
    call(args, "checkpoint", "prune", run, "--yes")


def stolen_seconds():
    """Of all cores since the start of the machine: what the machine under this one gave to others."""
    try:
        return int(pathlib.Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def measure(args, configuration):
    """One round of one configuration: predicted and measured seconds per step."""
    name, model, micro_batches, length, overrides = configuration
    folder = pathlib.Path(args.scratch) / "headrace-simulator"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "job.json"
    config.write_text(json.dumps(config_of(args, model, micro_batches, length)))
    stolen = [stolen_seconds()]
    if args.tiny:
        overrides = [word for word in overrides if not word.startswith("memory.host")]
    # A start measures the machine at the job's own shapes and writes what it found.
    call(args, "train", config, *overrides, "--run-dir", folder / "rates", "--max-steps", 1)
    stolen.append(stolen_seconds())
    prune(args, folder / "rates")
    hardware = f"headrace.hardware={folder / 'rates/hardware.json'}"
    plan = json.loads(call(args, "plan", config, *overrides, hardware, "--json"))
    call(args, "train", config, *overrides, hardware, "--run-dir", folder / "run")
    stolen.append(stolen_seconds())
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    # Delayed updates: the first step makes none, the last one its own as well.
    rows = [row for row in rows if "val_loss" not in row and not row["drained"]][WARM_UP:]
    steps = [row["step_seconds"] for row in rows]
    moved = {key: statistics.median(row[key] for row in rows) for key in ("nvme_read_bytes", "nvme_write_bytes")}
    prune(args, folder / "run")
    shutil.rmtree(folder)
    for key in moved:
        planned = plan[key + "_per_step"]
        if planned and abs(moved[key] / planned - 1) > 0.01:
            sys.exit(f"{name}: {key} {moved[key]:.0f}, planned {planned}: not the plan that was predicted")
    return {"predicted": plan["predicted_step_seconds"], "bound": plan["bound"]["seconds"], "lane": plan["bound"]["lane"],
            "measured": statistics.median(steps), "steps": steps,
            "stolen_seconds": {"profile": round(stolen[1] - stolen[0], 2), "run": round(stolen[2] - stolen[1], 2)}}


def summarise(name, rounds):
    predicted = statistics.median(one["predicted"] for one in rounds)
    samples = [one["measured"] for one in rounds]
    measured = statistics.median(samples)
    allowed = max(TOLERANCE * measured, (max(samples) - min(samples)) / 2)
    return {"name": name, "value": predicted / measured, "unit": "predicted / measured", "ceiling": 1, "fraction": predicted / measured,
            "samples": samples, "predicted": [one["predicted"] for one in rounds], "bound": rounds[-1]["bound"], "lane": rounds[-1]["lane"],
            "good": abs(predicted - measured) <= allowed, "allowed": allowed / measured}


def gain(results, faster, slower):
    one, other = results[faster], results[slower]
    measured = statistics.median(other["samples"]) / statistics.median(one["samples"])
    predicted = statistics.median(other["predicted"]) / statistics.median(one["predicted"])
    return {"name": f"{faster} over {slower}", "value": measured, "unit": "times", "ceiling": predicted, "fraction": measured / predicted,
            "good": measured >= GAIN_KEPT * predicted}


def kept_rounds(path, digest):
    """Rounds by configuration from a report of the same program."""
    if not path or not pathlib.Path(path).exists():
        return {}
    report = json.loads(pathlib.Path(path).read_text())
    return report["rounds"] if report.get("program") == digest else {}


def main():
    args = arguments()
    args.data = str(pathlib.Path(args.data).resolve())
    args.scratch = str(pathlib.Path(args.scratch).resolve())
    chosen = [c for c in CONFIGURATIONS if not args.only or any(word in c[0] for word in args.only)]
    digest = hashlib.sha256(pathlib.Path(args.program).read_bytes()).hexdigest()
    rounds = kept_rounds(args.json, digest)
    measure(args, chosen[0])
    for number in range(args.rounds):
        for configuration in chosen:
            one = measure(args, configuration)
            rounds.setdefault(configuration[0], []).append(one)
            print(f"round {number + 1}: {configuration[0]}: {json.dumps(one)}", file=sys.stderr, flush=True)
    results = [summarise(name, rounds[name]) for name, *_ in CONFIGURATIONS if name in rounds]
    by_name = {result["name"]: result for result in results}
    gains = [gain(by_name, *pair) for pair in PAIRS if all(name in by_name for name in pair)]
    print(f"{'configuration':<40} {'predicted s':>11} {'measured s (min median max)':>30} {'ratio':>6} {'allowed':>8}  bound")
    for result in results:
        samples = result["samples"]
        spread = f"{min(samples):.3f} {statistics.median(samples):.3f} {max(samples):.3f}"
        print(f"{result['name']:<40} {statistics.median(result['predicted']):>11.3f} {spread:>30} {result['value']:>6.2f} "
              f"{'±' + format(result['allowed'], '.2f'):>8}  {result['bound']:.3f} s ({result['lane']}){'' if result['good'] else '  MISSED'}")
    good = sum(result["good"] for result in results)
    print(f"{good} of {len(results)} within their allowance\n")
    for one in gains:
        print(f"{one['name']:<84} {one['value']:.2f} times, predicted {one['ceiling']:.2f}{'' if one['good'] else '  MISSED'}")
    if args.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        machine = {"processor": platform.processor(), "cores": os.cpu_count()}
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine, "commit": commit, "program": digest, "results": results,
                                                    "gains": gains, "rounds": rounds}, indent=1) + "\n")
    return 0 if all(one["good"] for one in results + gains) else 1


if __name__ == "__main__":
    sys.exit(main())
