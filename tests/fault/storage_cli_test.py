# SPDX-License-Identifier: Apache-2.0
"""The program on disks and in containers that refuse something: same bytes another way, or the right exit code and what to do."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from storage_support import IS_ROOT, StorageCase, command  # noqa: E402

LAUNCHER = str(pathlib.Path(os.environ["HEADRACE_BIN"]).parent / "tests" / "refuse_system_calls")
FUSE_SERVER = str(pathlib.Path(LAUNCHER).with_name("serve_without_direct_io"))


class Containers(StorageCase):
    def test_refused_rings_change_the_line_and_not_the_bytes(self):
        self.train("--max-steps", "3")
        wanted = self.digest()
        for name, refusals, backend in [("ring", ["io_uring_setup=1"], "libaio"), ("both", ["io_uring_setup=38", "io_setup=11"], "threads")]:
            with self.subTest(name):
                done = subprocess.run([LAUNCHER, *refusals, "--", harness.PROGRAM, "train", "job.json", "--run-dir", name, "--max-steps", "3"],
                                      cwd=self.folder, capture_output=True, text=True, timeout=harness.DEADLINE)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("io_uring is refused", done.stderr)
                self.assertIn("to fix:", done.stderr)
                self.assertIn(backend, done.stdout + done.stderr)
                self.assertEqual(self.digest(name), wanted)

    def test_doctor_names_what_is_refused_and_what_is_used(self):
        done = subprocess.run([LAUNCHER, "io_uring_setup=1", "--", harness.PROGRAM, "doctor", "job.json", "--json"], cwd=self.folder,
                              capture_output=True, text=True, timeout=harness.DEADLINE)
        findings = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
        self.assertFalse(findings["io_uring"]["ok"])
        self.assertIn("seccomp", findings["io_uring"]["text"])
        self.assertTrue(findings["storage"]["ok"])
        self.assertTrue(findings["threads"]["ok"])


class Checkpoints(StorageCase):
    def test_a_run_without_its_volume_is_not_called_resumable(self):
        self.train("--max-steps", "1")
        listed = self.run_program("checkpoint", "ls", "run")
        self.assertIn("· resumable", listed.out)
        self.volume().unlink()
        listed = self.run_program("checkpoint", "ls", "run")
        self.assertEqual(listed.code, 0, str(listed))
        self.assertIn("not resumable: its volume in", listed.out)
        shutil.rmtree(self.folder / "scratch")
        listed = self.run_program("checkpoint", "ls", "run")
        self.assertIn("not resumable", listed.out)

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_verify_and_export_read_from_a_read_only_mount(self):
        self.train("--max-steps", "1")
        wanted = self.digest()
        self.mount("--bind", self.folder, self.folder)
        if command("mount", "-o", "remount,bind,ro", self.folder).returncode != 0:
            self.skipTest("cannot remount here")
        self.assertEqual(self.digest(), wanted)
        self.assertIn("· resumable", self.run_program("checkpoint", "ls", "run").out)
        outcome = self.run_program("train", "job.json", "--run-dir", "run")
        self.assertIn(outcome.code, (4, 5), str(outcome))
        self.assertIn("Read-only file system", outcome.err)


class Paths(StorageCase):
    def serve(self, behind, mount, *when):
        """A folder through FUSE, without direct I/O."""
        server = subprocess.Popen([FUSE_SERVER, self.folder / behind, self.folder / mount, *when], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.addCleanup(server.stdout.close)
        if server.stdout.readline() != "ready\n":
            self.skipTest("this system serves nothing through FUSE")
        return server

    def test_paths_that_cannot_be_used(self):
        (self.folder / "file").write_text("")
        for path, words in [("missing", ["missing", "mkdir -p"]), ("file", ["is a file"]), ("/dev/null", ["a special file"])]:
            with self.subTest(path):
                self.use_paths(path)
                self.refused(*words)
                self.assertFalse((self.folder / "run" / "run.json").exists())
        self.use_paths("scratch", "scratch/../scratch")
        self.refused("scratch", code=3)

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_a_path_in_memory_is_taken_only_by_word(self):
        self.mount("-t", "tmpfs", "-o", "size=64m", "none", self.folder / "scratch")
        outcome = self.train("--max-steps", "1", "io.mode=direct", expect=4)
        self.assertIn("direct I/O is not possible", outcome.err)
        self.refused("scratch is on tmpfs", 'headrace.io.mode "buffered"')
        outcome = self.train("--max-steps", "1", "io.mode=buffered", run="buffered")
        self.assertIn("buffered I/O", outcome.out)

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_a_fuse_mount_that_refuses_direct_io_changes_the_line_and_not_the_bytes(self):
        self.train("--max-steps", "2")
        wanted = self.digest()
        (self.folder / "mounted").mkdir()
        self.serve("scratch", "mounted")
        self.use_paths("mounted")
        outcome = self.train("--max-steps", "1", "io.mode=direct", expect=4)
        self.assertIn("direct I/O is not possible", outcome.err)
        outcome = self.train("--max-steps", "2", run="fuse")
        self.assertIn("mounted: direct I/O is not used (direct I/O fails there: Invalid argument", outcome.err)
        self.assertIn("buffered I/O", outcome.out)
        self.assertEqual(self.digest("fuse"), wanted)
        (storage,) = json.loads(self.run_program("profile", "mounted", "--quick", "--max-write", "64MiB", "--only", "storage", "--no-fio", "--json").out)["storage"]
        self.assertEqual(storage["mode"], "buffered")

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_io_that_begins_to_fail_in_a_step_ends_the_run_with_the_first_error_and_the_run_goes_on_later(self):
        (self.folder / "mounted").mkdir()
        server = self.serve("scratch", "mounted", "later")
        self.use_paths("mounted")
        run = self.start("train", "job.json", "--run-dir", "run", "steps=100000", "io.mode=direct", "memory.cache=false")
        while "/100000" not in (line := run.stdout.readline()):
            self.assertTrue(line, "the run ended")
        server.send_signal(signal.SIGUSR1)  # from now on direct I/O is refused: many requests are in flight
        out, err = run.communicate(timeout=harness.DEADLINE)
        self.assertEqual(run.returncode, 5, out[-2000:] + err)
        for word in ("Invalid argument", "wanted ", "bytes, got ", ".volume", "headrace.io.mode"):
            self.assertIn(word, err)
        committed = self.metrics()[-1]["step"]
        self.train("--max-steps", "2", "steps=100000", "io.mode=buffered")
        self.assertEqual([row["step"] for row in self.metrics()], list(range(1, committed + 3)))

    @unittest.skipUnless(IS_ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
    def test_a_disk_that_fills_up_beside_a_run_does_not_stop_it(self):
        device = self.loop_device(24)
        command("mkfs.ext4", "-q", "-m", "0", device)
        self.mount(device, self.folder / "scratch")
        self.train("--max-steps", "2")
        with open(self.folder / "scratch" / "filler", "wb") as filler:
            try:
                while True:
                    filler.write(b"x" * 65536)
                    filler.flush()
            except OSError:
                pass
        self.train()
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2, 3, 4, 5, 6])

    @unittest.skipUnless(IS_ROOT, "loop devices need root")
    def test_a_block_device_holds_a_run(self):
        self.train()
        wanted = self.digest()
        device = self.loop_device(64)
        self.use_paths(device)
        self.train("--max-steps", "3", run="device")
        self.refused("holds a committed step", run="second")
        self.train(run="device")
        self.assertEqual(self.digest("device"), wanted)
        self.assertIn(device, self.run_program("checkpoint", "ls", "device").out)
        self.assertEqual(self.run_program("checkpoint", "prune", "device", "--yes").code, 0)
        self.assertIn("no volume", self.run_program("checkpoint", "ls", device).out)

    @unittest.skipUnless(IS_ROOT, "loop devices need root")
    def test_gradients_that_are_spilled_need_a_folder(self):
        config = json.loads((self.folder / "job.json").read_text())
        config["headrace"]["model"].update(layers=16, embed=256, inner=1024)
        config["headrace"]["memory"] = {"host": "80MiB"}
        config["train_batch_size"] = 4
        self.write_config(config)
        device = self.loop_device(512)
        self.use_paths(device)
        self.refused("are spilled", "add a folder to nvme_path")
        self.assertIn("no volume", self.run_program("checkpoint", "ls", device).out, "nothing was written to it")
        self.use_paths(device, self.folder / "scratch")
        self.train("--max-steps", "1", run="both")

    @unittest.skipUnless(IS_ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
    def test_a_block_device_that_is_used_is_refused(self):
        device = self.loop_device(64)
        command("mkfs.ext4", "-q", device)
        self.use_paths(device)
        self.refused("ext4 file system", "overwrite_devices")
        (self.folder / "mounted").mkdir()
        self.mount(device, self.folder / "mounted")
        outcome = self.train("io.overwrite_devices=true", expect=4, run="other")
        self.assertIn("it is mounted", outcome.err)


@unittest.skipUnless(IS_ROOT, "mounting needs root")
class Profile(StorageCase):
    def profile(self, *arguments, expect=0):
        outcome = self.run_program("profile", *arguments, "--quick", "--max-write", "64MiB", "--only", "storage")
        self.assertEqual(outcome.code, expect, str(outcome))
        return outcome

    def test_a_read_only_path(self):
        self.mount("--bind", self.folder / "scratch", self.folder / "scratch")
        if command("mount", "-o", "remount,bind,ro", self.folder / "scratch").returncode != 0:
            self.skipTest("cannot remount here")
        self.assertIn("mounted read-only", self.profile("scratch", expect=4).err)

    @unittest.skipUnless(shutil.which("mkfs.ext4"), "needs mkfs.ext4")
    def test_through_the_page_cache_and_on_a_full_disk(self):
        device = self.loop_device(1024)
        command("mkfs.ext4", "-q", "-m", "0", device)
        self.mount("-o", "data=journal", device, self.folder / "scratch")  # has no direct I/O
        outcome = self.profile("scratch", "--json", "-o", "hardware.json")
        (storage,) = json.loads(outcome.out)["storage"]
        self.assertEqual(storage["mode"], "buffered")
        self.assertIn("direct I/O", storage["why_buffered"])
        hardware = json.loads((self.folder / "hardware.json").read_text())
        self.assertEqual(hardware["storage"][0]["mode"], "buffered")
        free = os.statvfs(self.folder / "scratch")
        with open(self.folder / "scratch" / "filler", "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - (200 << 20))
        self.assertIn("too little space", self.profile("scratch", expect=4).err)


if __name__ == "__main__":
    unittest.main()
