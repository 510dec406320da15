"""Measures what users type: complete commands, with start, page and tables, beside a plain script and beside HTA.

All programs of a row run in turn, so that other load on the machine meets each of them. The table shows medians: CPU
seconds (user and system, of all processes), wall time, peak memory of all processes, and CPU time as a multiple of the
plain script for four ranks, which shows how fast the machine is at that moment.

    python benchmarks/commands.py                              # everything: 4 GB of disk, half an hour
    python benchmarks/commands.py --rows four,nsys --repeat 7 --no-peer
    python benchmarks/commands.py --rows four --against OTHER/bin/rankscope   # two versions in turn
"""

import argparse
import contextlib
import json
import os
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
TESTS = HERE.parent / "tests" / "data"
REAL, NSYS = TESTS / "traces" / "big_baseline_w4", TESTS / "nsys" / "big_baseline_w4"
PEER = "HolisticTraceAnalysis==0.5.0"
MB = 1_000_000
_FEW = 3  # runs with a large input
_SAMPLED = 0.05  # s between two samples of memory
_DONE = (0, 3)  # 3: ranks are missing, as in the rows with one rank of four


@dataclass
class Program:
    """One command line, and all its runs."""

    name: str
    command: list[str]
    out: Path
    home: str = "mine"  # whose cache: one for each version
    warm: bool = False  # keep the cache that the run before filled
    most: int | None = None  # runs
    runs: list[dict[str, float]] = field(default_factory=list)
    error: str | None = None

    def run(self, scratch: Path) -> None:
        """Run the command with a cache of its own, empty unless the program is `warm`."""
        if self.error is not None or (self.most is not None and len(self.runs) >= self.most):
            return
        home = scratch / "cache" / self.home
        if not self.warm:  # the compiled scanner stays
            for part in ("ranks", "answers"):
                _put_aside(home / "rankscope" / part, scratch)
            _put_aside(self.out, scratch)
        if self.warm and not self.runs:
            self._measure(home)
        self.runs.append(self._measure(home))

    def _measure(self, home: Path) -> dict[str, float]:
        home.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"XDG_CACHE_HOME": str(home)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its bytecode
        with tempfile.TemporaryFile() as errors:
            began = time.perf_counter()
            process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
            peak, usage = 0, None
            while usage is None:
                peak = max(peak, memory_of(process.pid))
                time.sleep(_SAMPLED)
                pid, status, found = os.wait4(process.pid, os.WNOHANG)
                usage = found if pid else None
            wall = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode not in _DONE:
                errors.seek(0)
                self.error = (errors.read().decode(errors="replace").strip().splitlines() or ["failed"])[-1]
        peak = max(peak, usage.ru_maxrss * 1024)
        return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "mb": peak / MB}

    def median(self, name: str) -> float:
        return statistics.median(run[name] for run in self.runs)


def _put_aside(folder: Path, scratch: Path) -> None:
    """Take a folder away, if it is there, without deleting its files.

    Whenever a command creates a file, ext4 looks at inodes that were deleted shortly before: a second for 1,024 ranks.
    """
    with contextlib.suppress(FileNotFoundError):
        folder.rename(Path(tempfile.mkdtemp(prefix="old-", dir=scratch)) / folder.name)


def memory_of(pid: int) -> int:
    """Return the memory (bytes) of a process and its descendants; shared pages count once (PSS; Linux).

    A single process needs no sampling: the system knows its peak, and reading the map of a large one takes time.
    """
    family = _family(pid)
    if len(family) == 1:
        return 0
    total = 0
    for each in family:
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


class Bench:
    """Creates the inputs and runs the rows."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.scratch, self.repeat, self.peer = scratch, arguments.repeat, not arguments.no_peer
        self.versions = {"": str(Path(sys.executable).with_name("rankscope"))}
        if arguments.against:
            self.versions["other"] = arguments.against
        self.inputs: Path = arguments.inputs or scratch / "inputs"
        for program in self.ours("ingest --out OUT", self.of_size(50)):  # compiles the scanner, which happens once
            program.run(scratch)

    def ours(self, arguments: str, path: Path, *, warm: bool = False, most: int | None = None) -> list[Program]:
        """Return the command with `OUT` in it replaced by a folder, once for each version."""
        programs = []
        for label, binary in self.versions.items():
            name = f"{label} {arguments}".strip() + (", warm" if warm else "")
            out = self.scratch / "out" / name.replace(" ", "-").replace("/", "-")
            verb, *rest = arguments.replace("OUT", str(out)).split()
            programs.append(Program(name, [binary, verb, str(path), *rest], out, label or "mine", warm, most))
        return programs

    def plain(self, path: Path = REAL) -> list[Program]:
        command = [sys.executable, str(HERE / "plain_script.py"), str(path)]
        name = "plain script, four ranks" if path == REAL else "plain script, this file"
        return [Program(name, command, self.scratch, warm=True)]

    def hta(self, task: str, path: Path, *, most: int | None = None) -> list[Program]:
        """Return the peer in an environment of its own, which the first call installs."""
        if not self.peer:
            return []
        place = self.inputs / "peer"
        program = Program(
            f"HTA 0.5.0, {task}",
            [str(place / "bin" / "python"), str(HERE / "hta_peer.py"), task, str(path)],
            self.scratch,
            warm=True,
            most=most,
        )
        if not place.exists():
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            # With pandas 3, HTA fails on traces of more than 32,767 rows.
            install = [str(place / "bin" / "pip"), "install", "--quiet", PEER, "pandas<3"]
            subprocess.run(install, capture_output=True, check=False)
        if not list(place.glob("lib/*/site-packages/hta")):
            program.error = f"cannot be installed: {PEER}"
        return [program]

    def of_size(self, megabytes: int) -> Path:
        folder = self.inputs / f"mb{megabytes}"
        if not folder.exists():
            folder.mkdir(parents=True)
            traces.repeated(REAL / "rank0.json.gz", folder / "rank0.json", megabytes * MB)
        return folder

    def of_ranks(self, ranks: int) -> Path:
        folder = self.inputs / f"ranks{ranks}"
        if not folder.exists():
            folder.mkdir(parents=True)
            traces.many_ranks(REAL / "rank0.json.gz", folder, ranks)
        return folder

    # --- the rows ------------------------------------------------------------------------------------------------

    def four(self) -> None:
        programs = [*self.plain(), *self.ours("analyze --out OUT", REAL)]
        programs += [*self.ours("analyze --out OUT", REAL, warm=True), *self.ours("analyze --json OUT/s.json", REAL)]
        programs += self.ours("analyze --json OUT/s.json", REAL, warm=True)
        self.alternate("4 ranks, 31 MB of JSON", [*programs, *self.hta("analyze", REAL)])

    def one(self, megabytes: int) -> None:
        path = self.of_size(megabytes)
        small = megabytes <= 100
        programs = [*self.plain(), *(self.plain(path) if small else [])]
        for command in ("analyze --out OUT", "analyze --json OUT/s.json", "ingest --out OUT"):
            programs += self.ours(command, path, most=None if small else _FEW)
        # With 1 GB, HTA takes three minutes and 5 GB of memory.
        peer = self.hta("tables", path / "rank0.json", most=None if small else 1) if megabytes <= 1000 else []
        self.alternate(f"one rank, {megabytes} MB of JSON (HTA: reading alone)", [*programs, *peer])

    def ranks(self, count: int, *, most: int | None) -> None:
        path = self.of_ranks(count)
        programs = [*self.plain(), *self.ours("analyze --out OUT", path, most=most)]
        programs += self.ours("analyze --out OUT", path, warm=True, most=most)
        programs += self.ours("analyze --json OUT/s.json", path, warm=True, most=most)
        self.alternate(f"{count} ranks of 7.6 MB of JSON", programs)

    def timeline(self) -> None:
        path = self.of_ranks(1024)
        programs = [*self.plain(), *self.ours("timeline --out OUT --make page", path, warm=True, most=_FEW)]
        self.alternate("timeline of 1,024 ranks, page", programs)

    def nsys(self) -> None:
        programs = [*self.plain(), *self.ours("analyze --out OUT", NSYS)]
        self.alternate("4 Nsight Systems exports of 0.66 MB", programs)

    def alternate(self, title: str, programs: Sequence[Program]) -> list[dict[str, Any]]:
        for _ in range(self.repeat):
            for program in programs:
                program.run(self.scratch)
        print(f"\n{title}\n{'':46} {'CPU s':>8} {'wall s':>8} {'MB':>6} {'times':>7} {'runs':>5}", flush=True)
        base = next(program for program in programs if program.error is None).median("cpu")
        for program in programs:
            if program.error is not None:
                print(f"{program.name:46} {program.error[:80]}")
                continue
            cpu, wall, peak = (program.median(name) for name in ("cpu", "wall", "mb"))
            runs = len(program.runs)
            print(f"{program.name:46} {cpu:8.2f} {wall:8.2f} {peak:6.0f} {cpu / base:7.2f} {runs:5}", flush=True)
        found = [{"title": title, "name": each.name, "runs": each.runs, "error": each.error} for each in programs]
        self.found = [*getattr(self, "found", []), *found]
        return found


def rows(bench: Bench) -> dict[str, Callable[[], object]]:
    return {
        "four": bench.four,
        "nsys": bench.nsys,
        "100mb": lambda: bench.one(100),
        "1gb": lambda: bench.one(1000),
        "2gb": lambda: bench.one(2000),
        "64": lambda: bench.ranks(64, most=None),
        "1024": lambda: bench.ranks(1024, most=_FEW),
        "timeline": bench.timeline,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="four,nsys,100mb,1gb,2gb,64,1024,timeline", help="which of them, in order")
    parser.add_argument("--repeat", type=int, default=5, help=f"runs of each program; of large inputs at most {_FEW}")
    parser.add_argument("--against", help="the `rankscope` of another version, to run in turn")
    parser.add_argument("--no-peer", action="store_true", help="do not install and run HTA")
    parser.add_argument("--inputs", type=Path, help="folder in which the inputs are kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write all runs to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankscope-bench-") as folder:
        bench = Bench(arguments, Path(folder))
        known = rows(bench)
        wanted = arguments.rows.split(",")
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"--rows {','.join(unknown)}: no such row; there are {', '.join(known)}")
        for name in wanted:
            known[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(bench.found, indent=1))


if __name__ == "__main__":
    main()
