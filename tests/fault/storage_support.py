# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program on strange disks share: mounts and loop devices that go with the test."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness  # noqa: E402

IS_ROOT = os.geteuid() == 0


def command(*arguments):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True)


class StorageCase(harness.JobCase):
    def mount(self, *arguments):
        done = command("mount", *arguments)
        if done.returncode != 0:
            self.skipTest("cannot mount here: " + done.stderr)
        self.addCleanup(command, "umount", "-l", arguments[-1])

    def loop_device(self, mebibytes):
        disk = self.folder / "disk.img"
        with open(disk, "wb") as file:
            file.truncate(mebibytes << 20)
        made = command("losetup", "--find", "--show", disk)
        if made.returncode != 0:
            self.skipTest("no loop device here: " + made.stderr)
        device = made.stdout.strip()
        self.addCleanup(command, "losetup", "-d", device)
        return device

    def use_paths(self, *paths):
        config = json.loads((self.folder / "job.json").read_text())
        for part in ("offload_param", "offload_optimizer"):
            config["zero_optimization"][part]["nvme_path"] = [str(path) for path in paths]
        self.write_config(config)

    def refused(self, *words, code=4, run="run"):
        outcome = self.train(expect=code, run=run)
        for word in words:
            self.assertIn(word, outcome.err)
        return outcome
