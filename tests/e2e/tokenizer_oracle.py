# SPDX-License-Identifier: Apache-2.0
"""Ids of a text by the reference implementation, as little-endian int32, or the CPU seconds it takes. Into
OUT.text goes what they mean: the text, except where the tokenizer normalizes it.

tokenizer_oracle.py TOKENIZER TEXT OUT [special]
tokenizer_oracle.py TOKENIZER TEXT time

TOKENIZER is a tokenizer.json or a directory with encoder.json and vocab.bpe (Hugging Face's
tokenizers), or one of tiktoken's rank files. "special" reads special tokens in the text."""

import array
import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

Encode = Callable[[str], list[int]]
Decode = Callable[[list[int]], str]


def hugging_face(path: Path, special: bool) -> tuple[Encode, Decode]:
    import tokenizers

    if path.is_dir():
        model = tokenizers.models.BPE.from_file(str(path / "encoder.json"), str(path / "vocab.bpe"))
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens(["<|endoftext|>"])
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
    else:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = not special
    return (
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )


def by_tiktoken(path: Path, special: bool) -> tuple[Encode, Decode]:
    import tiktoken
    import tiktoken_ext.openai_public as public

    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    # Their functions know pattern and special tokens, and would download the ranks.
    public.load_tiktoken_bpe = public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: ranks
    encoding = tiktoken.Encoding(**getattr(public, path.stem)())
    if special:
        return lambda text: encoding.encode(text, allowed_special="all"), encoding.decode
    return encoding.encode_ordinary, encoding.decode


def seconds_of(action: Callable[[], object]) -> tuple[float, object]:
    begin = time.process_time()
    result = action()
    return time.process_time() - begin, result


def main() -> None:
    path, data, out = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), sys.argv[3]
    load = by_tiktoken if path.suffix == ".tiktoken" else hugging_face
    load_s, (encode, decode) = seconds_of(lambda: load(path, "special" in sys.argv[4:]))
    text = data.decode()
    if out == "time":
        passes = [seconds_of(lambda: len(encode(text))) for _ in range(2)]
        line = {"load_s": load_s, "bytes": len(data), "tokens": passes[0][1]}
        print(json.dumps({**line, "encode_s": [seconds for seconds, _ in passes]}))
        return
    ids = encode(text)
    Path(out).write_bytes(array.array("i", ids).tobytes())
    Path(out + ".text").write_bytes(decode(ids).encode())


if __name__ == "__main__":
    main()
