# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M here against transformers: the loss on the first 1,024 tokens of the default text, and
greedy text. Run it with a Python that has torch, transformers and numpy.

    smollm2.py FSDP MODEL
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 1024
TOLERANCE = 1e-4


def run(*arguments):
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def first_tokens(fsdp, model, folder):
    """The default text as fsdp tokenizes it; where the tokens begin is said by the file's length."""
    text = Path(folder) / "begin.txt"
    text.write_text((ROOT / "data/kjv.txt").read_text()[:8000])
    run(fsdp, "tokenize", "--tokenizer", model, "--out", f"{folder}/begin.bin", str(text))
    return np.frombuffer(Path(f"{folder}/begin.bin").read_bytes()[1024:], dtype=np.uint16)[:TOKENS]


def our_loss(fsdp, model, tokens, folder):
    """A corpus whose kept-aside twentieth is exactly the tokens: the loss before the first step."""
    data = np.concatenate([np.resize(tokens, 19 * TOKENS), tokens])
    data.astype(np.uint16).tofile(f"{folder}/data.bin")
    output = run(fsdp, "train", "--init", model, "--data", f"{folder}/data.bin", "--seq", str(TOKENS - 1),
                 "--global-batch", "2", "--batch", "1", "--steps", "1", "--lr", "1e-12", "--eval-batches", "1",
                 "--sample", "0", "--out", "", "--ranks", "2")
    return float(re.search(r"^before +validation loss ([0-9.]+)", output, re.MULTILINE).group(1))


def main():
    fsdp, model = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    with tempfile.TemporaryDirectory() as folder:
        tokens = first_tokens(fsdp, model, folder)
        expected_tokens = tokenizer((ROOT / "data/kjv.txt").read_text()[:8000]).input_ids[:TOKENS]
        assert tokens.tolist() == expected_tokens, "the tokens differ"
        batch = torch.tensor([expected_tokens])
        with torch.no_grad():
            expected = theirs(batch, labels=batch).loss.item()
        loss = our_loss(fsdp, model, tokens, folder)
    print(f"loss on {TOKENS} tokens: {loss} here, {expected} in transformers")
    assert abs(loss - expected) < TOLERANCE, "the losses differ"
    prompt = "The capital of France is"
    ids = tokenizer(prompt, return_tensors="pt")
    text = theirs.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids.input_ids.shape[1]:].tolist()
    ours = run(fsdp, "generate", model, "--prompt-tokens", ",".join(map(str, ids.input_ids[0].tolist())),
               "--tokens", "24", "--temperature", "0", "--ranks", "2")
    assert [int(word) for word in ours.split()] == text, (ours, text)
    print(run(fsdp, "generate", model, "--prompt", prompt, "--tokens", "24", "--temperature", "0"))


if __name__ == "__main__":
    main()
