"""Measures the time and memory of reading and analysing traces, for rankscope and HTA (HolisticTraceAnalysis).

Creates its inputs in a temporary folder, alternates between rankscope and the peer, runs each in a new process, and
prints medians: seconds of the work itself, and wall time, CPU time and peak memory of the complete process. The peer is
installed from PyPI in separate environments, under its old and its new name. If that fails, the table says so.

    python benchmarks/ingest.py                        # everything: several minutes, 3 GB of disk
    python benchmarks/ingest.py --parts small,limits --no-peer
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import traces

HERE = Path(__file__).resolve().parent
REAL = HERE.parent / "tests" / "data" / "traces" / "big_baseline_w4"
PEERS = {"HTA 0.5.0": "HolisticTraceAnalysis==0.5.0", "HTA 0.6.1 (traceinsight)": "traceinsight==0.6.1"}
MB = 1_000_000
PARTS = ("small", "tables", "ranks", "limits")


@dataclass
class Runs:
    """All runs of one program on one input."""

    name: str
    command: list[str]
    once: bool = False  # slow: not repeated
    several: bool = False  # starts processes, whose memory is sampled while they run
    environment: dict[str, str] = field(default_factory=dict)
    seconds: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None

    def run(self) -> None:
        if self.error is not None:
            return
        began = time.perf_counter()
        environment = os.environ | self.environment
        with subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            peak = 0
            # Sampling memory slows a large process down, so do it only if there are several processes.
            while process.poll() is None:
                if self.several:
                    peak = max(peak, memory_of(process.pid))
                time.sleep(0.2 if self.several else 0.01)
            text, errors = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
        wall = time.perf_counter() - began
        if process.returncode:
            self.error = (errors.strip().splitlines() or ["failed"])[-1]
            return
        found = json.loads(text.strip().splitlines()[-1])
        self.seconds.append({"wall": wall, "peak": max(peak, found.pop("rss")) / MB, **found})

    def median(self, name: str) -> float | None:
        found = [run[name] for run in self.seconds if run.get(name) is not None]
        return statistics.median(found) if found else None


def memory_of(pid: int) -> int:
    """Return the memory (bytes) of a process and its descendants; shared pages count once (PSS; Linux)."""
    total = 0
    for each in _family(pid):
        try:
            text = Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def _family(pid: int) -> list[int]:
    found = [pid]
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [each for child in children.read_text().split() for each in _family(int(child))]
        except OSError:
            continue
    return found


# --- what runs -----------------------------------------------------------------------------------------------


def ours(task: str, path: Path, name: str, *, cache: Path, fast: bool, once: bool = False) -> Runs:
    command = [sys.executable, str(HERE / "ingest_task.py"), task, str(path), "fast" if fast else "plain"]
    return Runs(name, command, once, task == "analyze", {"XDG_CACHE_HOME": str(cache)})


def peers(folder: Path, task: str, path: Path, *, once: bool = False) -> list[Runs]:
    """Return the peer under both names, and install it at the first call."""
    runs = []
    for name, package in PEERS.items():
        place = folder / name.partition(" ")[2].replace(" ", "-")
        run = Runs(
            name,
            [str(place / "bin" / "python"), str(HERE / "ingest_peer.py"), task, str(path)],
            once,
            task == "analyze",
        )
        if not place.exists():
            # With pandas 3, HTA fails on traces of more than 32,767 rows.
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            install = [str(place / "bin" / "pip"), "install", "--quiet", package, "pandas<3"]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            (place / "failed").write_text(done.stderr) if done.returncode else None
        if (place / "failed").exists():
            run.error = f"cannot be installed: {package}"
        runs.append(run)
    return runs


def alternate(title: str, runs: Sequence[Runs], repeat: int, size: float) -> list[dict[str, Any]]:
    """Run all programs in turn, print a table, and return its rows. Ratios are against the last HTA."""
    for turn in range(repeat):
        for run in runs:
            if turn == 0 or not run.once:
                run.run()
    print(f"\n{title}", flush=True)
    print(f"{'':34} {'work s':>8} {'wall s':>8} {'CPU s':>8} {'MB':>6} {'MB/s':>7} {'times':>7}")
    base = next((run.median("work") for run in reversed(runs) if run.error is None and "HTA" in run.name), None)
    rows: list[dict[str, Any]] = []
    for run in runs:
        if run.error is not None:
            print(f"{run.name:34} {run.error[:80]}")
            rows.append({"title": title, "name": run.name, "error": run.error})
            continue
        work, wall, cpu, peak = (run.median(name) or 0.0 for name in ("work", "wall", "cpu", "peak"))
        times = f"{base / work:7.1f}" if base and work else f"{'':7}"
        print(f"{run.name:34} {work:8.3f} {wall:8.3f} {cpu:8.2f} {peak:6.0f} {size / max(work, 1e-9):7.0f} {times}")
        rows.append({"title": title, "name": run.name, "work": work, "wall": wall, "cpu": cpu, "peak": peak})
    return rows


# --- the parts -----------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, folder: Path, repeat: int, peer: bool) -> None:
        self.folder, self.repeat, self.peer = folder, repeat, peer
        self.cache = folder / "cache"
        warm = ours("tables", REAL / "rank0.json.gz", "", cache=self.cache, fast=True)
        warm.run()  # compiles the scanner
        self.has_scanner = warm.error is None and bool(warm.seconds[0].get("scanner"))

    def both(self, task: str, path: Path, *, once: bool = False) -> list[Runs]:
        runs = [ours(task, path, "rankscope (msgspec)", cache=self.cache, fast=False, once=once)]
        if self.has_scanner:
            runs.insert(0, ours(task, path, "rankscope[fast] (scanner)", cache=self.cache, fast=True, once=once))
        return runs

    def against(self, task: str, path: Path, *, once: bool = False) -> list[Runs]:
        return peers(self.folder / "peers", task, path, once=once) if self.peer else []

    def small(self) -> list[dict[str, Any]]:
        runs = [*self.both("analyze", REAL), *self.against("analyze", REAL)]
        rows = alternate("4 ranks, 31 MB of JSON, to summary.json (HTA: two of its analyses)", runs, self.repeat, 31)
        cached = [ours("analyze-cached", REAL, "rankscope, from its cache", cache=self.cache, fast=False)]
        cached[0].run()
        cached[0].seconds.clear()
        return rows + alternate("the same, from the cache", cached, self.repeat, 31)

    def tables(self) -> list[dict[str, Any]]:
        rows = []
        for size in (10, 100):
            path = self.folder / f"{size}.json"
            traces.repeated(REAL / "rank0.json.gz", path, size * MB)
            runs = [*self.both("tables", path), *self.against("tables", path, once=size > 10)]
            rows += alternate(f"{size} MB, one rank, to tables in memory", runs, self.repeat, size)
            path.unlink()
        return rows

    def ranks(self) -> list[dict[str, Any]]:
        rows = []
        for count in (1, 4, 16, 64, 256, 1024):
            folder = self.folder / f"ranks{count}"
            folder.mkdir()
            size = traces.many_ranks(REAL / "rank0.json.gz", folder, count) * count / MB
            runs = self.both("analyze", folder, once=count > 64)
            peer = self.against("analyze", folder, once=True) if count == 16 else []
            repeat = self.repeat if count <= 64 else 1
            rows += alternate(f"{count} ranks, {size:.0f} MB of JSON, to summary.json", [*runs, *peer], repeat, size)
            shutil.rmtree(folder)
        return rows

    def limits(self) -> list[dict[str, Any]]:
        path = self.folder / "1000.json"
        traces.repeated(REAL / "rank0.json.gz", path, 1000 * MB)
        runs = [
            ours(task, path, task, cache=self.cache, fast=True) for task in ("page cache", "index only", "scan only")
        ]
        runs.append(ours("gunzip", path, "gunzip (of the same, compressed)", cache=self.cache, fast=True))
        subprocess.run(["gzip", "-k", "-1", str(path)], check=True)
        rows = alternate("1 GB: the limits of reading", runs, self.repeat, 1000)
        path.unlink()
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"which of {', '.join(PARTS)}")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each program; the table shows medians")
    parser.add_argument("--no-peer", action="store_true", help="do not install and run HTA")
    parser.add_argument("--folder", type=Path, help="folder for the inputs (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write all rows to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="rankscope-bench-") as folder:
        bench = Bench(Path(folder), arguments.repeat, not arguments.no_peer)
        parts: dict[str, Callable[[], list[dict[str, Any]]]] = {name: getattr(bench, name) for name in PARTS}
        rows = [row for name in arguments.parts.split(",") for row in parts[name]()]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
