# SPDX-License-Identifier: Apache-2.0
"""What the package promises as a package: which torch it is for, its types, its command, and the code of its pages."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import fsdp
import pytest
from fsdp import _C, _load
from test_parity import make

ROOT = Path(__file__).resolve().parents[2]


def test_another_minor_version_of_torch_is_refused_with_the_way_on():
    _load.check_torch(_C.torch_version + "+cu130")
    with pytest.raises(ImportError, match=r"fsdp was built for torch 2\.13 .* this is torch 2\.99\.1"):
        _load.check_torch("2.99.1+cpu")


def test_the_stub_names_what_the_extension_has():
    stub = ast.parse((Path(_load.__file__).parent / "_C.pyi").read_text())
    named = {node.name for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    named |= {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    there = {name for name in dir(_C) if not name.startswith("__")} | {"__version__"}
    assert named == there
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = {
                item.name if isinstance(item, ast.FunctionDef) else item.target.id
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AnnAssign)
            }
            missing = {name for name in members if not hasattr(getattr(_C, node.name), name)}
            assert not missing, node.name
    assert (Path(_load.__file__).parent / "py.typed").exists()


def test_all_that_is_exported_is_there_and_has_a_docstring():
    for name in fsdp.__all__:
        assert hasattr(fsdp, name)
    for name in ("fully_shard", "init", "Sharded", "Saver", "load", "save", "AdamW", "DeviceMesh", "UnitRule"):
        assert getattr(fsdp, name).__doc__
    for name, member in vars(fsdp.Sharded).items():
        assert name.startswith("_") or callable(member) and member.__doc__, name


def test_the_program_is_inside():
    shown = subprocess.run([sys.executable, "-m", "fsdp", "--version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith(f"fsdp {fsdp.__version__}")
    wrong = subprocess.run([sys.executable, "-m", "fsdp", "run", "-n", "0", "x"], capture_output=True, timeout=60)
    assert wrong.returncode == 2
    without = subprocess.run([sys.executable, "-m", "fsdp", "train"], capture_output=True, text=True, timeout=60)
    assert without.returncode == 2
    assert "without language models" in without.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/transformers-model.md"])
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    code = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))
    small = make("llama", torch.float32)[0]
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name: small)
    monkeypatch.chdir(tmp_path)
    tokens = torch.randint(90, (2, 8))
    given = {"torch": torch, "fsdp": fsdp, "AutoModelForCausalLM": AutoModelForCausalLM, "x": tokens}
    given["batches"] = lambda rank, size: [tokens, tokens]
    exec(compile(code, page, "exec"), given)
    assert given["sharded"].report().counters.gathers > 0
