# SPDX-License-Identifier: Apache-2.0
"""Conversations by published chat templates, as transformers renders and tokenizes them.

chat_oracle.py TEMPLATES OUT

For each template OUT/NAME gets tokenizer.json, tokenizer_config.json, data.jsonl, and expected.jsonl: per
conversation {"error": true}, or {"rendered", "opened", "samples": [{"ids", "learned"}]}. What is learnt
follows TRL: the ids of a completion are those behind the number of ids of its prompt, rendered with
add_generation_prompt."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

NAMES = [
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "google-gemma-2-2b-it",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "microsoft-Phi-3.5-mini-instruct",
    "ibm-granite-granite-3.3-2B-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "Bielik-11B-v3.0-Instruct",
    "LFM2-8B-A1B",
    "HuggingFaceTB-SmolLM3-3B",
]
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<|user|>",
           "<|assistant|>", "<|end|>", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"]  # fmt: skip


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def answer(text: str) -> dict:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


CONVERSATIONS = [
    [user("What is two and two?"), answer("Four.")],
    [system("You are brief."), user("Hello"), answer("Hi.")],
    [user("a"), answer("b"), user("c\nd"), answer("e  f"), user("g"), answer("\n\nh")],
    [user("  spaces  "), answer("Ünï©ødé 你好 👩‍👧"), user("{{ braces }} {% raw %}"), answer("<|im_end|> & <b>")],
    [user("Think."), answer("<think>\nIt is 1 + 1.\n</think>\n\nTwo."), user("And 3?"), answer("Three.")],
    [user("first"), user("second"), answer("roles do not alternate")],
    [user("no answer yet"), answer("yes"), user("goes on")],
]


def make_tokenizer(directory: Path, template: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = Path(__file__).read_text() * 3
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    fast = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), bos_token="<s>",
                                   eos_token="</s>")  # fmt: skip
    fast.chat_template = template
    return fast


def expected(tokenizer: PreTrainedTokenizerFast, messages: list[dict]) -> dict:
    def render(count: int, opens: bool) -> str:
        return tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=opens)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    try:
        whole = render(len(messages), False)
        spans = [(render(i, True), render(i + 1, False)) for i in answers]
    except Exception:
        return {"error": True}
    if any(not after.startswith(before) for before, after in spans):
        return {"error": True}
    samples = []
    if all(whole.startswith(after) for _, after in spans):
        learned = [0] * len(ids(whole))
        for before, after in spans:
            for i in range(len(ids(before)), len(ids(after))):
                learned[i] = 1
        samples.append({"ids": ids(whole), "learned": learned})
    else:
        for before, after in spans:
            count = len(ids(before))
            samples.append({"ids": ids(after), "learned": [0] * count + [1] * (len(ids(after)) - count)})
    return {"rendered": whole, "opened": render(len(messages), True), "samples": samples}


def main() -> None:
    templates, out = Path(sys.argv[1]), Path(sys.argv[2])
    for name in NAMES:
        directory = out / name
        directory.mkdir()
        tokenizer = make_tokenizer(directory, (templates / f"{name}.jinja").read_text())
        with (directory / "data.jsonl").open("w") as data, (directory / "expected.jsonl").open("w") as results:
            for messages in CONVERSATIONS:
                data.write(json.dumps({"messages": messages}) + "\n")
                results.write(json.dumps(expected(tokenizer, messages)) + "\n")
    (out / "names").write_text("\n".join(NAMES) + "\n")


if __name__ == "__main__":
    main()
