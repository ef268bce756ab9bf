# SPDX-License-Identifier: Apache-2.0
"""Trains small tokenizers of every kind that is read here, with Hugging Face's tokenizers.

trained_tokenizers.py OUT TEXT...

OUT/KIND/tokenizer.json, and for text number I OUT/KIND/I.plain and I.special: its ids as little-endian
int32, without and with special tokens read in the text."""

import array
import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")  # fmt: skip


def of_characters(normalizer, pre_tokenizer, prefix: bool, corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    # Trained on words, or merges would cross them all; used as the file says.
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + BYTES, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    fields = json.loads(tokenizer.to_str())
    # Bytes are no special tokens in published files.
    fields["added_tokens"] = [token for token in fields["added_tokens"] if token["content"] in SPECIAL]
    fields["normalizer"] = fields["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tokenizer


def of_bytes(corpus: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken("café", normalized=True), AddedToken("e\u0301e\u0301", normalized=False)])
    return tokenizer


def main() -> None:
    out = Path(sys.argv[1])
    texts = [Path(path).read_bytes().decode() for path in sys.argv[2:]]
    corpus = [text[:100_000] for text in texts]
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces = normalizers.Replace(" ", "▁")
    kinds = {
        "llama2": of_characters(legacy, None, True, corpus),
        "gemma": of_characters(spaces, None, False, corpus),
        "nfc": of_characters(normalizers.Sequence([normalizers.NFC(), spaces]), None, False, corpus),
        "qwen": of_bytes(corpus),
    }
    for scheme in ("always", "first", "never"):
        for split in (False, True):
            metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
            name = f"{scheme}-{'split' if split else 'whole'}"
            kinds[name] = of_characters(None, metaspace, scheme != "never", corpus)
    for name, tokenizer in kinds.items():
        directory = out / name
        directory.mkdir()
        tokenizer.save(str(directory / "tokenizer.json"))
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        for number, text in enumerate(texts):
            for kind in ("plain", "special"):
                tokenizer.encode_special_tokens = kind == "plain"
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                (directory / f"{number}.{kind}").write_bytes(array.array("i", ids).tobytes())
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            (directory / f"{number}.text").write_bytes(decoded.encode())


if __name__ == "__main__":
    main()
