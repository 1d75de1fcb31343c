# SPDX-License-Identifier: Apache-2.0
"""`headrace plan` with rates: predictions, pictures, other machines, other systems' rules, and bad input."""

import json
import pathlib
import time
import unittest

from harness import SMALL, JobCase

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "hardware"
RATES = {
    "cores": 2,
    "compute": [{"dtype": "bf16", "flops_per_s": 1e11}],
    "optimizer": [{"format": "split", "parameters_per_s": 1e9}],
    "gradients": {"elements_per_s": 2e9},
    "memory": {"copy_bytes_per_s": 1e10},
    "storage": [{"path": "scratch", "read": {"bw_bytes": 2e8}, "write": {"bw_bytes": 1e8}, "mixed": {"bw_bytes": 2.5e8},
                 "cpu_seconds_per_byte": 1e-10, "endurance_bytes": 1e15}],
}


class PlanTest(JobCase):
    def setUp(self):
        super().setUp()
        self.write_config(RATES, "rates.json")

    def plan(self, *arguments, expect=0):
        outcome = self.run_program("plan", *arguments)
        self.assertEqual(outcome.code, expect, str(outcome))
        return outcome

    def document(self, *arguments):
        return json.loads(self.plan(*arguments, "--json").out)

    def test_json_keeps_its_contract(self):
        plan = self.document("job.json", "--hardware", "rates.json")
        for key in ("fits", "memory", "state_bytes", "nvme_read_bytes_per_step", "nvme_write_bytes_per_step", "predicted_step_seconds",
                    "tokens_per_second", "bound", "resolved"):
            self.assertIn(key, plan)
        self.assertGreaterEqual(plan["predicted_step_seconds"], plan["bound"]["seconds"] * (1 - 1e-9))
        self.assertAlmostEqual(plan["tokens_per_second"] * plan["predicted_step_seconds"], 8 * 32, places=6)
        self.assertEqual(plan["bound"]["lane"], "disk")
        self.assertTrue(all(more["step_seconds"] > 0 for more in plan["advice"]))
        per_day = plan["nvme_write_bytes_per_step"] / plan["predicted_step_seconds"] * 86400
        self.assertAlmostEqual(plan["drive_life_days"], 1e15 / per_day, delta=plan["drive_life_days"] * 1e-9)
        asked = self.document("job.json", "memory.host=300MiB", "--hardware", "rates.json")
        self.assertEqual(asked["memory"]["host"]["budget_bytes"], 300 << 20)
        again = self.document("job.json", "--hardware", "rates.json")
        self.assertEqual(plan["predicted_step_seconds"], again["predicted_step_seconds"])

    def test_text_says_what_would_help(self):
        text = self.plan("job.json", "--hardware", "rates.json").out
        for word in ("step ", "bound ", "waiting ", "flops ", "wear ", "helps ", "disk bandwidth", "per day"):
            self.assertIn(word, text)

    def test_activations_on_nvme_move_the_bytes_that_the_plan_states(self):
        for update in ("after_backward", "in_backward", "into_forward"):
            job = ["schedule.activations=nvme", f"schedule.update={update}", "gradient_clipping=0"]
            plan = self.document("job.json", *job)
            # Outputs of the embedding and two of three blocks, and what three blocks saved: 4 micro-batches of 2 × 32 tokens, width 64.
            self.assertEqual(plan["activation_read_bytes_per_step"], plan["activation_write_bytes_per_step"])
            self.assertGreater(plan["activation_read_bytes_per_step"], 4 * 3 * 2 * 32 * 64 * 4)
            self.assertGreater(plan["memory_table"][3]["nvme_bytes"], 0)
            self.assertIn("on NVMe", plan["memory_table"][3]["note"])
            self.train(*job, "--max-steps", "3", run=update)
            for row in self.metrics(update)[1:2]:  # none before it is left over, none after it drained
                self.assertEqual(row["nvme_read_bytes"], plan["nvme_read_bytes_per_step"])
                self.assertEqual(row["nvme_write_bytes"], plan["nvme_write_bytes_per_step"])
        self.assertEqual(self.plan("job.json", "schedule.activations=nvme", "zero_optimization.offload_param.device=cpu",
                                   "zero_optimization.offload_optimizer.device=cpu", expect=3).code, 3)

    def test_pictures_are_complete_documents(self):
        self.plan("job.json", "memory.cache=false", "--hardware", "rates.json", "--trace", "trace.json", "--html", "page.html")
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
        self.assertIn("nvme_read", lanes)
        names = {event["name"].split()[0] for event in events if event["ph"] in "Xb"}
        self.assertTrue({"forward", "backward", "update", "read_state", "write_state", "commit"} <= names, names)
        page = (self.folder / "page.html").read_text()
        self.assertTrue(page.startswith("<!doctype html>") and page.rstrip().endswith("</html>"))
        self.assertIn("<svg", page)
        self.assertNotIn("http://", page.replace("http://www.w3.org/2000/svg", ""))  # nothing beside it is needed
        self.assertEqual(self.plan("job.json", "--html", "page.html", expect=2).code, 2)  # no rates: nothing to show

    def test_the_trace_of_a_run_has_the_same_form(self):
        self.train("headrace.steps=1", "memory.cache=false", "--trace", "run-trace.json")
        self.plan("job.json", "memory.cache=false", "--hardware", "run/hardware.json", "--trace", "plan-trace.json")
        both = [json.loads((self.folder / name).read_text())["traceEvents"] for name in ("run-trace.json", "plan-trace.json")]
        shapes = [{(event["ph"], event.get("cat")) for event in events} for events in both]
        self.assertEqual(*shapes)

    def test_one_trillion_parameters_on_four_machines(self):
        begun = time.monotonic()
        plan = self.document("--preset", "1t", "--hardware", EXAMPLES / "8xh100-8nvme.json", "--nodes", "4", "--ranks-per-node", "8")
        print(f"planned in {time.monotonic() - begun:.1f} s")
        self.assertTrue(plan["fits"])
        parameters = 128 * (12 * 25600**2 + 13 * 25600) + (50257 + 1024) * 25600 + 2 * 25600
        self.assertAlmostEqual(plan["state_bytes"] / (12 * parameters / 32), 1, delta=0.001)
        self.assertAlmostEqual(plan["memory"]["nvme"]["peak_bytes"] / (24 * parameters / 32), 1, delta=0.016)
        self.assertLess(plan["memory"]["device"]["peak_bytes"], 80 * 2**30)

    def test_other_rules_and_zero_stages(self):
        text = self.plan("--preset", "llama-8b", "--hardware", EXAMPLES / "8xh100-8nvme.json", "--nodes", "8", "--compare",
                         "zero-infinity,greedysnake,zero-stages", "data.sequence_length=512").out
        for word in ("zero-infinity", "greedysnake", "ZeRO stage", "per rank"):
            self.assertIn(word, text)
        wrong = self.plan("job.json", "--hardware", "rates.json", "--compare", "zero-infinty", "--html", "page.html", expect=2)
        self.assertIn("zero-infinity", wrong.err)
        self.assertFalse((self.folder / "page.html").exists())  # refused before anything is planned

    def test_bad_hardware_is_refused_with_its_key(self):
        for change, word in (({"cores": 0}, "cores"), ({"speed": 1}, "speed"), ({"version": 2}, "version"),
                             ({"compute": [{"dtype": "fp32", "flops_per_s": 1e11}]}, "bf16"), ({"gradients": {}}, "gradients.elements_per_s")):
            self.write_config({**RATES, **change}, "bad.json")
            outcome = self.plan("job.json", "--hardware", "bad.json", expect=3)
            self.assertIn(word, outcome.err)
        self.assertIn("--hardware", self.plan("job.json", "--nodes", "2", expect=2).err)
        self.train(f"headrace.hardware={EXAMPLES / 'gh200.json'}", expect=3)
        self.plan("--preset", "llama-8b", "--hardware", EXAMPLES / "workstation-4090-1nvme.json", "--ranks-per-node", "3", expect=3)

    def test_what_does_not_fit_elsewhere_names_the_smallest_budget(self):
        outcome = self.run_program("plan", "--preset", "1t", "--hardware", EXAMPLES / "workstation-4090-1nvme.json", "--json")
        self.assertEqual(outcome.code, 4, str(outcome))
        document = json.loads(outcome.out)
        self.assertFalse(document["fits"])
        self.assertGreater(document["smallest"]["device"], 24 * 2**30)

    def test_a_run_with_rates_trains_the_plan_that_was_predicted(self):
        config = json.loads(json.dumps(SMALL))
        del config["headrace"]["schedule"]
        config["headrace"]["memory"] = {"cache": False}
        config["gradient_clipping"] = 0  # a step that is clipped may be updated twice
        self.write_config(config)
        plan = self.document("job.json", "headrace.hardware=rates.json")
        self.train("headrace.hardware=rates.json")
        for row in self.metrics()[1:]:
            self.assertEqual(row["update"], plan["update"])
            for way in ("read", "write"):  # the last step's own updates are drained, where they are left to the next one
                planned = plan[f"nvme_{way}_bytes_per_step"] + (plan[f"drain_{way}_bytes"] if row["drained"] else 0)
                self.assertAlmostEqual(row[f"nvme_{way}_bytes"] / planned, 1, delta=0.01)
        self.assertFalse(self.metrics()[2]["drained"])


if __name__ == "__main__":
    unittest.main()
