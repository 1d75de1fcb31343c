# SPDX-License-Identifier: Apache-2.0
"""A model of 150 million parameters in budgets far below its state: memory within the plan, bytes as planned, the same bits."""

import json
import os
import shutil
import unittest

from harness import SMALL, JobCase

# Shares of the state's bytes. The smallest one spills gradients to disk.
SHARES = [float(word) for word in os.environ.get("HEADRACE_BUDGET_SHARES", "0.12").split()]
NEEDED_DISK = 6 << 30


class OutOfCore(JobCase):
    def setUp(self):
        super().setUp()
        if shutil.disk_usage(self.folder).free < NEEDED_DISK:
            self.skipTest("needs 6 GiB of disk")
        config = json.loads(json.dumps(SMALL))
        config.update({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1})
        config["headrace"].update({
            "model": {"preset": "llama-150m"}, "steps": 2, "tile_bytes": "4MiB", "schedule": {"group_size": 1},
            "data": {"train": "text.txt", "sequence_length": 128},
        })
        self.write_config(config)

    def test_memory_stays_within_every_budget(self):
        state = json.loads(self.run_program("plan", "job.json", "--json", "memory.host=4GiB").out)["state_bytes"]
        digests = set()
        for share in SHARES:
            with self.subTest(share=share):
                budget = f"memory.host={int(state * share)}"
                plan = json.loads(self.run_program("plan", "job.json", "--json", budget).out)
                self.assertTrue(plan["fits"])
                run = f"run-{share}"
                self.train(budget, run=run)
                for row in self.metrics(run):
                    self.assertLessEqual(row["peak_rss_bytes"], int(state * share) * 1.05)
                if share < 0.15:  # two groups of a spilled gradient: written twice, read twice
                    self.assertGreater(plan["nvme_write_bytes_per_step"], 1.1 * state)
                digests.add(self.digest(run))
                self.run_program("checkpoint", "prune", run, "--yes")
        self.assertEqual(len(digests), 1, "the budget changed the result")

    def test_the_smallest_budget_that_is_named_works(self):
        refused = self.run_program("plan", "job.json", "--json", "memory.host=20MiB")
        self.assertEqual(refused.code, 4, str(refused))
        smallest = json.loads(refused.out)["smallest"]["host"]
        # The program itself may hold a little more on another start.
        self.train(f"memory.host={smallest + (4 << 20)}", "--max-steps", "1")
        self.assertLessEqual(self.metrics()[0]["peak_rss_bytes"], (smallest + (4 << 20)) * 1.05)

    def test_optimizers_of_whole_tensors_stay_within_the_plan_from_the_start(self):
        # Their tiles are whole units, also while fresh state is made.
        config = json.loads((self.folder / "job.json").read_text())
        del config["headrace"]["tile_bytes"]
        config["headrace"]["model"]["preset"] = "llama-20m"
        for optimizer in ("Muon", "Adafactor"):
            config["optimizer"] = {"type": optimizer, "params": {"lr": 1e-3}}
            self.write_config(config)
            plan = json.loads(self.run_program("plan", "job.json", "--json", "memory.host=200MiB").out)
            self.train("memory.host=200MiB", "--max-steps", "1", run=optimizer)
            self.assertLessEqual(self.metrics(optimizer)[0]["peak_rss_bytes"], plan["memory"]["host"]["peak_bytes"] * 1.05, optimizer)


if __name__ == "__main__":
    unittest.main()
