#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the simulator makes of other systems' published runs, by their own rules: the table of docs/planning.md. Inputs
are makers' figures and what the publications state; where a machine is not described, the assumption is in the table.

  perf/published.py [--program build/release/bin/headrace]
"""

import argparse
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "hardware"


def gpt(layers, hidden, heads):
    return {"architecture": "gpt2", "layers": layers, "embed": hidden, "heads": heads, "inner": 4 * hidden, "vocab": 50257,
            "max_positions": 4096}


def parameters(layers, hidden):
    return 12 * layers * hidden * hidden


def hardware(name, **changes):
    document = json.loads((EXAMPLES / name).read_text())
    document.update(copy.deepcopy(changes))
    return document


def with_disk(document, read, write, mixed=None):
    document = copy.deepcopy(document)
    storage = document["storage"][0]
    for key, value in (("read", read), ("write", write), ("mixed", mixed or (read + write) / 2)):
        storage[key]["bw_bytes"] = value
    return document


def with_host_memory(document, bytes_per_s, cores):
    """Host rates as examples/hardware derives them from the memory's bandwidth."""
    document = copy.deepcopy(document)
    rate = 0.8 * bytes_per_s
    document["cores"] = document["host"]["cores"] = cores
    document["memory"].update(read_bytes_per_s=rate, write_bytes_per_s=rate, copy_bytes_per_s=rate / 2)
    document["gradients"]["elements_per_s"] = rate / 6
    moved = {"fp32": 30, "split": 26, "split_bf16": 18, "compact": 12}
    for entry in document["optimizer"]:
        entry["parameters_per_s"] = rate / moved[entry["format"]]
    return document


class Runner:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def rules(self, document, model, batch, micro_batches, length, names):
        file = self.folder / "hardware.json"
        # Whether a job fits is not asked here: rules have no buffers.
        document = copy.deepcopy(document)
        document["host"]["memory_bytes"] = 10**16
        document["device"]["memory_bytes"] = 10**15
        file.write_text(json.dumps(document))
        offload = {"device": "nvme", "nvme_path": ["nvme"]}
        config = self.folder / "job.json"
        config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": micro_batches, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": offload, "offload_optimizer": offload},
            "headrace": {"model": model, "data": {"sequence_length": length}, "state_format": "fp32",
                         "schedule": {"group_size": micro_batches, "update": "after_backward", "activations": "recompute"}}}))
        done = subprocess.run([self.program, "plan", str(config), "--hardware", str(file), "--compare", ",".join(names), "--json"],
                              capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        document = json.loads(done.stdout)
        return {entry["rules"]: entry for entry in document["compare"]}, document["predicted_step_seconds"]


def lohan(runner):
    """13B on one RTX 4090 with 1 to 12 Intel P5510 (6.5 GB/s read, 3.4 GB/s written, data sheet), batch 32 of 1024 tokens.
    Host: two Xeon 5320, 16 channels of DDR4-2933. The card's rate is the best of the same publication (155.8 TFLOP/s at
    batch 64, 12 drives); batch 32 and the other drives follow from it."""
    published = {1: 37.5, 2: 64.3, 3: 81.1, 6: 121.7, 12: 142.0}
    base = with_host_memory(hardware("workstation-4090-1nvme.json"), 16 * 23.4e9, 52)
    base["device"]["flops_per_s"] = {"bf16": 155.8e12, "fp16": 155.8e12}
    flops = 8 * parameters(40, 5120) * 32 * 1024
    for drives, tflops in published.items():
        rules, _ = runner.rules(with_disk(base, 6.5e9 * drives, 3.4e9 * drives), gpt(40, 5120, 40), 32, 1, 1024, ["lohan"])
        yield (f"LoHan 13B, {drives} drives, TFLOP/s with what is computed again", tflops, flops / rules["lohan"]["step_seconds"] / 1e12)


def mlp_offload(runner):
    """ZeRO-3 rows of DataStates/artifacts: the disk's rate is taken from the update of 40B and used for the others."""
    rate = 28 * parameters(128, 5120) / 213.610
    published = {"40B": (128, 5120, 213.610, 27.473), "70B": (80, 8192, 336.427, 32.905), "100B": (124, 8192, 501.916, 68.341)}
    for name, (layers, hidden, update, backward) in published.items():
        machine = with_disk(hardware("8xa100-80.json"), rate, rate, rate)
        rules, _ = runner.rules(machine, gpt(layers, hidden, hidden // 128), 1, 1, 2048, ["zero-infinity-optimizer"])
        got = rules["zero-infinity-optimizer"]
        # Here gradients that are still being written when the last product is done count as update, there as backward.
        yield (f"ZeRO-3 with NVMe, {name}, backward and update s", backward + update, got["backward_seconds"] + got["update_seconds"])


def greedysnake(runner):
    """Ratio over ZeRO-Infinity on one A100; drives and batch are not stated where we could read: four drives, 32 micro-batches."""
    for name, layers, hidden, ratio in (("65B", 80, 8192, 1.96), ("175B", 96, 12288, 2.53)):
        machine = with_disk(hardware("8xa100-80.json"), 4 * 6.2e9, 4 * 3.7e9)
        rules, _ = runner.rules(machine, gpt(layers, hidden, hidden // 128), 1, 32, 2048, ["zero-infinity", "greedysnake"])
        yield (f"GreedySnake over ZeRO-Infinity, {name}", ratio,
               rules["zero-infinity"]["step_seconds"] / rules["greedysnake"]["step_seconds"])


def zero_offload(runner):
    """10B on one V100: 40 TFLOP/s; the products' rate on it is not stated, the 70 of the hardware file are assumed."""
    rules, _ = runner.rules(hardware("dgx2-v100.json"), gpt(50, 4096, 32), 8, 64, 1024, ["zero-offload"])
    flops = 8 * parameters(50, 4096) * 8 * 64 * 1024
    yield ("ZeRO-Offload 10B on one V100, TFLOP/s", 40, flops / rules["zero-offload"]["step_seconds"] / 1e12)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/headrace"))
    args = parser.parse_args()
    print(f"| {'what':<62} | published | simulated | ratio |\n| {'-' * 62} | --------- | --------- | ----- |")
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(args.program, pathlib.Path(folder))
        for case in (lohan, mlp_offload, greedysnake, zero_offload):
            for name, published, simulated in case(runner):
                print(f"| {name:<62} | {published:>9.2f} | {simulated:>9.2f} | {simulated / published:>5.2f} |", flush=True)


if __name__ == "__main__":
    main()
