#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps of DeepSpeed's CPU Adam and of PyTorch's AdamW over N parameters, for perf/adam.py: one process, one JSON line.

Beside the bare update there is what a user of mixed precision runs around it, in that library's own operations:
  DeepSpeed  gradient bf16 -> fp32 buffer; overflow check and norm; one multiplication by 1 / (scale * clip); step; weights -> bf16
  PyTorch    unscale with its check (GradScaler's operation); clip_grad_norm_; step(fused=True); weights -> bf16
Every contender's first step is checked against fp64 on a slice."""

import argparse
import json
import os
import time

HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
CHECKED = 1 << 18


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1 << 26)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of contenders")
    return parser.parse_args()


def contenders(torch):
    """name: (weights' type, make the optimizer from one parameter, passes around it or None)"""

    def torch_adamw(**kind):
        return lambda p: torch.optim.AdamW([p], **HYPER, **kind)

    def deepspeed(**kind):
        def make(p):
            from deepspeed.ops.adam import DeepSpeedCPUAdam

            return DeepSpeedCPUAdam([p], adamw_mode=True, **HYPER, **kind)

        return make

    f32, b16 = torch.float32, torch.bfloat16
    return {
        "torch default": (f32, torch_adamw(foreach=False, fused=False), None),
        "torch fused": (f32, torch_adamw(fused=True), None),
        "torch fused, passes": (f32, torch_adamw(fused=True), "torch"),
        "deepspeed": (f32, deepspeed(), None),
        "deepspeed, passes": (f32, deepspeed(), "deepspeed"),
        "deepspeed bf16, fp32 moments": (b16, deepspeed(fp32_optimizer_states=True), None),
        "deepspeed bf16": (b16, deepspeed(fp32_optimizer_states=False), None),
    }


class Contender:
    def __init__(self, torch, parameters, spec):
        self.torch = torch
        dtype, make, self.passes = spec
        generator = torch.Generator().manual_seed(1)
        self.p = torch.nn.Parameter(torch.randn(parameters, generator=generator).to(dtype))
        gradient = torch.randn(parameters, generator=generator).mul_(1e-2)
        self.p.grad = gradient.to(dtype)
        self.arriving = gradient.to(torch.bfloat16) if self.passes == "deepspeed" else None
        self.compute = self.p.detach().to(torch.bfloat16) if self.passes else None
        self.start = self.p.detach()[:CHECKED].double().clone(), self.p.grad[:CHECKED].double().clone()
        if self.arriving is not None:
            self.start = self.start[0], self.arriving[:CHECKED].double()
        self.optimizer = make(self.p)

    def step(self):
        torch = self.torch
        if self.passes == "deepspeed":
            gradient = self.p.grad
            gradient.copy_(self.arriving)
            total = gradient.norm()
            bad = not bool(torch.isfinite(total))
            # A power of two and a limit that does not bind: the work is done and the values stay.
            scale = 1.0 if bad else max(1.0, float(total) / 1e9)
            gradient.mul_(1.0 / scale)
        elif self.passes == "torch":
            found = torch.zeros(1)
            torch._amp_foreach_non_finite_check_and_unscale_([self.p.grad], found, torch.ones(1))
            torch.nn.utils.clip_grad_norm_([self.p], 1e9)
        self.optimizer.step()
        if self.compute is not None:
            with torch.no_grad():
                self.compute.copy_(self.p)

    def error(self):
        p, g = self.start
        want = p * (1 - HYPER["lr"] * HYPER["weight_decay"]) - HYPER["lr"] * g / (g.abs() + HYPER["eps"])
        return float((self.p.detach()[:CHECKED].double() - want).abs().max())


def main():
    args = parse()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch

    torch.set_num_threads(args.threads)
    results, failures = {}, {}
    for name, spec in contenders(torch).items():
        if args.only and name not in args.only:
            continue
        try:
            contender = Contender(torch, args.parameters, spec)
            contender.step()
            error = contender.error()
            if error > (2e-2 if spec[0] == torch.bfloat16 else 1e-6):
                raise ValueError(f"the first step is {error:.3g} from the exact one")
            seconds = []
            for _ in range(args.rounds):
                begin = time.perf_counter()
                contender.step()
                seconds.append(time.perf_counter() - begin)
            results[name] = [s / args.parameters * 1e9 for s in seconds]
            del contender
        except Exception as error:  # what a library cannot do here is a finding
            failures[name] = f"{type(error).__name__}: {error}"
    versions = {"torch": torch.__version__, "torch capability": torch.backends.cpu.get_cpu_capability()}
    try:
        import deepspeed

        versions["deepspeed"] = deepspeed.__version__
    except ImportError:
        pass
    print(json.dumps({"ns_per_parameter": results, "failures": failures, "versions": versions}))


if __name__ == "__main__":
    main()
