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
            "activations on NVMe": ["schedule.activations=nvme"],
            "activations on NVMe behind copies": ["schedule.activations=nvme", "device.force_copies=true"],
            "activations in host memory behind copies": ["schedule.activations=host", "device.force_copies=true"],
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

    def test_clipped_and_dropped_steps_have_the_same_bits_under_every_update_policy(self):
        steps = ["headrace.steps=12"]
        limit = self.limit_that_clips_a_third(*steps)
        job = [*steps, f"gradient_clipping={limit}", "debug.inject=\"nan:4,9\""]
        late, early = "schedule.update=after_backward", "schedule.update=in_backward"
        want = self.digest_of("late", *job, late)
        clipped = [row["clip_factor"] < 1 for row in self.metrics("late")]
        self.assertGreaterEqual(sum(clipped), 2, self.metrics("late"))
        self.assertLess(sum(clipped), 9, self.metrics("late"))
        refused = self.train(*job, early, "memory.host=1MiB", run="tiny", expect=4)
        smallest = refused.err.split("memory.host=")[1].split()[0]
        weights, optimizer = "zero_optimization.offload_param.device=", "zero_optimization.offload_optimizer.device="
        variants = {
            "early": [],
            "auto": ["schedule.update=auto"],
            "no cache": ["memory.cache=false"],
            "smallest": [f"memory.host={smallest}"],
            "weights in host memory": [weights + HOST],
            "optimizer in host memory": [optimizer + HOST],
            "all in host memory": [weights + HOST, optimizer + HOST],
            "forced copies": ["device.force_copies=true", "memory.cache=false"],
            "random delays": ["debug.lane_delay_us=1500", "debug.seed=3"],
            "recomputed activations": ["schedule.activations=recompute"],
            "activations on NVMe": ["schedule.activations=nvme"],
            "fp32 state": ["state_format=fp32"],
        }
        for index, (name, overrides) in enumerate(variants.items()):
            with self.subTest(name):
                run = f"early-{index}"
                self.assertEqual(self.digest_of(run, *job, early, *overrides), want, name)
                rows = self.metrics(run)
                self.assertEqual([row["loss"] for row in rows], [row["loss"] for row in self.metrics("late")])
                if name in ("early", "no cache", "smallest"):
                    self.assertEqual([row["redone"] for row in rows], clipped)
                    self.assertTrue(any(row["early"] and not row["redone"] for row in rows))

    def test_delayed_updates_have_the_bits_of_late_ones(self):
        steps = ["headrace.steps=12"]
        limit = self.limit_that_clips_a_third(*steps)
        job = [*steps, f"gradient_clipping={limit}", "debug.inject=\"nan:4,9\""]
        want = self.digest_of("late", *job, "schedule.update=after_backward")
        delayed = "schedule.update=into_forward"
        refused = self.train(*job, delayed, "memory.host=1MiB", run="tiny", expect=4)
        smallest = refused.err.split("memory.host=")[1].split()[0]
        variants = {
            "delayed": [],
            "no cache": ["memory.cache=false"],
            "smallest": [f"memory.host={smallest}"],
            "weights in host memory": [WEIGHTS + HOST],
            "optimizer in host memory": [OPTIMIZER + HOST],
            "all in host memory": [WEIGHTS + HOST, OPTIMIZER + HOST],
            "forced copies": ["device.force_copies=true", "memory.cache=false"],
            "random delays": ["debug.lane_delay_us=1500", "debug.seed=3"],
            "recomputed activations": ["schedule.activations=recompute"],
            "activations on NVMe": ["schedule.activations=nvme"],
            "fp32 state": ["state_format=fp32"],
            "one thread": ["threads=1"],
            "large tiles": ["tile_bytes=4MiB"],
            "one slot": ["slots=1"],
            "evaluations": ["eval.every=5"],
            "a quarter": ["schedule.delayed_fraction=0.25", "memory.cache=false"],
            "half": ["schedule.delayed_fraction=0.5", "debug.lane_delay_us=1500"],
            "three quarters, evaluations": ["schedule.delayed_fraction=0.75", "eval.every=5"],
            "half, all in host memory": ["schedule.delayed_fraction=0.5", WEIGHTS + HOST, OPTIMIZER + HOST],
            "a quarter, forced copies": ["schedule.delayed_fraction=0.25", "device.force_copies=true", "memory.cache=false"],
            "half, activations on NVMe": ["schedule.delayed_fraction=0.5", "schedule.activations=nvme", "memory.cache=false"],
            "half, one slot": ["schedule.delayed_fraction=0.5", "slots=1", "memory.cache=false"],
        }
        late = [[row[key] for row in self.metrics("late")] for key in ("step", "loss", "clip_factor", "lr", "optimizer_step", "skipped")]
        for index, (name, overrides) in enumerate(variants.items()):
            with self.subTest(name):
                run = f"delayed-{index}"
                self.assertEqual(self.digest_of(run, *job, delayed, *overrides), want, name)
                rows = [row for row in self.metrics(run) if "val_loss" not in row]
                self.assertEqual([[row[key] for row in rows] for key in ("step", "loss", "clip_factor", "lr", "optimizer_step", "skipped")], late)
                # The last step, and those before an evaluation, do not leave their updates to a next one; a skipped step has none.
                evaluated = (5, 10) if "eval.every=5" in overrides else ()
                self.assertEqual([row["step"] for row in rows if row["drained"]], [*evaluated, 12])

    def changed_by_auto(self, *job):
        """The policy of each step under auto, whose bits and losses are those of late updates."""
        outcome = self.train(*job, "schedule.update=auto")
        self.train(*job, "schedule.update=after_backward", run="late")
        self.assertEqual(self.digest(), self.digest("late"))
        rows = self.metrics()
        self.assertEqual([(row["step"], row["loss"]) for row in rows], [(row["step"], row["loss"]) for row in self.metrics("late")])
        return outcome, rows

    def test_auto_leaves_updates_to_the_next_step_while_steps_are_clipped(self):
        outcome, rows = self.changed_by_auto("headrace.steps=14", "gradient_clipping=1e-6", "memory.cache=false")
        self.assertEqual([row["update"] for row in rows[:9]], ["in_backward"] * 9)
        after = {row["update"] for row in rows[9:]}
        self.assertEqual(len(after), 1)
        # Which of the two it is, the machine decides.
        self.assertEqual("most steps are clipped" in outcome.out, after == {"into_forward"})

    def test_auto_comes_back_to_early_updates_when_clipping_becomes_rare(self):
        # The norm falls from 2.8 to below 2 within 16 steps.
        outcome, rows = self.changed_by_auto("headrace.steps=56", "gradient_clipping=2", "memory.cache=false", "debug.throttle=100000000")
        clipped = [row["clip_factor"] < 1 for row in rows]
        self.assertGreater(sum(clipped[:16]), 8)
        self.assertLessEqual(sum(clipped[-40:]), 4)
        self.assertEqual(rows[-1]["update"], "in_backward")
        if "most steps are clipped" in outcome.out:
            self.assertIn("clipping has become rare", outcome.out)
            self.assertIn("into_forward", {row["update"] for row in rows})

    def test_frequent_clipping_ends_early_updates(self):
        self.train("headrace.steps=14", "gradient_clipping=1e-6", "schedule.update=in_backward")
        self.train("headrace.steps=14", "gradient_clipping=1e-6", "schedule.update=after_backward", run="late")
        self.assertEqual(self.digest(), self.digest("late"))
        self.assertFalse(any(row["early"] for row in self.metrics()[-4:]))

    def test_an_early_update_that_could_not_be_taken_back_is_refused(self):
        refused = self.train("schedule.update=in_backward", "slots=1", expect=3)
        self.assertIn("\"slots\": 2", refused.err)
        self.train("schedule.update=in_backward", "slots=1", "gradient_clipping=0")
        self.train("schedule.update=after_backward", "gradient_clipping=0", run="late")
        self.assertEqual(self.digest(), self.digest("late"))

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
        for run, update in enumerate(("after_backward", "in_backward", "into_forward", "into_forward schedule.delayed_fraction=0.4")):
            job = ["memory.cache=false", "gradient_clipping=1000", *f"schedule.update={update}".split()]
            planned = json.loads(self.run_program("plan", "job.json", "--json", *job).out)
            self.train(*job, run=f"bytes-{run}")
            rows = self.metrics(f"bytes-{run}")
            # With delayed updates the first step finds none to make, and the last one makes its own as well.
            whole = rows[1:-1] if "into_forward" in update else rows
            self.assertGreater(len(whole), 2)
            for row in whole:
                self.assertEqual(row["nvme_read_bytes"], planned["nvme_read_bytes_per_step"])
                self.assertEqual(row["nvme_write_bytes"], planned["nvme_write_bytes_per_step"])
            self.assertEqual(sum(row["nvme_write_bytes"] for row in rows), len(rows) * planned["nvme_write_bytes_per_step"])


if __name__ == "__main__":
    unittest.main()
