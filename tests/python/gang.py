# SPDX-License-Identifier: Apache-2.0
"""Ranks as real processes that stay: each joins one world and runs one case after the other, since importing torch
takes longer than most cases. A case is a function of a test module whose first argument is the world."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
WAIT_S = 90


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, size, port, transport="auto", **more):
    found = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "FSDP_TIMEOUT": "30",
        "FSDP_TEST_TRANSPORT": transport,
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(HERE)]),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        **more,
    }
    return {name: value for name, value in found.items() if not name.startswith("TORCHELASTIC")}


class Gang:
    """`size` ranks over `transport`."""

    def __init__(self, size, transport="auto"):
        port = free_port()
        self.processes, self.results, self.logs = [], [], []
        for rank in range(size):
            read, write = os.pipe()
            log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "rank.py"), str(write)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment(rank, size, port, transport),
                    pass_fds=[write],
                    text=True,
                )
            )
            os.close(write)
            self.results.append(os.fdopen(read))
            self.logs.append(log)

    def run(self, function, **arguments):
        """What each rank's call returned, by rank. Raises AssertionError with what the ranks said when one failed."""
        module = Path(sys.modules[function.__module__].__file__).stem
        order = json.dumps({"module": module, "function": function.__name__, "arguments": arguments})
        for process in self.processes:
            process.stdin.write(order + "\n")
            process.stdin.flush()
        answers = [self._answer(rank) for rank in range(len(self.processes))]
        failed = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if failed:
            said = "\n".join(f"--- rank {rank} said\n{self._said(rank)}" for rank in range(len(answers)))
            self.end()
            raise AssertionError("\n".join([*failed, said]))
        return [answer["value"] for answer in answers]

    def _answer(self, rank):
        import select

        ready, _, _ = select.select([self.results[rank]], [], [], WAIT_S)
        line = self.results[rank].readline() if ready else ""
        if line:
            return json.loads(line)
        code = self.processes[rank].poll()
        return {"error": f"no answer, exit code {code}"}

    def _said(self, rank):
        self.logs[rank].flush()
        self.logs[rank].seek(0)
        return self.logs[rank].read()[-3000:]

    def is_usable(self):
        return all(process.poll() is None for process in self.processes)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.stdin.close()
        deadline = time.time() + 5
        for process in self.processes:
            while process.poll() is None and time.time() < deadline:
                time.sleep(0.01)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


class Gangs:
    """One gang per size and transport, made when first asked for and again after a failure."""

    def __init__(self):
        self._gangs = {}

    def __call__(self, function, ranks=2, transport="auto", **arguments):
        key = (ranks, transport)
        gang = self._gangs.get(key)
        if gang is None or not gang.is_usable():
            gang = self._gangs[key] = Gang(ranks, transport)
        return gang.run(function, **arguments)

    def end(self):
        for gang in self._gangs.values():
            gang.end()


def run_processes(script, ranks=2, arguments=(), timeout=60, **variables):
    """Runs `python script arguments` once per rank; returns (exit code, output) by rank."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(rank, ranks, port, **variables),
            text=True,
        )
        for rank in range(ranks)
    ]
    deadline = time.time() + timeout
    ends = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(1, deadline - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            output += "\n(killed: it took too long)"
        ends.append((process.returncode, output))
    return ends
