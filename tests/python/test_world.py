# SPDX-License-Identifier: Apache-2.0
"""How a process joins: launchers, and torch.distributed beside the library."""

import subprocess
import sys

from gang import HERE, environment, run_processes


def test_one_process_is_a_world_of_its_own():
    variables = {
        name: value
        for name, value in environment(0, 1, 1).items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    ended = subprocess.run(
        [sys.executable, str(HERE / "beside.py"), "plain"], env=variables, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 of 1 trained" in ended.stdout


def test_fsdp_run_starts_python_and_torchs_group_finds_its_port():
    ended = subprocess.run(
        [sys.executable, "-m", "fsdp", "run", "-n", "2", "--", sys.executable, str(HERE / "beside.py"), "torch_after"],
        env=environment(0, 1, 1),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "sum of all ranks 3.0" in ended.stdout


def test_torchrun_starts_it_with_torchs_group_made_before():
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + [str(HERE / "beside.py"), "torch_before"],
        env=environment(0, 1, 1),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "sum of all ranks 3.0" in ended.stdout
    assert "1 of 2 trained" in ended.stdout


def test_a_group_of_torch_that_no_launcher_describes_is_followed(tmp_path):
    for code, said in run_processes("beside.py", arguments=["torch_file", str(tmp_path / "store")]):
        assert code == 0, said
        assert "sum of all ranks 3.0" in said
