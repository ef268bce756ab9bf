# SPDX-License-Identifier: Apache-2.0
"""Ids of a text by the reference implementation, as little-endian int32.

tokenizer_oracle.py TOKENIZER TEXT OUT [special]

TOKENIZER is a tokenizer.json or a directory with encoder.json and vocab.bpe (Hugging Face's
tokenizers), or one of tiktoken's rank files. "special" reads special tokens in the text."""

import array
import base64
import sys
from pathlib import Path


def hugging_face(path: Path, text: str, special: bool) -> list[int]:
    import tokenizers

    if path.is_dir():
        model = tokenizers.models.BPE.from_file(str(path / "encoder.json"), str(path / "vocab.bpe"))
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<|endoftext|>"])
    else:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = not special
    return tokenizer.encode(text, add_special_tokens=False).ids


def by_tiktoken(path: Path, text: str, special: bool) -> list[int]:
    import tiktoken
    import tiktoken_ext.openai_public as public

    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    # Their functions know pattern and special tokens, and would download the ranks.
    public.load_tiktoken_bpe = public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: ranks
    encoding = tiktoken.Encoding(**getattr(public, path.stem)())
    if special:
        return encoding.encode(text, allowed_special="all")
    return encoding.encode_ordinary(text)


path = Path(sys.argv[1])
text = Path(sys.argv[2]).read_bytes().decode()
encode = by_tiktoken if path.suffix == ".tiktoken" else hugging_face
ids = array.array("i", encode(path, text, "special" in sys.argv[4:]))
Path(sys.argv[3]).write_bytes(ids.tobytes())
