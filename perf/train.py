#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The 222M decoder (4 layers, hidden 2048, 16 heads, inner 5632, vocabulary 4096, 256 tokens, micro-batches of 2) trained by
headrace with everything on NVMe, and beside it, where given, by DeepSpeed and PyTorch in the same run, interleaved:
tokens/s, peak resident memory, bytes on storage. One table, and one JSON report.

  ./dev bench train --data TEXT --scratch FOLDER [--json FILE]
                    [--peer-python PYTHON --peer-script bench_train.py]
"""

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
TOKENS = 512  # of one micro-batch
DEADLINE = 900


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a file whose bytes are the tokens")
    parser.add_argument("--scratch", required=True, help="folder on the device to measure")
    parser.add_argument("--json", help="file for the report")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first is left out")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--memory", default="1.1GiB", help="memory.host of headrace")
    parser.add_argument("--clip", type=float, default=1.0,
                        help="largest gradient norm. This model's is about 50 in its first steps: 1 clips every step, 1000 none, which is what later steps are like")
    parser.add_argument("--state-format", default="split")
    parser.add_argument("--update", default="auto", help="schedule.update of headrace")
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-script")
    parser.add_argument("--program", default=str(PROGRAM))
    return parser.parse_args()


def headrace_config(args, accumulation, home):
    offload = {"device": home}
    if home == "nvme":
        offload["nvme_path"] = [args.scratch]
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": args.clip,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 5e-5, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
        "headrace": {
            "model": {"preset": "peer-222m", "vocab": 4096},
            "data": {"train": args.data, "sequence_length": 256},
            "steps": args.steps,
            "seed": 1,
            "state_format": args.state_format,
            "schedule": {"update": args.update},
        },
    }


def run_headrace(args, accumulation, home, memory):
    folder = pathlib.Path(args.scratch) / "headrace-bench"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = folder / "job.json"
    config.write_text(json.dumps(headrace_config(args, accumulation, home)))
    command = [args.program, "train", str(config), "--run-dir", str(folder / "run"), "--json"]
    if memory:
        command.append(f"memory.host={memory}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stderr}")
    summary = json.loads(done.stdout)
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()][1:]
    rows = [row for row in rows if not row["drained"]]  # delayed updates: the first step makes none, the last one its own too
    if home == "nvme":
        subprocess.run([args.program, "checkpoint", "prune", str(folder / "run"), "--yes"], capture_output=True, check=True)
    shutil.rmtree(folder)
    return {
        "tokens_per_s": [row["tokens_per_second"] for row in rows],
        "step_s": [row["step_seconds"] for row in rows],
        "read_bytes": statistics.median(row["nvme_read_bytes"] for row in rows),
        "write_bytes": statistics.median(row["nvme_write_bytes"] for row in rows),
        "peak_rss": max(row["peak_rss_bytes"] for row in rows),
        "bound_ratio": statistics.median(row["bound_ratio"] for row in rows),
        "bound_lane": rows[-1]["bound_lane"],
        "lost": summary["lost_seconds_per_step"],
    }


def run_peer(args, accumulation, system):
    swap = pathlib.Path(args.scratch) / "peer-swap"
    shutil.rmtree(swap, ignore_errors=True)
    swap.mkdir(parents=True)
    report = pathlib.Path(args.scratch) / "peer.json"
    command = [args.peer_python, args.peer_script, "--system", system, "--steps", str(args.steps), "--accum", str(accumulation), "--data",
               args.data, "--dir", str(swap), "--dtype", "bf16", "--compute", "fp32", "--micro-batch", "2", "--lr", "5e-5", "--clip", str(args.clip), "--json", str(report)]
    if system == "torch":
        command += ["--adam", "fused"]
    else:  # the fastest of the settings that keep everything on NVMe: small sub-groups, one slot per tensor, prefetch off
        command += ["--offload", "all", "--sub-group-size", "20000000", "--param-buffer-size", "12000000", "--param-buffers", "40",
                    "--max-in-cpu", "0", "--zero", '{"stage3_prefetch_bucket_size":0}']
    environment = dict(os.environ, PATH=f"{pathlib.Path(args.peer_python).parent}:{os.environ['PATH']}", DS_ACCELERATOR="cpu")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=environment)
    shutil.rmtree(swap, ignore_errors=True)
    if done.returncode != 0:
        return {"failed": (done.stderr or done.stdout)[-400:]}
    result = json.loads(report.read_text())
    report.unlink()
    timed = result["steps"][1:]
    tokens = TOKENS * accumulation
    return {
        "tokens_per_s": [tokens / step["wall_s"] for step in timed],
        "step_s": [step["wall_s"] for step in timed],
        "read_bytes": statistics.median(step["read_bytes"] for step in timed),
        "write_bytes": statistics.median(step["write_bytes"] for step in timed),
        "peak_rss": peak_of(result["memory"]),
    }


def gemm_seconds(args):
    """Seconds that oneDNN's own products take for one micro-batch of this model, from their rates at the same shapes."""
    program = pathlib.Path(args.program).parent / "perf_gemm"
    done = subprocess.run([str(program), "--samples", "7"], check=True, capture_output=True, text=True, timeout=DEADLINE)
    ceiling = {result["name"]: result["ceiling"] * 1e9 for result in json.loads(done.stdout)["results"]
               if result["ceiling"] is not None}
    square, wide = 2 * 512 * 2048 * 2048, 2 * 512 * 2048 * 5632
    forward = (4 * square / ceiling["forward 512x2048x2048 bf16 weights"] + 2 * wide / ceiling["forward 512x5632x2048 bf16 weights"]
               + wide / ceiling["forward 512x2048x5632 bf16 weights"])
    inputs = 4 * square / ceiling["input gradient 512x2048x2048 bf16 weights"] + 3 * wide / ceiling["input gradient 512x2048x5632 bf16 weights"]
    weights = 4 * square / ceiling["weight gradient 2048x2048x512"] + 3 * wide / ceiling["weight gradient 5632x2048x512"]
    head = 2 * square * (1 / ceiling["forward 512x2048x2048 bf16 weights"] + 1 / ceiling["input gradient 512x2048x2048 bf16 weights"]
                         + 1 / ceiling["weight gradient 2048x2048x512"])
    return 4 * (forward + inputs + weights) + head


def peak_of(memory):
    """VmHWM of the peers' report, which gives kB or bytes by the name of the field."""
    for key, value in memory.items():
        if "hwm" in key.lower():
            return int(value) * (1024 if key.lower().endswith("kb") else 1)
    return 0


def main():
    args = arguments()
    args.data = str(pathlib.Path(args.data).resolve())
    args.scratch = str(pathlib.Path(args.scratch).resolve())
    products = gemm_seconds(args)  # first: a benchmark that fails at its end loses everything
    runs = {}
    for _ in range(args.rounds):
        for accumulation in args.accumulation:
            jobs = [("headrace, all on NVMe", lambda a: run_headrace(args, a, "nvme", args.memory)),
                    ("headrace, in memory", lambda a: run_headrace(args, a, "cpu", None))]
            if args.peer_python:
                jobs += [("DeepSpeed ZeRO-3, all on NVMe", lambda a: run_peer(args, a, "deepspeed")),
                         ("PyTorch, in memory", lambda a: run_peer(args, a, "torch"))]
            for name, job in jobs:
                run = job(accumulation)
                runs.setdefault((accumulation, name), []).append(run)
                print(f"accumulation {accumulation}, {name}: {json.dumps(run)}", file=sys.stderr, flush=True)
    parameters = 222_316_544
    results = []
    print(f"{'accumulation':>12}  {'system':<30} {'tokens/s (min median max)':>27} {'read B/p':>9} {'write B/p':>10} {'peak RSS GB':>12}  bound_ratio")
    for (accumulation, name), list_of_runs in runs.items():
        good = [run for run in list_of_runs if "failed" not in run]
        if not good:
            print(f"{accumulation:>12}  {name:<30} failed: {list_of_runs[0]['failed']}")
            continue
        samples = [value for run in good for value in run["tokens_per_s"]]
        read, write = (statistics.median(run[key] for run in good) / parameters for key in ("read_bytes", "write_bytes"))
        rss = max(run["peak_rss"] for run in good)
        ratio = f"{good[0]['bound_ratio']:.2f} ({good[0]['bound_lane']})" if "bound_ratio" in good[0] else ""
        spread = f"{min(samples):.1f} {statistics.median(samples):.1f} {max(samples):.1f}"
        print(f"{accumulation:>12}  {name:<30} {spread:>27} {read:>9.2f} {write:>10.2f} {rss / 1e9:>12.2f}  {ratio}")
        ceiling = TOKENS / products  # what the products alone would take
        results.append({"name": f"{name}, accumulation {accumulation}", "value": statistics.median(samples), "unit": "tokens/s",
                        "ceiling": ceiling, "fraction": statistics.median(samples) / ceiling, "samples": samples, "peak_rss_bytes": rss, "read_bytes_per_parameter": read,
                        "write_bytes_per_parameter": write, "detail": good[0]})
    print(f"oneDNN's products at these shapes alone: {TOKENS / products:.1f} tokens/s")
    if args.json:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        machine = {"processor": platform.processor(), "cores": os.cpu_count()}
        pathlib.Path(args.json).write_text(json.dumps({"machine": machine, "commit": commit, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
