# SPDX-License-Identifier: Apache-2.0
"""Runs a share of the tests under the sanitizers: all of them take over an hour, and CI has minutes.

sanitize.py share [--run S] [--build S] [--seed TEXT] BUILD...   another share for each seed (default: the
    commit, else the date), each test as likely as another; BUILD is build/asan or build/tsan, configured. Tests
    that end after their time is up still count. Fails when a test fails, does not build, or has a report
sanitize.py reports JUNIT   fails when the output of a test, passed or not, has a report of a sanitizer
"""

import argparse
import datetime
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import select_tests
from repo import ROOT

REPORT = re.compile(
    r"^.*(?:ERROR: (?:Address|Leak|Memory)Sanitizer|WARNING: ThreadSanitizer|: runtime error: ).*$", re.MULTILINE
)
# How many times longer a test takes than in a plain build.
SLOWNESS = 4
# Where a plain build has not said how long a test takes.
USUAL_S = 10
# With less left, nothing more is begun.
LEAST_S = 5


def default_seed():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else datetime.date.today().isoformat()


def in_order(names, seed):
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())


def plain_seconds(report):
    """What each test took in a plain build."""
    if not report.is_file():
        return {}
    return {case.get("name"): float(case.get("time", 0)) for case in ElementTree.parse(report).iter("testcase")}


class Budget:
    def __init__(self, seconds):
        self.left, self.took = seconds, 0

    def spend(self, command, limit=None):
        """Exit code (None at the limit) and output."""
        begin = time.monotonic()
        # In a session of its own: at the limit compilers that it has started end, too.
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=limit)
                code = process.returncode
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                code = None
        self.took = time.monotonic() - begin
        self.left -= self.took
        return code, output


def share_of(build, seed, run, built):
    """Runs tests of one build until `run` or `built` is used up. Returns how many there are, ran and failed."""
    preset = build.name
    listing = subprocess.run(["ctest", "--preset", preset, "-N"], cwd=ROOT, capture_output=True, text=True).stdout
    names = re.findall(r"^\s*Test\s+#\d+: (\S+)", listing, re.MULTILINE)
    usual = plain_seconds(build.parent / "release" / "tests.xml")
    ran, failed = 0, []
    for name in in_order(names, f"{preset} {seed}"):
        if min(run.left, built.left) < LEAST_S:
            break
        if usual.get(name, USUAL_S) * SLOWNESS > run.left:
            continue  # a shorter one may still fit
        targets = select_tests.targets(build, f"Test #1: {name}")
        jobs = os.environ.get("FSDP_JOBS") or str(os.cpu_count())
        code, output = 0, ""
        if targets:
            code, output = built.spend(["cmake", "--build", str(build), "-j", jobs, "--target", *targets], built.left)
        if code is None:
            print(f"{preset:5} {name:40} no time left to build it", flush=True)
            break
        words = "does not build"
        if code == 0:
            command = ["ctest", "--preset", preset, "-R", f"^{re.escape(name)}$", "--verbose"]
            code, output = run.spend(command)
            ran += 1
            report = REPORT.search(output)
            words = "passed" if code == 0 and not report else report.group(0).strip() if report else "FAILED"
            words = f"{run.took:6.1f} s  {words}"
        print(f"{preset:5} {name:40} {words}", flush=True)
        if not words.endswith("passed"):
            failed.append(name)
            print(output[-8000:], flush=True)
    return len(names), ran, failed


def share(arguments):
    failures = []
    for number, build in enumerate(arguments.builds):
        left = len(arguments.builds) - number
        run, built = Budget(arguments.run / left), Budget(arguments.build / left)
        count, ran, failed = share_of(build.resolve(), arguments.seed, run, built)
        # What one build has not used, the next may.
        arguments.run -= arguments.run / left - run.left
        arguments.build -= arguments.build / left - built.left
        failures += failed
        print(f"{build.name}: {ran} of {count} tests, {len(failed)} failed (seed {arguments.seed})", flush=True)
        if count == 0:
            sys.exit(f"sanitize: {build} has no tests")
    return 1 if failures else 0


def reports(path):
    found = 0
    for case in ElementTree.parse(path).iter("testcase"):
        report = REPORT.search("".join(case.itertext()))
        if report:
            found += 1
            print(f"{case.get('name')}: {report.group(0).strip()}")
    return 1 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_share = commands.add_parser("share")
    of_share.add_argument("--run", type=float, default=300, help="seconds to run tests")
    of_share.add_argument("--build", type=float, default=420, help="seconds to build them")
    of_share.add_argument("--seed", default=default_seed())
    of_share.add_argument("builds", nargs="+", type=Path)
    of_reports = commands.add_parser("reports")
    of_reports.add_argument("junit", type=Path)
    arguments = parser.parse_args()
    sys.exit(share(arguments) if arguments.command == "share" else reports(arguments.junit))


if __name__ == "__main__":
    main()
