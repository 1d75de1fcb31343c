# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders in and out, and text from them."""

import json
import os
import pathlib
import unittest

from harness import JobCase

REFERENCE = os.path.join(os.environ["HEADRACE_REFERENCE"], "models")


class ModelFolder(JobCase):
    def job(self, folder):
        config = json.loads((self.folder / "job.json").read_text())
        del config["bf16"]
        config["headrace"]["model"] = {"path": str(folder)}
        config["headrace"]["data"]["sequence_length"] = 16
        self.write_config(config, "folder.json")

    def tensors(self, folder):
        """Names, shapes and bytes of all tensors of a folder with one file."""
        data = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        body = data[8 + length:]
        return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()}

    def test_what_goes_in_comes_out(self):
        for name in ["llama_tiny", "gpt2_tiny", "llama_tied_rope3"]:
            with self.subTest(name):
                self.job(os.path.join(REFERENCE, name))
                vocab = json.loads((pathlib.Path(REFERENCE) / name / "config.json").read_text())["vocab_size"]
                (self.folder / "text.txt").write_bytes(bytes(i % min(vocab, 256) for i in range(4000)))
                # A learning rate of zero leaves every weight as it was read.
                self.train("optimizer.params.lr=0", "--max-steps", "1", config="folder.json", run=name)
                outcome = self.run_program("checkpoint", "export", name, name + "-out")
                self.assertEqual(outcome.code, 0, str(outcome))
                self.assertEqual(self.tensors(self.folder / (name + "-out")), self.tensors(pathlib.Path(REFERENCE) / name))
                again = self.run_program("checkpoint", "export", name, name + "-out")
                self.assertNotEqual(again.code, 0, "an existing folder was written over")

    def test_text_from_a_run_and_from_its_export_is_the_same(self):
        self.train()
        self.run_program("checkpoint", "export", "run", "out")
        arguments = ["--prompt", "the river", "--tokens", "20"]
        a = self.run_program("generate", "run", *arguments)
        b = self.run_program("generate", "out", *arguments)
        self.assertEqual((a.code, b.code), (0, 0), str(a) + str(b))
        self.assertTrue(a.out.startswith("the river"))
        self.assertEqual(a.out, b.out)


if __name__ == "__main__":
    unittest.main()
