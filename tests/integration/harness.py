# SPDX-License-Identifier: Apache-2.0
"""Runs the headrace program on small jobs in a folder of its own, on a real file system."""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.environ["HEADRACE_BIN"], "headrace")
DEADLINE = 300  # seconds for one command; a command that hangs is a failure, not a wait

SMALL = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "nvme", "nvme_path": ["scratch"]},
        "offload_optimizer": {"device": "nvme", "nvme_path": ["scratch"]},
    },
    "headrace": {
        "model": {"architecture": "llama", "layers": 3, "embed": 64, "heads": 4, "kv_heads": 2, "inner": 160},
        "data": {"train": "text.txt", "sequence_length": 32, "validation_fraction": 0.05},
        "steps": 6,
        "seed": 5,
        "schedule": {"group_size": 2},
        "tile_bytes": "64KiB",
    },
}


class Outcome:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}\n--- out\n{self.out[-3000:]}\n--- err\n{self.err[-3000:]}"


class JobCase(unittest.TestCase):
    """Each test has a fresh folder with a text and a scratch path."""

    def setUp(self):
        base = os.environ.get("HEADRACE_TEST_DIR", os.getcwd())
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=base))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "scratch").mkdir()
        words = "in the beginning was a river and a wheel that turned by night and by day over stones of many colours".split()
        chosen = random.Random(11)
        text = " ".join(chosen.choice(words) for _ in range(8000))
        (self.folder / "text.txt").write_text(text)
        self.write_config(SMALL)

    def write_config(self, config, name="job.json"):
        (self.folder / name).write_text(json.dumps(config, indent=1))

    def start(self, *arguments, **options):
        return subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, **options)

    def run_program(self, *arguments, **options):
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"{arguments} hangs\n{out}\n{err}")
        return Outcome(process.returncode, out, err)

    def train(self, *overrides, run="run", expect=0, config="job.json"):
        outcome = self.run_program("train", config, "--run-dir", run, *overrides)
        self.assertEqual(outcome.code, expect, str(outcome))
        return outcome

    def digest(self, run="run"):
        """Of master weights and moments: read back from the volume, or as the run printed it when all was in memory."""
        outcome = self.run_program("checkpoint", "verify", run)
        self.assertEqual(outcome.code, 0, str(outcome))
        return self.digest_in(outcome.out)

    def digest_in(self, text):
        found = re.search(r"digest +([0-9a-f]{16})", text)
        self.assertIsNotNone(found, text)
        return found.group(1)

    def metrics(self, run="run"):
        rows = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        return [row for row in rows if "val_loss" not in row]

    def limit_that_clips_a_third(self, *overrides):
        """gradient_clipping of which about every third step of the job is hit."""
        self.train("gradient_clipping=0", *overrides, run="norms")
        norms = sorted(row["grad_norm"] for row in self.metrics("norms"))
        return norms[len(norms) * 2 // 3] * 0.999

    def volume(self, run="run"):
        run_id = json.loads((self.folder / run / "run.json").read_text())["run_id"]
        return self.folder / "scratch" / f"headrace-{run_id}.volume"
