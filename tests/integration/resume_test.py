# SPDX-License-Identifier: Apache-2.0
"""Stops, kills and restarts: always the last committed step, always the weights of an undisturbed run."""

import json
import os
import random
import signal
import time
import unittest

from harness import JobCase

KILLS = int(os.environ.get("HEADRACE_KILLS", "3"))


class Resume(JobCase):
    def test_a_stopped_run_goes_on_where_it_stood(self):
        self.train(run="whole")
        self.train("--max-steps", "2")
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2])
        self.train()
        self.assertEqual(self.digest(), self.digest("whole"))
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2, 3, 4, 5, 6])
        self.assertEqual([row["loss"] for row in self.metrics()], [row["loss"] for row in self.metrics("whole")])

    def test_the_learning_rate_follows_the_schedule_over_a_restart_and_a_skip(self):
        config = json.loads((self.folder / "job.json").read_text())
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 4, "warmup_max_lr": 1e-3}}
        self.write_config(config)
        self.train("--max-steps", "3", "debug.inject=\"nan:2\"")
        self.train()
        # The skipped second step is no update: the third one has its rate.
        for row, updates in zip(self.metrics(), [0, 1, 1, 2, 3, 4]):
            self.assertAlmostEqual(row["lr"], 1e-3 * updates / 4, delta=1e-12)

    def test_a_finished_run_says_so(self):
        self.train()
        before = self.digest()
        again = self.train()
        self.assertIn("has done its 6 steps", again.out)
        self.assertEqual(self.digest(), before)

    def test_an_interrupt_finishes_the_step_and_exits_75(self):
        process = self.start("train", "job.json", "--run-dir", "run", "headrace.steps=100000")
        while b"step" not in (line := process.stdout.readline().encode()) or b"/100000" not in line:
            self.assertTrue(line, "the run ended before its first step")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, out + err)
        self.assertIn("Continue with", out)
        steps = [row["step"] for row in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        verified = self.run_program("checkpoint", "verify", "run")
        self.assertIn(f"at step {len(steps)} ", verified.out)

    def test_an_interrupt_commits_what_is_left_to_the_next_step(self):
        process = self.start("train", "job.json", "--run-dir", "run", "headrace.steps=100000", "schedule.update=into_forward")
        while b"step" not in (line := process.stdout.readline().encode()) or b"/100000" not in line:
            self.assertTrue(line, "the run ended before its first step")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 75, out + err)
        steps = [row["step"] for row in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertTrue(self.metrics()[-1]["drained"])
        self.assertIn(f"stopped after step {len(steps)}.", out)
        self.assertIn(f"at step {len(steps)} ", self.run_program("checkpoint", "verify", "run").out)
        self.train("schedule.update=after_backward", "--max-steps", "1", "headrace.steps=100000")
        self.train("schedule.update=after_backward", "--max-steps", str(len(steps) + 1), "headrace.steps=100000", run="late")
        self.assertEqual(self.digest(), self.digest("late"))

    def test_a_run_changes_its_update_policy_between_starts(self):
        self.train(run="whole")
        half = "into_forward schedule.delayed_fraction=0.5"
        for update in ("into_forward", "in_backward", half, "after_backward", "into_forward", half):
            self.train(*f"schedule.update={update}".split(), "--max-steps", "1")
        self.assertEqual([row["step"] for row in self.metrics()], [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.digest(), self.digest("whole"))

    def kill_campaign(self, *overrides, undisturbed=()):
        config = ["headrace.steps=24", *overrides]
        self.train(*config, *undisturbed, run="whole")
        want, rows = self.digest("whole"), self.metrics("whole")
        chosen = random.Random(2026)
        started = time.monotonic()
        self.train(*config, run="timing")
        seconds = time.monotonic() - started
        kills = 0
        for attempt in range(KILLS * 4):
            process = self.start("train", "job.json", "--run-dir", "run", *config)
            try:
                process.wait(timeout=chosen.uniform(0.0, seconds))
            except Exception:
                process.kill()
                kills += 1
            out, err = process.communicate()
            if process.returncode == 0:
                self.assertEqual(self.digest(), want, f"attempt {attempt}")
                self.assertEqual([row["step"] for row in self.metrics()], list(range(1, 25)))
                self.assertEqual([row["loss"] for row in self.metrics()], [row["loss"] for row in rows])
                for file in (self.folder / "scratch").iterdir():
                    if file == self.volume():
                        file.unlink()
                for file in (self.folder / "run").iterdir():
                    file.unlink()
                if kills >= KILLS:
                    return
            else:
                self.assertEqual(process.returncode, -signal.SIGKILL, out + err)
        self.train(*config)
        self.assertEqual(self.digest(), want)

    def test_kills_at_random_instants(self):
        self.kill_campaign("memory.cache=false")

    def test_kills_within_early_updates_that_are_clipped_and_dropped(self):
        # The undisturbed run updates late; the killed ones update early, and do a third of it again.
        limit = self.limit_that_clips_a_third("headrace.steps=24")
        plan = json.loads(self.run_program("plan", "job.json", "--json", "schedule.update=in_backward").out)
        budget = plan["memory"]["host"]["peak_bytes"] - plan["state_bytes"] // 2
        self.kill_campaign("schedule.update=in_backward", f"gradient_clipping={limit}", "debug.inject=\"nan:6,13\"",
                           f"memory.host={budget}", "debug.lane_delay_us=300", undisturbed=["schedule.update=after_backward"])
        self.assertTrue(any(row["redone"] for row in self.metrics("timing")))

    def test_kills_within_delayed_updates(self):
        # A third of the steps clips, some are dropped, evaluations drain; memory for half of the state, or the least.
        limit = self.limit_that_clips_a_third("headrace.steps=24")
        job = [f"gradient_clipping={limit}", "debug.inject=\"nan:6,13\"", "schedule.update=into_forward"]
        refused = self.train(*job, "memory.host=1MiB", run="tiny", expect=4)
        smallest = refused.err.split("memory.host=")[1].split()[0]
        self.kill_campaign(*job, f"memory.host={smallest}", "debug.lane_delay_us=300", undisturbed=["schedule.update=after_backward"])

    def test_kills_while_activations_are_on_nvme(self):
        # What was spilled by a killed step is lost and of no use; its volume is found and removed by the next start.
        for update in ("in_backward", "into_forward"):
            self.kill_campaign("schedule.activations=nvme", f"schedule.update={update}", "memory.cache=false", "debug.lane_delay_us=300",
                               undisturbed=["schedule.activations=keep", "schedule.update=after_backward"])

    def test_kills_while_a_part_of_the_updates_is_delayed(self):
        # The other part is on disk, unnamed by any record, while the next step reads it.
        limit = self.limit_that_clips_a_third("headrace.steps=24")
        self.kill_campaign(f"gradient_clipping={limit}", "debug.inject=\"nan:6,13\"", "schedule.update=into_forward",
                           "schedule.delayed_fraction=0.4", "memory.cache=false", "debug.lane_delay_us=300",
                           undisturbed=["schedule.update=after_backward", "schedule.delayed_fraction=auto"])

    def test_kills_while_auto_changes_the_policy(self):
        # Every step is clipped: a start that lives long enough leaves early updates for delayed ones.
        self.kill_campaign("schedule.update=auto", "gradient_clipping=1e-6", "memory.cache=false", undisturbed=["schedule.update=after_backward"])

    def test_kills_with_half_of_the_state_resident_and_slow_lanes(self):
        # A budget between the smallest and plenty keeps some tiles in memory; delays keep writes in flight at the kill.
        plan = json.loads(self.run_program("plan", "job.json", "--json").out)
        budget = plan["memory"]["host"]["peak_bytes"] - plan["state_bytes"] // 2
        self.kill_campaign(f"memory.host={budget}", "debug.lane_delay_us=400")

    def test_results_cannot_change_silently_on_resume(self):
        self.train("--max-steps", "2")
        changed = self.train("optimizer.params.lr=0.5", expect=3)
        self.assertIn("lr", changed.err)
        self.assertIn("0.5", changed.err)
        wider = self.train("bf16.enabled=false", expect=3)  # the stored bytes would be read as another type
        self.assertIn('"bf16.enabled" is false', wider.err)
        self.assertIn("trained with true", wider.err)
        self.train("headrace.steps=8", "memory.cache=false", "durability=power")
        self.assertEqual([row["step"] for row in self.metrics()], list(range(1, 9)))

    def test_changed_data_is_noticed(self):
        self.train("--max-steps", "2")
        text = self.folder / "text.txt"
        text.write_text(text.read_text().replace("e", "a"))
        self.assertIn("text.txt has changed", self.train(expect=3).err)

    def test_a_moved_path_is_found_where_the_config_says(self):
        self.train(run="whole")
        self.train("--max-steps", "2")
        (self.folder / "scratch").rename(self.folder / "moved")
        where = ["zero_optimization.offload_param.nvme_path=moved", "zero_optimization.offload_optimizer.nvme_path=moved"]
        self.train(*where)
        verified = self.run_program("checkpoint", "verify", "run")
        self.assertEqual(verified.code, 0, str(verified))
        (self.folder / "moved").rename(self.folder / "scratch")
        self.assertEqual(self.digest_in(verified.out), self.digest("whole"))

    def test_resume_must_needs_a_run(self):
        self.assertIn("no run", self.train("--resume", "must", expect=4).err)

    def test_state_in_host_memory_cannot_be_resumed_and_says_so(self):
        first = self.train("zero_optimization.offload_param.device=cpu", "--max-steps", "2")
        self.assertIn("cannot be resumed", first.out)
        again = self.train("zero_optimization.offload_param.device=cpu", expect=4)
        self.assertIn("host memory", again.err)

    def test_two_runs_share_a_path_without_disturbing_each_other(self):
        self.train(run="alone")
        a = self.start("train", "job.json", "--run-dir", "a", "debug.lane_delay_us=1000")
        b = self.start("train", "job.json", "--run-dir", "b", "debug.lane_delay_us=1000")
        for process in (a, b):
            out, err = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(self.digest("a"), self.digest("alone"))
        self.assertEqual(self.digest("b"), self.digest("alone"))

    def test_what_a_start_left_behind_is_removed_and_what_a_run_committed_is_kept(self):
        for run in ("dead", "young", "kept"):
            self.train("--max-steps", "1", run=run)
        for run in ("dead", "young"):  # as if they had died before their first record
            with open(self.volume(run), "r+b") as file:
                file.seek(1 << 20)
                file.write(bytes(min(1 << 20, self.volume(run).stat().st_size - (1 << 20))))
        an_hour_ago = time.time() - 3600
        for run in ("dead", "kept"):
            os.utime(self.volume(run), (an_hour_ago, an_hour_ago))
        outcome = self.train("--max-steps", "1", run="next")
        self.assertRegex(outcome.out, r"removed .* in .*scratch that a start left behind which never committed a step")
        self.assertRegex(outcome.out, r"other runs hold .* in 2 files")
        self.assertFalse(self.volume("dead").exists())
        self.assertTrue(self.volume("young").exists(), "it may be starting at this moment")
        self.digest("kept")

    def test_one_run_opened_twice_is_refused(self):
        first = self.start("train", "job.json", "--run-dir", "run", "headrace.steps=100000")
        while "step" not in (line := first.stdout.readline()) or "/100000" not in line:
            self.assertTrue(line)
        verify = self.start("checkpoint", "verify", "run")
        time.sleep(1)
        first.kill()
        first.communicate()
        out, err = verify.communicate(timeout=120)
        # It waited for the lock with a line of text, and got it when the holder died.
        self.assertEqual(verify.returncode, 0, out + err)


if __name__ == "__main__":
    unittest.main()
