# SPDX-License-Identifier: Apache-2.0
"""The same bits in every tier, tile size, thread count, with forced copies, with random delays, in every state format, and for
fp32 and split state."""

import json
import os
import unittest
import unittest.mock

from harness import JobCase

HOST = "cpu"
WEIGHTS, OPTIMIZER = "zero_optimization.offload_param.device=", "zero_optimization.offload_optimizer.device="


class Bits(JobCase):
    def digest_of(self, name, *overrides):
        outcome = self.train(*overrides, run=name)
        return self.digest_in(outcome.out) if "digest" in outcome.out else self.digest(name)

    def run_variants(self, variants, *common):
        want = self.digest_of(f"reference-{common}", *common)
        for name, overrides in variants.items():
            with self.subTest(name, common=common):
                # The weight updates choose their kernels when the program starts.
                environment = {"HEADRACE_CPU_TARGET": "scalar"} if name == "scalar kernels" else {}
                with unittest.mock.patch.dict(os.environ, environment):
                    self.assertEqual(self.digest_of(f"{name}-{common}", *common, *overrides), want, name)
        return want

    def test_every_way_to_run_one_job_gives_the_same_state(self):
        self.run_variants({
            "no cache": ["memory.cache=false"],
            "all in host memory": [WEIGHTS + HOST, OPTIMIZER + HOST],
            "all on the device": [WEIGHTS + "none", OPTIMIZER + "none"],
            "weights in host memory": [WEIGHTS + HOST],
            "optimizer in host memory": [OPTIMIZER + HOST],
            "one thread": ["threads=1"],
            "three threads": ["threads=3"],
            "large tiles": ["tile_bytes=4MiB"],
            "forced copies": ["device.force_copies=true", "memory.cache=false"],
            "random delays": ["debug.lane_delay_us=3000", "debug.seed=9", "memory.cache=false"],
            "fp32 state": ["state_format=fp32"],
            "scalar kernels": [],
            "recomputed activations": ["schedule.activations=recompute"],
            "thread backend": ["io.backend=threads"],
            "power durability": ["durability=power"],
        })

    def test_rounded_state_formats_have_their_own_bits_in_every_way_to_run(self):
        digests = set()
        for state_format in ("split", "split_bf16", "compact"):
            digests.add(self.run_variants({
                "no cache": ["memory.cache=false"],
                "all in host memory": [WEIGHTS + HOST, OPTIMIZER + HOST],
                "one thread": ["threads=1"],
                "large tiles": ["tile_bytes=4MiB"],
                "scalar kernels": [],
            }, f"state_format={state_format}"))
        self.assertEqual(len(digests), 3)

    def test_rounded_state_goes_on_after_a_restart(self):
        for state_format in ("split_bf16", "compact"):
            with self.subTest(state_format):
                want = self.digest_of(f"{state_format}-whole", f"state_format={state_format}")
                run = f"{state_format}-parts"
                self.train(f"state_format={state_format}", "--max-steps", "2", run=run)
                self.assertEqual(self.digest_of(run, f"state_format={state_format}"), want)

    def test_every_optimizer_has_its_own_bits_in_every_way_to_run(self):
        digests, bytes_per_parameter = set(), {"Adam": 12, "Lion": 8, "Adagrad": 8, "SGD": 4}
        parameters = json.loads(self.run_program("plan", "job.json", "--json").out)["state_bytes"] / 12  # of AdamW, split
        for kind, rate in {"Adam": 1e-3, "Lion": 1e-4, "Adagrad": 1e-2, "SGD": 1e-2}.items():
            config = json.loads((self.folder / "job.json").read_text())
            config["optimizer"] = {"type": kind, "params": {"lr": rate, "weight_decay": 0.1}}
            if kind == "Adam":
                config["optimizer"]["params"]["adam_w_mode"] = False
            self.write_config(config)
            digests.add(self.run_variants({
                "no cache": ["memory.cache=false"],
                "all in host memory": [WEIGHTS + HOST, OPTIMIZER + HOST],
                "fp32 state, large tiles": ["state_format=fp32", "tile_bytes=4MiB"],
                "one thread": ["threads=1"],
                "scalar kernels": [],
            }, f"headrace.seed={len(digests)}"))
            plan = json.loads(self.run_program("plan", "job.json", "--json").out)
            self.assertLess(abs(plan["state_bytes"] / bytes_per_parameter[kind] / parameters - 1), 0.01, kind)
            rows = self.metrics(f"one thread-('headrace.seed={len(digests) - 1}',)")
            self.assertLess(rows[-1]["loss"], rows[0]["loss"], kind)
        self.assertEqual(len(digests), 4)

    def test_a_first_update_at_rate_zero_keeps_the_weights(self):
        # With an fp32 master the update writes weights that it has not read; a warm-up begins at rate zero.
        config = json.loads((self.folder / "job.json").read_text())
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 3, "warmup_max_lr": 1e-3}}
        self.write_config(config)
        self.train("state_format=split", run="split")
        self.train("state_format=fp32", "memory.cache=false", run="fp32")
        self.assertEqual([row["loss"] for row in self.metrics("fp32")], [row["loss"] for row in self.metrics("split")])
        self.assertEqual(self.digest("fp32"), self.digest("split"))

    def test_a_small_budget_changes_no_bit(self):
        want = self.digest_of("plenty")
        refused = self.train("memory.host=1MiB", run="tiny", expect=4)
        smallest = refused.err.split("memory.host=")[1].split()[0]
        self.assertEqual(self.digest_of("smallest", f"memory.host={smallest}"), want)

    def test_two_groups_differ_from_one_only_by_rounding(self):
        self.train("schedule.group_size=1", run="one")
        self.train("schedule.group_size=4", run="four")
        for a, b in zip(self.metrics("one"), self.metrics("four")):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-3)

    def test_bytes_moved_are_the_bytes_planned(self):
        planned = json.loads(self.run_program("plan", "job.json", "--json", "memory.cache=false").out)
        self.train("memory.cache=false")
        for row in self.metrics():
            self.assertEqual(row["nvme_read_bytes"], planned["nvme_read_bytes_per_step"])
            self.assertEqual(row["nvme_write_bytes"], planned["nvme_write_bytes_per_step"])


if __name__ == "__main__":
    unittest.main()
