# SPDX-License-Identifier: Apache-2.0
"""`headrace profile` and `headrace tune` as users run them: small, and without a look at how fast anything was."""

import json
import os
import pathlib
import signal
import time
import unittest

from harness import JobCase

SMALL = ("--quick", "--max-write", "64MiB")


class Profile(JobCase):
    def assert_clean(self):
        self.assertEqual(list((self.folder / "scratch").iterdir()), [], "nothing stays behind")

    def profile(self, *arguments, expect=0):
        outcome = self.run_program("profile", *arguments)
        self.assertEqual(outcome.code, expect, str(outcome))
        self.assert_clean()
        return outcome

    def test_storage_has_the_keys_of_the_contract(self):
        document = json.loads(self.profile("scratch", *SMALL, "--only", "storage", "--json").out)
        (storage,) = document["storage"]
        self.assertEqual(storage["path"], "scratch")
        for kind in ("read", "write", "mixed"):
            self.assertGreater(storage[kind]["bw_bytes"], 0)
        for kind in ("read", "write"):
            self.assertIn("99.900000", storage[kind]["lat_ns"]["percentile"])
        self.assertLessEqual(document["written_bytes"], 64 << 20)
        self.assertGreater(document["verified_bytes"], 0)
        self.assertTrue(document["verdict"])
        if storage["fio"] is not None:
            self.assertGreater(storage["fio"]["read"]["bw_bytes"], 0)

    def test_two_paths_are_measured_together_and_alone(self):
        (self.folder / "other").mkdir()
        document = json.loads(self.profile("scratch", "other", "--quick", "--max-write", "128MiB", "--no-fio", "--only", "storage", "--json").out)
        self.assertEqual([entry["path"] for entry in document["storage"]], ["scratch, other", "scratch", "other"])

    def test_the_hardware_file_is_one_that_plan_reads(self):
        outcome = self.profile("scratch", *SMALL, "--no-fio", "-o", "hardware.json", "--html", "page.html")
        self.assertIn("hardware.json written", outcome.err)
        self.assertIn("parameters/s", outcome.out)
        planned = self.run_program("plan", "job.json", "--hardware", "hardware.json", "--json")
        self.assertEqual(planned.code, 0, str(planned))
        self.assertGreater(json.loads(planned.out)["predicted_step_seconds"], 0)
        page = (self.folder / "page.html").read_text()
        self.assertIn("<svg", page)
        self.assertNotIn("http", page)

    def test_bad_input_is_named_at_once(self):
        text = self.folder / "text.txt"
        (self.folder / "closed").mkdir(mode=0o500)
        cases = [
            (("nowhere",), 4, "nowhere does not exist"),
            ((text,), 4, "is a file"),
            (("scratch", "./scratch"), 4, "are the same folder"),
            (("/proc",), 4, "/proc"),
            (("scratch", "--max-write", "1MiB"), 2, "too little to measure with"),
            (("scratch", ".", "--max-write", "127MiB"), 2, "for each path"),
            (("scratch", "--max-write", "many"), 2, "many"),
            ((), 2, "needs a folder"),
            (("scratch", "--only", "memory"), 2, "leaves storage out"),
            (("scratch", "--only", "colective"), 2, "did you mean"),
            (("scratch", "--only", "collective"), 2, "several ranks"),
            (("scratch", "-o", "no/such/folder/file"), 2, "cannot be written"),
        ]
        if os.path.isdir("/dev/shm"):
            cases.append((("/dev/shm",), 4, "tmpfs"))
        if os.geteuid() != 0:
            cases.append((("closed",), 4, "may not make a file"))
        for arguments, code, words in cases:
            with self.subTest(arguments=arguments):
                outcome = self.profile(*arguments, expect=code)
                self.assertIn(words, outcome.err)
        outcome = self.profile("nowhere", "--json", expect=4)
        self.assertEqual(json.loads(outcome.out)["error"]["code"], "preflight")

    def test_a_signal_leaves_nothing_behind(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            process = self.start("profile", "scratch", "--max-write", "256MiB", "--only", "storage")
            # Its test file has no name: what shows that it has begun is the open descriptor.
            begun = time.monotonic() + 60
            while time.monotonic() < begun and process.poll() is None and not self.has_test_file(process.pid):
                os.sched_yield()
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -number)
            self.assert_clean()

    def has_test_file(self, pid):
        try:
            links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            return False
        return any(link.startswith(str((self.folder / "scratch").resolve())) for link in links)

    def test_tune_proposes_what_train_accepts(self):
        outcome = self.run_program("tune", "job.json", "--quick", "--max-write", "2GiB", "--json")
        self.assertEqual(outcome.code, 0, str(outcome))
        document = json.loads(outcome.out)
        chosen, present = document["candidates"][document["chosen"]], document["candidates"][0]
        self.assertLessEqual(chosen["step_seconds"], present["step_seconds"])
        self.assertEqual(document["keep_present"], document["chosen"] == 0)
        self.assertLessEqual(document["written_bytes"], 2 << 30)
        self.assert_clean()
        io = document["config"].get("headrace", {}).get("io", {})
        planned = self.run_program("plan", "job.json", *(f"headrace.io.{key}={value}" for key, value in io.items()))
        self.assertEqual(planned.code, 0, str(planned))

    def test_tune_needs_a_job_with_io(self):
        outcome = self.run_program("tune", "job.json", "zero_optimization.offload_param.device=cpu",
                                   "zero_optimization.offload_optimizer.device=cpu")
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertIn("no I/O to tune", outcome.err)


if __name__ == "__main__":
    unittest.main()
