# SPDX-License-Identifier: Apache-2.0
"""Damage, full and missing paths, numbers that are not finite: the right exit code and a message that says where and what to do."""

import json
import os
import subprocess
import unittest

from harness import JobCase


class Faults(JobCase):
    def test_a_flipped_bit_is_found_and_named(self):
        self.train("--max-steps", "2")
        volume = self.volume()
        data = bytearray(volume.read_bytes())
        # Every second 4 KiB block of the tile area, so that a current slot is hit wherever it lies.
        for offset in range(len(data) // 2, len(data), 8192):
            data[offset] ^= 0x10
        volume.write_bytes(data)
        outcome = self.run_program("checkpoint", "verify", "run")
        self.assertEqual(outcome.code, 5, str(outcome))
        self.assertIn(str(volume), outcome.out)
        self.assertRegex(outcome.out, r"offset|at [0-9.]+ [KMG]iB")
        self.assertRegex(outcome.out, r"unit \d+ \"[a-z_.0-9]+\", (weights|optimizer) tile \d+")
        self.assertRegex(outcome.err, r"\d+ tiles? damaged")
        self.assertEqual(self.run_program("train", "job.json", "--run-dir", "run").code, 5)

    def test_a_truncated_volume_is_refused(self):
        self.train("--max-steps", "2")
        os.truncate(self.volume(), self.volume().stat().st_size // 2)
        outcome = self.train(expect=5)
        self.assertIn(str(self.volume()), outcome.err)

    def test_a_missing_path_is_refused_before_anything_is_made(self):
        (self.folder / "scratch").rmdir()
        outcome = self.train(expect=4)
        self.assertIn("scratch", outcome.err)
        self.assertFalse((self.folder / "run" / "run.json").exists())

    def test_a_path_that_is_a_file_is_refused(self):
        (self.folder / "scratch").rmdir()
        (self.folder / "scratch").write_text("")
        self.assertIn("scratch", self.train(expect=4).err)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small file system needs root")
    def test_a_full_disk_is_refused_at_the_start_with_numbers(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.folder / "scratch"], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest("cannot mount here: " + mounted.stderr)
        self.addCleanup(subprocess.run, ["umount", self.folder / "scratch"])
        outcome = self.train("io.mode=buffered", expect=4)
        self.assertIn("scratch", outcome.err)
        self.assertRegex(outcome.err, r"[0-9.]+ (MiB|KiB)")

    def test_a_step_with_nan_is_skipped_and_named(self):
        outcome = self.train("debug.inject=\"nan:3\"")
        self.assertIn("skipped", outcome.out)
        rows = self.metrics()
        self.assertEqual([row["skipped"] for row in rows], [False, False, True, False, False, False])
        self.assertEqual([row["optimizer_step"] for row in rows], [1, 2, 2, 3, 4, 5])

    def test_a_skipped_step_leaves_every_bit(self):
        self.train("--max-steps", "2")
        before = self.digest()
        self.train("debug.inject=\"nan:3\"", "--max-steps", "1")
        self.assertEqual(self.digest(), before)
        self.assertEqual(self.metrics()[-1]["step"], 3)

    def test_too_many_skips_in_a_row_end_the_run(self):
        outcome = self.train("debug.inject=\"nan:2-6\"", "max_skipped_in_a_row=3", expect=6)
        self.assertIn("embed_tokens", outcome.err)
        self.assertEqual(self.metrics()[-1]["step"], 4)

    def test_fp16_halves_its_scale_instead(self):
        config = json.loads((self.folder / "job.json").read_text())
        del config["bf16"]
        config["fp16"] = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
        self.write_config(config)
        self.train("debug.inject=\"nan:2-3\"")
        scales = [row["loss_scale"] for row in self.metrics()]
        self.assertEqual(scales[0], 256)
        self.assertEqual(scales[-1], 64)

    def test_activations_that_the_disk_loses_are_named_and_the_run_goes_on(self):
        self.train("schedule.activations=keep", run="whole")
        job = ["schedule.activations=nvme", "memory.cache=false", "debug.lane_delay_us=2000"]
        process = self.start("train", "job.json", "--run-dir", "run", *job)
        while "step 1/6" not in (line := process.stdout.readline()):
            self.assertTrue(line, "the run ended before its first step")
        spill = self.volume().with_name(self.volume().name.replace(".volume", "-spill.volume"))
        self.assertTrue(spill.exists())
        while process.poll() is None and spill.exists():
            os.truncate(spill, 0)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 5, out + err)
        self.assertRegex(err, r"in read_activation unit \d+ micro-batch \d+")
        self.assertIn(spill.name, err)
        self.assertRegex(err, r"offset \d+")
        rows = len(self.metrics())
        self.assertLess(rows, 6)
        self.train(*job)
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.digest(), self.digest("whole"))

    def test_memory_stays_within_the_plan(self):
        plan = json.loads(self.run_program("plan", "job.json", "--json").out)
        self.train()
        planned = plan["memory"]["host"]["peak_bytes"]
        self.assertLessEqual(max(row["peak_rss_bytes"] for row in self.metrics()), planned * 1.05)


class BadInput(JobCase):
    def refused(self, *overrides, code=3, words=(), config="job.json"):
        outcome = self.train(*overrides, expect=code, config=config)
        for word in words:
            self.assertIn(word, outcome.err)
        self.assertEqual(list((self.folder / "scratch").iterdir()), [], "state was written")
        self.assertFalse((self.folder / "run").exists(), "a run folder was made")

    def test_values(self):
        for override in ["headrace.steps=0", "headrace.steps=-1", "headrace.steps=\"ten\"", "headrace.steps=1e400", "optimizer.params.lr=-1",
                         "train_batch_size=0", "headrace.data.sequence_length=0", "tile_bytes=-4", "memory.host=0", "threads=0"]:
            with self.subTest(override):
                self.refused(override, words=[override.split("=")[0].split(".")[-1]])

    def test_unknown_keys_have_a_nearest_one(self):
        self.refused("headrace.stesp=3", words=["steps"])
        self.write_config({**json.loads((self.folder / "job.json").read_text()), "gradient_clippping": 1}, "typo.json")
        self.refused(config="typo.json", words=["typo.json:", "gradient_clipping"])

    def test_data(self):
        (self.folder / "empty.txt").write_text("")
        (self.folder / "short.txt").write_text("too short")
        self.refused("headrace.data.train=missing.txt", words=["missing.txt"])
        self.refused("headrace.data.train=empty.txt", words=["empty.txt"])
        self.refused("headrace.data.train=short.txt", words=["short.txt", "9"])
        self.refused("headrace.model.vocab=40", words=["40"])

    def test_model_folders(self):
        reference = os.path.join(os.environ["HEADRACE_REFERENCE"], "models")
        self.write_config({**json.loads((self.folder / "job.json").read_text())}, "folder.json")
        config = json.loads((self.folder / "job.json").read_text())
        for name, word in [("llama_tiny", "model.safetensors"), ("llama_tied_rope3_sharded", "model-00002")]:
            broken = self.folder / name
            subprocess.run(["cp", "-r", os.path.join(reference, name), broken], check=True)
            subprocess.run(["chmod", "-R", "u+w", broken], check=True)
            file = next(f for f in broken.iterdir() if word in f.name)
            config["headrace"]["model"] = {"path": str(broken)}
            self.write_config(config, "folder.json")
            with self.subTest(name + " truncated"):
                os.truncate(file, file.stat().st_size - 100)
                self.refused("headrace.data.sequence_length=16", config="folder.json", words=[file.name])
            with self.subTest(name + " missing"):
                file.unlink()
                self.refused("headrace.data.sequence_length=16", config="folder.json", words=["model"])

    def test_a_budget_that_is_too_small_names_one_that_works(self):
        outcome = self.run_program("plan", "job.json", "memory.host=2MiB", "--json")
        self.assertEqual(outcome.code, 4, str(outcome))
        document = json.loads(outcome.out)
        self.assertFalse(document["fits"])
        self.assertEqual(self.run_program("plan", "job.json", f"memory.host={document['smallest']['host'] + (1 << 20)}").code, 0)

    def test_usage(self):
        for arguments, word in [(["trian"], "train"), (["train", "job.json", "--run-dri", "x"], "--run-dir"), (["train"], "config")]:
            outcome = self.run_program(*arguments)
            self.assertEqual(outcome.code, 2, str(outcome))
            self.assertIn(word, outcome.err)

    def test_errors_as_json(self):
        outcome = self.run_program("train", "job.json", "--json", "headrace.steps=0")
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertEqual(json.loads(outcome.out)["error"]["code"], "config")


if __name__ == "__main__":
    unittest.main()
