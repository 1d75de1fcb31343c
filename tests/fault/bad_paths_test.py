# SPDX-License-Identifier: Apache-2.0
"""Paths on which no volume can live, each through every command that would use it: its own message with what to do, at once,
before data is read or anything is measured. The time that each took is printed and not judged."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402
from storage_support import IS_ROOT, StorageCase, command  # noqa: E402

MOST_WRITTEN = 1 << 20  # bytes: a probe of a path, and far less than measuring or making a volume writes
NOBODY = 65534


class BadPaths(StorageCase):
    def timed(self, *arguments, user=None):
        """Outcome, seconds and bytes written of a command that refuses."""
        begun = time.monotonic()
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            process = subprocess.Popen([harness.PROGRAM, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=err, user=user)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        texts = [(self.folder / name).read_text() for name in ("out", "err")]
        return harness.Outcome(process.returncode, *texts), seconds, used.ru_oublock * 512

    def refused_everywhere(self, case, paths, user=None, **words):
        """`words` by command. The job's text is not there: who complains about it first has looked at it too soon."""
        self.use_paths(*paths)
        commands = {
            "train": ("train", "job.json", "--run-dir", "run", "data.train=no-such-text"),
            "tune": ("tune", "job.json", "--quick"),
            "profile": ("profile", *paths, "--quick", "--only", "storage"),
            "doctor": ("doctor", "job.json", "--json"),
        }
        for name, wanted in words.items():
            with self.subTest(case, command=name):
                outcome, seconds, written = self.timed(*commands[name], user=user)
                print(f"{case:<28} {name:<8} exit {outcome.code}  {seconds:5.2f} s  {written:>7} bytes written", file=sys.stderr)
                if name == "doctor":  # it lists, and each finding stands by itself
                    (storage, *_) = [finding for finding in json.loads(outcome.out)["findings"] if finding["what"] == "storage" and not finding["ok"]]
                    outcome.err = storage["text"]
                else:
                    self.assertEqual(outcome.code, 4, str(outcome))
                for word in wanted:
                    self.assertIn(word, outcome.err)
                self.assertLess(written, MOST_WRITTEN)
                self.assertFalse((self.folder / "run").exists(), "a job that cannot start leaves no folder")

    def test_a_path_that_is_no_folder(self):
        (self.folder / "file").write_text("")
        for case, path, words, profile in [
            ("missing", "missing", ["missing", "mkdir -p missing"], ["missing does not exist", "mkdir -p missing"]),
            ("a file", "file", ["file is a file", "name a folder"], ["file is a file", "name its folder"]),
            ("a special file", "/dev/null", ["a special file", "name a folder"], ["/dev/null", "name a folder"]),
        ]:
            self.refused_everywhere(case, [path], train=words, tune=profile, profile=profile, doctor=words)

    def test_one_folder_under_two_names(self):
        (self.folder / "link").symlink_to("scratch")
        words = ["scratch and link are the same folder", "name each folder once"]
        self.refused_everywhere("one folder, a symbolic link", ["scratch", "link"], train=words, tune=words, profile=words)
        if IS_ROOT:
            (self.folder / "bound").mkdir()
            self.mount("--bind", self.folder / "scratch", self.folder / "bound")
            words[0] = "scratch and bound are the same folder"
            self.refused_everywhere("one folder, mounted twice", ["scratch", "bound"], train=words, tune=words, profile=words)

    def test_one_name_given_twice_is_a_fault_of_the_config(self):
        self.use_paths("scratch", "./scratch/")
        outcome, seconds, _ = self.timed("train", "job.json", "--run-dir", "run", "data.train=no-such-text")
        print(f"{'one name twice':<28} train    exit {outcome.code}  {seconds:5.2f} s", file=sys.stderr)
        self.assertEqual(outcome.code, 3, str(outcome))
        self.assertIn("twice", outcome.err)
        self.assertIn("name each drive once", outcome.err)

    @unittest.skipUnless(IS_ROOT, "another user is needed")
    def test_a_folder_of_somebody_else(self):
        if self.folder.resolve().is_relative_to("/root"):
            self.skipTest("another user cannot come here")
        os.chmod(self.folder, 0o777)
        for file in self.folder.iterdir():
            os.chmod(file, 0o755)
        words = ["Permission denied", f"chown {NOBODY} scratch"]
        outcome, _, _ = self.timed("--version", user=NOBODY)
        if outcome.code != 0:
            self.skipTest("another user cannot run the program here")
        self.refused_everywhere("not writable", ["scratch"], user=NOBODY, train=words, tune=words, profile=words)

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_tmpfs(self):
        self.mount("-t", "tmpfs", "-o", "size=64m", "none", self.folder / "scratch")
        words = ["scratch is on tmpfs", "name a folder on a disk"]
        self.refused_everywhere("tmpfs", ["scratch"], train=[*words, "headrace.io.mode"], tune=words, profile=words, doctor=words)
        self.assertIn("buffered I/O", self.train("--max-steps", "1", "io.mode=buffered").out)

    @unittest.skipUnless(IS_ROOT, "mounting needs root")
    def test_a_read_only_mount(self):
        self.mount("--bind", self.folder / "scratch", self.folder / "scratch")
        if command("mount", "-o", "remount,bind,ro", self.folder / "scratch").returncode != 0:
            self.skipTest("cannot remount here")
        words = ["mounted read-only", "on another disk"]
        profile = ["mounted read-only", "on a disk that may be written"]
        self.refused_everywhere("read-only", ["scratch"], train=words, tune=profile, profile=profile, doctor=words)

    @unittest.skipUnless(IS_ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
    def test_a_full_disk(self):
        device = self.loop_device(64)
        command("mkfs.ext4", "-q", "-m", "0", device)
        self.mount(device, self.folder / "scratch")
        with open(self.folder / "scratch" / "filler", "wb", buffering=0) as filler:
            for size in (65536, 1024):
                try:
                    while True:
                        filler.write(bytes(size))
                except OSError:
                    os.fsync(filler.fileno())
        words = ["No space left on device", "free space there"]
        profile = ["scratch", "free space there"]
        self.refused_everywhere("no block is free", ["scratch"], train=words, tune=profile, profile=profile, doctor=words)

    @unittest.skipUnless(IS_ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
    def test_too_little_space_names_wanted_and_free(self):
        device = self.loop_device(8)
        command("mkfs.ext4", "-q", "-m", "0", device)
        self.mount(device, self.folder / "scratch")
        config = json.loads((self.folder / "job.json").read_text())
        config["headrace"]["model"].update(layers=8, embed=256, inner=1024)
        self.write_config(config)
        outcome, seconds, written = self.timed("train", "job.json", "--run-dir", "run")
        print(f"{'too little space':<28} train    exit {outcome.code}  {seconds:5.2f} s", file=sys.stderr)
        self.assertEqual(outcome.code, 4, str(outcome))
        self.assertRegex(outcome.err, r"scratch has too little space: the volumes there need [0-9.]+ MiB \([0-9]+ bytes\), [0-9.]+ MiB")
        self.assertIn("add a path on another disk", outcome.err)
        self.assertLess(written, MOST_WRITTEN)
        self.assertFalse((self.folder / "run" / "run.json").exists())

    @unittest.skipUnless(IS_ROOT and shutil.which("mkfs.ext4"), "needs root and mkfs.ext4")
    def test_a_mounted_device(self):
        device = self.loop_device(64)
        command("mkfs.ext4", "-q", device)
        (self.folder / "mounted").mkdir()
        self.mount(device, self.folder / "mounted")
        words = [f"{device} is in use: it is mounted", "name a folder on it instead"]
        profile = [f"{device} is a disk with a file system, mounted at", "headrace profile"]
        self.refused_everywhere("a mounted device", [device], train=words, tune=profile, profile=profile, doctor=words)

    def test_a_run_that_is_running(self):
        first = self.start("train", "job.json", "--run-dir", "run", "steps=1000000")
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        while "/1000000" not in (line := first.stdout.readline()):
            self.assertTrue(line, "the first run ended")
        # The line comes at once; then the end of the other is waited for, so that a killed one does not stop its successor.
        begun = time.monotonic()
        second = self.start("train", "job.json", "--run-dir", "run", "data.train=no-such-text")
        said = second.stderr.readline()
        print(f"{'a run that is running':<28} train    said so after {time.monotonic() - begun:5.2f} s", file=sys.stderr)
        second.kill()
        second.communicate()
        for word in ("in use by process", str(first.pid), "waiting for it", "--run-dir with another folder"):
            self.assertIn(word, said)
        outcome = self.run_program("checkpoint", "prune", "run", "--yes")
        self.assertEqual(outcome.code, 4, str(outcome))
        self.assertIn(f"in use by process {first.pid}", outcome.err)
        self.assertIsNone(first.poll())


if __name__ == "__main__":
    unittest.main()
