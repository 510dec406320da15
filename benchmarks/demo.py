"""Repeats `rankscope demo`: is the healthy job called healthy, and is the fault of the other one found, every time?

    python benchmarks/demo.py --runs 20            # on a quiet machine
    python benchmarks/demo.py --runs 20 --load 2   # beside two processes that compute all the time

A healthy run is wrong if a rank is named late or a finding is above low; a faulty run is wrong unless rank 1 is named
late because of its loader.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUSY = "while True: sum(range(100000))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside the demo")
    arguments = parser.parse_args()
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(arguments.load)]
    right = {"healthy": 0, "slow-rank": 0}
    seconds = []
    try:
        for number in range(arguments.runs):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                command = [str(Path(sys.executable).with_name("rankscope")), "demo", f"runs_dir={folder}"]
                subprocess.run(command, check=True, capture_output=True)
                seconds.append(time.perf_counter() - began)
                for name in right:
                    found = json.loads(next(Path(folder).glob(f"*{name}/analysis/summary.json")).read_text())
                    right[name] += judge(name, found, number)
    finally:
        for process in others:
            process.kill()
    print(
        f"{arguments.runs} runs, {arguments.load} busy processes: healthy right {right['healthy']}, faulty right ",
        end="",
    )
    print(f"{right['slow-rank']}; {min(seconds):.0f} to {max(seconds):.0f} s for both jobs")


def judge(name: str, summary: dict[str, object], number: int) -> bool:
    """Return whether the answer is right; print what is wrong."""
    late, findings = summary["stragglers"], summary["findings"]
    assert isinstance(late, dict) and isinstance(findings, list)
    if name == "healthy":
        loud = [
            (item["id"], item["severity"], item["recoverable_ms"]) for item in findings if item["severity"] != "low"
        ]
        good = late["rank"] is None and not loud
        told = f"rank {late['rank']}, {late['cause']}, {late['lateness_ms']} ms; findings {loud}"
    else:
        good = late["rank"] == 1 and late["cause"] == "data"
        told = f"{late['verdict']}, rank {late['rank']}, {late['cause']}, {late['reason']}"
    if not good:
        print(f"run {number}, {name}: {told}", flush=True)
    return good


if __name__ == "__main__":
    main()
