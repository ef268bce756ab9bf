# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer and accelerate over sharded models: the same losses as in one process."""

import json

import pytest
from gang import run_processes


def losses_of(ends):
    for code, said in ends:
        assert code == 0, said
    return json.loads(ends[0][1].split("LOSSES ")[1].splitlines()[0])


def test_trainer_on_two_ranks_has_the_losses_of_one_process(tmp_path):
    alone = losses_of(run_processes("sft.py", ranks=1, arguments=["plain", str(tmp_path / "a")], timeout=120))
    sharded = losses_of(run_processes("sft.py", ranks=2, arguments=["sharded", str(tmp_path / "b")], timeout=120))
    assert sharded == pytest.approx(alone, rel=1e-4)
    assert len(alone) == 6
    again = losses_of(run_processes("sft.py", ranks=2, arguments=["resume", str(tmp_path / "b")], timeout=120))
    assert again == pytest.approx(sharded[3:], rel=1e-4)


def test_accelerate_accumulates_clips_and_steps(tmp_path):
    alone = losses_of(run_processes("with_accelerate.py", ranks=1, arguments=["plain"]))
    sharded = losses_of(run_processes("with_accelerate.py", ranks=2, arguments=["sharded"]))
    assert sharded == pytest.approx(alone, rel=1e-5)
