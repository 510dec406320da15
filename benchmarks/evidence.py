"""Records everything that docs/ shows of several GPUs: a scaling report, the confusion matrix, two profilers compared.

    python benchmarks/evidence.py --out FOLDER --ranks 1,2           # two GPUs: about an hour
    python benchmarks/evidence.py --out FOLDER --ranks 1,2,4 --only scaling

The stages reuse existing results, so you can restart an interrupted one:

    ceilings    the limits of the node (`rankscope ceilings`)
    scaling     gpt and mlp over ranks and batches, weak and strong, three repeats: FOLDER/scaling/report.md
    scenarios   the confusion matrix (benchmarks/scenarios.py): FOLDER/scenarios/table.md
    witnesses   passes=[plain,torch,nsys] of a healthy and of a faulty run: FOLDER/witnesses/{clean,late}

Runs that share the machine measure one after another (`launch.turn`). Exits 1 if a stage failed.
"""

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RANKSCOPE = [sys.executable, "-m", "rankscope.conf.cli"]
GPT = ["model=gpt", "model.size=medium", "precision=tf32"]
MLP = ["model=mlp", "model.size=medium", "precision=tf32"]
BASE = ["model.size=small", "precision=tf32", "batch_size=24"]  # a step of 32 ms on an H100, twice what its host needs
LARGER = ["comm_bound:model.size=large", "one_bucket:model.name=gpt", "one_bucket:model.size=medium"]
JOBS = 6  # enough that one run is measuring at any time


class Evidence:
    """The stages, for the given numbers of ranks, with one output folder."""

    def __init__(self, out: Path, ranks: list[int], repeats: int, more: list[str]) -> None:
        self.out = out.absolute()
        self.ranks = ranks
        self.repeats = repeats
        self.more = [*more, f"launch.turn='{self.out / 'turn'}'"]

    def ceilings(self) -> bool:
        """Measure the limits of the node."""
        return call([*RANKSCOPE, "ceilings", f"world_size={max(self.ranks)}"])

    def scaling(self) -> bool:
        """Record one sweep per job and batch, in parallel, and write one report per job."""
        jobs = {"gpt": (GPT, (8, 16, 32)), "mlp": (MLP, (1024, 4096))}
        with ThreadPoolExecutor(JOBS) as pool:
            for name, (job, batches) in jobs.items():
                for batch in batches:
                    pool.submit(self._sweep, [*job, f"batch_size={batch}"], self.out / "scaling" / f"{name}-{batch}")
        good = True
        for name, (_, batches) in jobs.items():
            sweeps = [found for batch in batches for found in _sweeps(self.out / "scaling" / f"{name}-{batch}")]
            target = self.out / "scaling" / f"report-{name}"
            good &= call([*RANKSCOPE, "report", *map(str, sweeps), "--out", str(target)])
        return good

    def _sweep(self, overrides: list[str], folder: Path) -> None:
        found = _sweeps(folder)
        if found:
            call([*RANKSCOPE, "run", "--resume", str(found[0])])
            return
        ranks = ",".join(map(str, self.ranks))
        common = [
            f"world_size={ranks}",
            f"repeats={self.repeats}",
            "steps=10",
            f"name={folder.name}",
            f"runs_dir='{folder}'",
        ]
        call([*RANKSCOPE, "run", "-m", *overrides, *common, *self.more])

    def scenarios(self) -> bool:
        """Record the confusion matrix."""
        script = Path(__file__).with_name("scenarios.py")
        options = ["--out", self.out / "scenarios", "--world-size", max(self.ranks), "--repeats", self.repeats]
        command = [sys.executable, script, *options, "--jobs", JOBS, "--base", *BASE, *LARGER, "--", *self.more]
        return call([str(word) for word in command])

    def witnesses(self) -> bool:
        """Record one job under both profilers, unchanged and with 10 ms of products planted on rank 1."""
        common = [f"world_size={max(self.ranks)}", *GPT, "batch_size=16", "passes=[plain,torch,nsys]", *self.more]
        late = ["+scenario=slow_compute", "scenario.ms=10"]
        folder, good = self.out / "witnesses", True
        for name, planted in (("clean", []), ("late", late)):
            if not (folder / name / "analysis" / "summary.json").exists():
                good &= call([*RANKSCOPE, "run", *planted, *common, f"run_dir='{folder / name}'"])
        return good


def _sweeps(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/sweep.json"))


def call(command: list[str]) -> bool:
    """Run a command and return whether it succeeded."""
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", default="1,2", help="world sizes, separated by commas; the first is 1")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="ceilings,scaling,scenarios,witnesses", help="stages, separated by commas")
    parser.add_argument("overrides", nargs="*", help="further overrides for every run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    evidence = Evidence(options.out, list(map(int, options.ranks.split(","))), options.repeats, options.overrides)
    good = [getattr(evidence, stage)() for stage in options.only.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
