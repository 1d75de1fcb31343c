#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the smaller state formats cost in final validation loss: the same jobs in every format, over seeds. Settings: a character
model in nanoGPT's setting with beta2 0.99 and 0.999, and a Llama of 3.3M parameters on the King James text. The loss is the one
over the whole validation part after the last step. One table, and one JSON report; what a report has already is not run again.

  ./dev bench quality --shakespeare TEXT --bible TEXT [--json FILE] [--seeds 1 2 3]
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ("split", "split_bf16", "compact")  # split has the bits of fp32 (tests/integration/bits_test.py)

def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shakespeare", required=True, help="text of the character model")
    parser.add_argument("--bible", required=True, help="text of the Llama")
    parser.add_argument("--json", help="file for the report; runs that it holds are not repeated")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--settings", nargs="+", default=["char-0.99", "char-0.999", "llama-3m"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/headrace"))
    return parser.parse_args()


def job(setting, options, seed, state_format):
    if setting == "llama-3m":
        beta2, batch = 0.95, 4
        model = {"architecture": "llama", "layers": 4, "embed": 256, "heads": 4, "inner": 688}
        data = {"train": options.bible, "validation_fraction": 0.05}
    else:  # as examples/nanogpt-char.json
        beta2, batch = float(setting.split("-")[1]), 12
        model = {"architecture": "gpt2", "layers": 4, "heads": 4, "embed": 128, "max_positions": 64, "activation": "gelu_erf"}
        data = {"train": options.shakespeare, "validation_fraction": 0.1}
    schedule = {"warmup_num_steps": max(2, options.steps // 20), "warmup_type": "linear", "total_num_steps": options.steps, "cos_min_ratio": 0.1}
    return {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, beta2], "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupCosineLR", "params": schedule},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
        "headrace": {
            "model": model,
            "data": {"tokenizer": "bytes", "sequence_length": 64, **data},
            "steps": options.steps,
            "seed": seed,
            "state_format": state_format,
            "threads": options.threads,
            "eval": {"every": options.steps},
        },
    }


def train(options, config):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.json"
        path.write_text(json.dumps(config))
        command = [options.program, "train", str(path), "--run-dir", f"{folder}/run", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        rows = [json.loads(line) for line in (pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
        return [row["val_loss"] for row in rows if "val_loss" in row][-1]


def main():
    options = arguments()
    options.shakespeare, options.bible = (str(pathlib.Path(path).resolve()) for path in (options.shakespeare, options.bible))
    report = pathlib.Path(options.json) if options.json else None
    losses = json.loads(report.read_text())["losses"] if report and report.exists() else {}
    for setting in options.settings:
        for seed in options.seeds:
            for state_format in FORMATS:
                name = f"{setting} seed {seed} {state_format} {options.steps} steps"
                if name in losses:
                    continue
                losses[name] = train(options, job(setting, options, seed, state_format))
                print(f"{name}: {losses[name]:.4f}", file=sys.stderr, flush=True)
                if report:
                    report.write_text(json.dumps({"losses": losses}))
    results = []
    print("| setting | " + " | ".join(FORMATS) + " | " + " | ".join(f"{name} against {FORMATS[0]}" for name in FORMATS[1:]) + " |")
    print("|" + " --- |" * (2 * len(FORMATS)))
    for setting in options.settings:
        mean = {}
        for state_format in FORMATS:
            samples = [losses[f"{setting} seed {seed} {state_format} {options.steps} steps"] for seed in options.seeds]
            mean[state_format] = statistics.mean(samples)
            results.append({"name": f"{setting} {state_format}", "value": mean[state_format], "unit": "nats", "ceiling": mean[FORMATS[0]],
                            "fraction": mean[FORMATS[0]] / mean[state_format], "samples": samples})
        print(f"| {setting} | " + " | ".join(f"{mean[name]:.4f}" for name in FORMATS) + " | " +
              " | ".join(f"{100 * (mean[name] / mean[FORMATS[0]] - 1):+.2f} %" for name in FORMATS[1:]) + " |")
    if report:
        commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
        machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        report.write_text(json.dumps({"machine": machine, "commit": commit, "losses": losses, "results": results}, indent=1))


if __name__ == "__main__":
    main()
