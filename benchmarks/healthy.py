"""Records healthy jobs and jobs with a planted fault on CPU ranks, quiet and beside other work, and counts findings.

    python benchmarks/healthy.py --out FOLDER                       # 3 repeats of each job: about 40 minutes
    python benchmarks/healthy.py --out FOLDER --repeats 1 --only demo,slow_compute
    python benchmarks/healthy.py --out FOLDER --again               # analyse the recordings again, record nothing

"Beside other work": as many processes as the machine has cores compute all the time. Recordings in FOLDER are reused.
Prints the table of docs/validation.md. Exits 1 if a healthy job has a late rank or a finding above low, or if a
planted fault is not found on its rank.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis import AnalysisError, Options, load, summarise

_ROOT = Path(__file__).parents[1]
_DEMO = ["model=gpt", "batch_size=4"]
_LOOP = f"script={_ROOT / 'benchmarks' / 'noisy_loop.py'}"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job: the words of `rankscope run`, and the finding that it must have (None: the job is healthy)."""

    name: str
    words: list[str]
    finds: tuple[str, ...] = ()
    rank: int | None = None

    def wrong(self, summary: dict[str, Any]) -> str | None:
        """Return what is wrong in an answer, in a few words; None if it is right."""
        above = [item for item in summary["findings"] if item["severity"] != "low"]
        if not self.finds:
            late = summary["stragglers"]
            named = f"names rank {late['rank']} ({late['verdict']})" if late["rank"] is not None else None
            return named or (", ".join(f"{item['id']} {item['severity']}" for item in above) or None)
        right = [
            item for item in summary["findings"] if item["id"] in self.finds and self.rank in (None, *item["ranks"])
        ]
        others = [item for item in above if item["id"].startswith("straggler") and self.rank not in item["ranks"]]
        if others:
            return f"names rank {others[0]['ranks']}"
        return None if right else f"{' or '.join(self.finds)} not found"


def _example(name: str, *words: str) -> Job:
    return Job(name=name, words=[f"script={_ROOT / 'examples' / f'{name}.py'}", *words])


def _fault(name: str, finds: str, rank: int | None) -> Job:
    return Job(name=name, words=[f"+scenario={name}", *_DEMO], finds=(finds,), rank=rank)


JOBS = (
    Job(name="demo", words=_DEMO),
    Job(name="mlp", words=["model=mlp"]),
    Job(name="noisy_loop", words=[_LOOP]),
    _example("char_lm"),
    _example("own_loop"),
    _example("hf_trainer", "steps=20"),
    _example("accelerate_loop", "steps=20"),
    _example("lightning_callback", "steps=20"),
    _fault("slow_compute", "straggler_compute", 1),
    _fault("slow_host", "straggler_host", 1),
    _fault("slow_rank_loader", "straggler_data", 1),
    _fault("slow_loader", "data_stall", None),
    Job(
        name="noisy_loop_late", words=[_LOOP, "--", "--late-rank", "1", "--late-ms", "8"],
        finds=("straggler_host", "straggler_data"), rank=1,
    ),
)  # fmt: skip


@contextmanager
def other_work(processes: int) -> Iterator[None]:
    """Keep so many cores busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def record(job: Job, path: Path, processes: int) -> None:
    """Run a job unless its recording exists."""
    if (path / "run.json").exists():
        return
    words, dashes, arguments = " ".join(job.words).partition(" -- ")
    own = ["world_size=2", "device=cpu", f"run_dir='{path}'"]
    command = [sys.executable, "-m", "rankscope.conf.cli", "run", *words.split(), *own]
    with other_work(processes):
        done = subprocess.run(
            [*command, *(["--", *arguments.split()] if dashes else [])], capture_output=True, text=True, check=False
        )
    if done.returncode not in (0, 3):
        print(f"{path.name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}", file=sys.stderr)


def row(job: Job, found: list[tuple[str, dict[str, Any]]]) -> tuple[str, bool]:
    """Return the job's line of the table, and whether every answer is right."""
    wrong = [(name, said) for name, summary in found if (said := job.wrong(summary)) is not None]
    for name, said in wrong:
        print(f"{name}: {said}", file=sys.stderr)
    counts = Counter(f"{item['id']} {item['severity']}" for _, summary in found for item in summary["findings"])
    late = sum(summary["stragglers"]["rank"] is not None for _, summary in found)
    cells = [
        job.name,
        "nothing" if not job.finds else " or ".join(job.finds) + ("" if job.rank is None else f", rank {job.rank}"),
        f"{len(found) - len(wrong)} of {len(found)}",
        str(late),
        ", ".join(f"{said} ({number})" for said, number in counts.most_common()),
    ]
    return f"| {' | '.join(cells)} |", not wrong and bool(found)


def main() -> int:
    """Record, analyse, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--repeats", type=int, default=3, help="of each job, quiet and beside other work")
    parser.add_argument("--only", help="names of jobs, separated by commas")
    parser.add_argument("--again", action="store_true", help="only analyse what was recorded")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in JOBS if options.only is None or job.name in options.only.split(",")]
    places = {"quiet": 0, "busy": len(os.sched_getaffinity(0))}
    for repeat in range(0 if options.again else options.repeats):
        for job in jobs:
            for place, processes in places.items():
                record(job, out / f"{job.name}-{place}-{repeat}", processes)
    all_right = True
    print("| job | must be found | right | late rank named | findings (runs) |\n| --- | --- | ---: | ---: | --- |")
    for job in jobs:
        for place in places:
            found = []
            for path in sorted(out.glob(f"{job.name}-{place}-*")):
                try:
                    found.append((path.name, summarise(load(path, options=Options(cache=False)))))
                except AnalysisError as error:
                    print(f"{path.name}: {error}", file=sys.stderr)
            line, right = row(msgspec.structs.replace(job, name=f"{job.name}, {place}"), found)
            print(line, flush=True)
            all_right &= right
    return 0 if all_right else 1


if __name__ == "__main__":
    sys.exit(main())
