"""Records everything that docs/ shows of several GPUs: a scaling report, the confusion matrix, scripts, and more.

    python benchmarks/evidence.py --out FOLDER --ranks 1,2           # two GPUs
    python benchmarks/evidence.py --out FOLDER --ranks 1,2,4 --only scaling,once
    python benchmarks/evidence.py --out FOLDER --ranks 1,2 --seconds 500     # the same command again goes on there
    python benchmarks/evidence.py --out FOLDER --ranks 2 --only outside --outside FILE

The stages:

    ceilings    the limits of the node (`rankscope ceilings`)
    scaling     gpt and mlp over ranks and batches, weak and strong: FOLDER/scaling/report-{gpt,mlp}
    scenarios   the confusion matrix (benchmarks/scenarios.py): FOLDER/scenarios/table.md
    trials      `rankscope try` for what the scenarios' findings advise: FOLDER/scenarios/*/trials.json
    parallel    FSDP, tensor parallelism, pipelines, experts, copy engines; without and with a fault: FOLDER/parallel
    witnesses   passes=[plain,torch,nsys] of a healthy and of a faulty run: FOLDER/witnesses/{clean,late}
    examples    each script of examples/
    monitor     benchmarks/monitor.py without and with a fault: FOLDER/monitor/{none,compute}.json
    once        CUDA graphs under DDP, Python stacks, a script with its own use of torch.cuda.profiler, Nsight Compute
    outside     your own list of scripts, `--outside FILE`

Only what is missing is run: a run is done if it has analysis/summary.json, another command if its log ends with exit
status 0. Every command has a log beside its result. A command that fails does not stop the others. No run is started
later than `--seconds` after the start, and a sweep is interrupted then; a note at the end says what was not run.

FILE is a JSON list. Each script has a `name`, a `folder` (relative to FILE) where it runs, a `script`, and if necessary
`arguments`, `overrides`, and `setup`: a Python script with arguments that runs before.

Runs last only some seconds (SHORT); further overrides come last, so that they win: `-- steps=100 seconds=10`. Scripts
do not get those that only apply to the reference model. Runs that share the machine measure one after another
(`launch.turn`). Exits 1 if a command failed or was not run.
"""

import argparse
import ast
import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import msgspec

from rankscope.conf import ConfigError, RunDir, load_config
from rankscope.conf.sweep_dir import SweepDir
from rankscope.launch.configure.compose import compose

HERE = Path(__file__).absolute().parent
RANKSCOPE = [sys.executable, "-m", "rankscope.conf.cli"]
GPT = ["model=gpt", "model.size=medium", "precision=tf32"]
MLP = ["model=mlp", "model.size=xl", "precision=fp32"]  # so that the loader does not set the pace
JOBS = {"gpt": (GPT, (8, 16, 32)), "mlp": (MLP, (256, 512, 1024))}  # of the scaling sweep, with their batches
BASE = ["model.size=small", "precision=tf32", "batch_size=24"]  # a step of 32 ms on an H100, twice what its host needs
LARGER = ["comm_bound:model.size=large", "one_bucket:model.name=gpt", "one_bucket:model.size=medium"]
# These faults cost more than 2 % of the job.
COSTLY = ["item_in_loop:model.size=medium", "item_in_loop:batch_size=12", "late_once:scenario.ms=200"]
SPREAD = ("experts", "uneven_experts", "fsdp_kernels", "fsdp_copy_engines")  # of benchmarks/spread.py
SHORT = ["steps=50", "seconds=2"]  # then no window lasts much longer than 3 s
EXAMPLE = ["steps=20", "timed_steps=10", "seconds=0"]  # all windows fit into the 60 steps that most of them make
Item = TypeVar("Item")
STAGES = (
    "ceilings", "scaling", "scenarios", "trials", "parallel", "witnesses", "examples", "monitor", "once", "outside",
)  # fmt: skip


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """One script of the list of `--outside`."""

    name: str
    folder: str
    script: str
    arguments: list[str] = []
    overrides: list[str] = []
    setup: list[str] = []


class Commands:
    """Runs commands, keeps what they print, and starts none when the time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.failed: list[str] = []
        self.not_run: list[str] = []

    @property
    def left(self) -> float:
        """Seconds in which commands may still be started."""
        return self._end - time.monotonic()

    def call(
        self, name: str, command: Sequence[object], log: Path, *, folder: Path | None = None, cut: bool = False
    ) -> bool:
        """Run a command, and return whether it succeeded; with `cut` it is interrupted when the time is over."""
        if self.left <= 0:
            self.not_run.append(name)
            return False
        words = [str(word) for word in command]
        log.parent.mkdir(parents=True, exist_ok=True)
        _say(f"{name}: {shlex.join(words)}")
        began = time.monotonic()
        with log.open("a") as text:
            text.write(f"$ {shlex.join(words)}\n")
            text.flush()
            interrupted, status = self._wait(words, text.fileno(), folder, self.left if cut else None)
            said = f"exit status {status}, {time.monotonic() - began:.0f} s"
            text.seek(0, 2)
            text.write(f"\n{'interrupted, ' if interrupted else ''}{said}\n")
        _say(f"{name}: {said}; {log}")
        if interrupted:
            self.not_run.append(name)
        elif status:
            self.failed.append(f"{name} (exit status {status})")
        return status == 0

    @staticmethod
    def _wait(words: list[str], output: int, folder: Path | None, seconds: float | None) -> tuple[bool, int]:
        """Return whether the command was interrupted, and its exit status."""
        limit = None if seconds == math.inf else seconds
        with subprocess.Popen(words, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder) as process:
            try:
                return False, process.wait(limit)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                return True, process.wait()


class Evidence:
    """The stages, with one output folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out.absolute()
        self.ranks = list(map(int, options.ranks.split(",")))
        self.world = f"world_size={max(self.ranks)}"
        self.turn = f"launch.turn='{self.out / 'turn'}'"
        self.more = [*options.overrides, self.turn]
        self.more_of_scripts = [*for_scripts(options.overrides), self.turn]
        self.commands = Commands(options.seconds)

    def ceilings(self) -> None:
        """Measure the limits of the node."""
        self._once("ceilings", [*RANKSCOPE, "ceilings", self.world])

    def scaling(self) -> None:
        """Record one sweep per job and batch, in parallel, and write one report per job."""
        jobs = {name: JOBS[name] for name in self.options.models.split(",")}
        points = [
            (f"{name}-{batch}", [*job, f"batch_size={batch}"]) for name, (job, all_) in jobs.items() for batch in all_
        ]
        self._in_parallel(lambda point: self._sweep(*point), points)
        for name, (_, batches) in jobs.items():
            sweeps = [found for batch in batches for found in _sweeps(self.out / "scaling" / f"{name}-{batch}")]
            target = self.out / "scaling" / f"report-{name}"
            if sweeps:
                command = [*RANKSCOPE, "report", *sweeps, "--out", target]
                self.commands.call(f"scaling/report-{name}", command, _log(target))

    def _sweep(self, name: str, overrides: list[str]) -> None:
        folder = self.out / "scaling" / name
        found = _sweeps(folder)
        if found and all(point.status == "completed" for point in SweepDir(found[0]).read().points):
            return
        ranks = ",".join(map(str, self.ranks))
        common = [f"world_size={ranks}", f"repeats={self.options.repeats}", f"name={name}", f"runs_dir='{folder}'"]
        new = ["-m", *overrides, *common, *SHORT, *self.more]
        command = [*RANKSCOPE, "run", *(["--resume", found[0]] if found else new)]
        self.commands.call(f"scaling/{name}", command, _log(folder), cut=True)

    def scenarios(self) -> None:
        """Record the confusion matrix."""
        folder, options = self.out / "scenarios", self.options
        command = [sys.executable, HERE / "scenarios.py", "--out", folder, "--world-size", max(self.ranks)]
        command += ["--repeats", options.repeats, "--jobs", options.jobs, "--seconds", self.commands.left]
        if options.scenarios:
            command += ["--only", options.scenarios]
        command += ["--base", *BASE, *LARGER, *COSTLY, "--", *SHORT, *self.more]
        self._once("scenarios", command)

    def trials(self) -> None:
        """Try the advised overrides of each scenario's expected finding."""
        found = []
        for run in sorted((self.out / "scenarios").glob("*-1")):
            summary = run / "analysis" / "summary.json"
            if not summary.exists():
                continue
            expected = [] if "-fixed-" in run.name else load_config(RunDir(run).config).scenario.finds
            able = [item["id"] for item in json.loads(summary.read_bytes())["findings"] if item["overrides"]]
            found += [(run, item) for item in able if item in expected][:1]
        self._in_parallel(lambda item: self._trial(*item), found)

    def _trial(self, run: Path, finding: str) -> None:
        command = [*RANKSCOPE, "try", run, finding, self.turn, *SHORT]
        self._once(f"trials/{run.name}", command)

    def parallel(self) -> None:
        """Record each way to spread a model, without and with a fault."""
        self._in_parallel(lambda item: self._run(f"parallel/{item[0]}", item[1]), list(self._spread().items()))

    def _spread(self) -> dict[str, list[str]]:
        late = ["+scenario=slow_compute", "scenario.ms=10"]
        common = [self.world, *GPT, *SHORT]
        fsdp = [*common, "batch_size=16", "parallel=fsdp"]
        # Large enough that the GPUs set the pace, also under the profiler.
        tensor = [*common, "batch_size=48", "parallel=tp"]
        pipe = [*common, "batch_size=64", "parallel=pp", "parallel.micro_batches=8"]
        # The host waits for each block, so the next one is gathered only then; few samples, so that this shows.
        waiting = [self.world, "model=gpt", "model.size=xl", "batch_size=2", *SHORT, "+scenario=item_in_loop"]
        return {
            "fsdp": fsdp,
            "fsdp_prefetch": [*fsdp, "parallel.prefetch=2"],
            "fsdp_late": [*fsdp, *late],
            "fsdp_late_prefetch": [*waiting, "parallel=fsdp"],
            "tp": tensor,
            "tp_late": [*tensor, *late],
            **{f"pp_{name}": [*pipe, f"parallel.schedule={name}"] for name in ("gpipe", "1f1b", "interleaved")},
            "pp_late": [*pipe, *late],
            **{kind: self._script(HERE / "spread.py", [f"script_args=[{kind}]", *SHORT]) for kind in SPREAD},
        }

    def witnesses(self) -> None:
        """Record one job under both profilers, unchanged and with 10 ms of products planted on rank 1."""
        common = [self.world, *GPT, "batch_size=16", "passes=[plain,torch,nsys]", *SHORT]
        late = ["+scenario=slow_compute", "scenario.ms=10", *common]
        self._in_parallel(lambda item: self._run(*item), [("witnesses/clean", common), ("witnesses/late", late)])

    def examples(self) -> None:
        """Record each script of examples/."""
        scripts = []
        for path in sorted((HERE.parent / "examples").glob("*.py")):
            if missing := missing_modules(path):
                _say(f"examples/{path.stem}: skipped, {', '.join(missing)} is not installed")
            else:
                scripts.append(path)
        self._in_parallel(lambda path: self._run(f"examples/{path.stem}", self._script(path, EXAMPLE)), scripts)

    def monitor(self) -> None:
        """Watch a healthy and a faulty job; the JSON that benchmarks/monitor.py prints is the result."""
        if max(self.ranks) < 2:
            _say("monitor: skipped, needs two ranks")
            return
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={max(self.ranks)}"]
        for fault in ("none", "compute"):
            target = self.out / "monitor" / f"{fault}.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            options = ["--fault", fault, "--seconds", self.options.monitor_seconds, "--folder", target.parent / "runs"]
            options += ["--out", target, *shlex.split(self.options.monitor_arguments)]
            self._once(f"monitor/{fault}", [*start, HERE / "monitor.py", *options])

    def once(self) -> None:
        """Record what needs a GPU and is not covered by another stage."""
        graphs = [self.world, *BASE, "compile=reduce-overhead", *SHORT]
        stacks = [self.world, *BASE, "+scenario=synchronize", "profile.with_stack=true", *SHORT]
        own = self._script(HERE / "own_cuda_profiler.py", ["passes=[nsys]"])
        runs = [("once/graphs", graphs), ("once/stacks", stacks), ("once/own_cuda_profiler", own)]
        self._in_parallel(lambda item: self._run(*item), runs)
        self._once("once/ncu", [*RANKSCOPE, "ncu", self.out / "once" / "stacks", "--go"])

    def outside(self) -> None:
        """Record the scripts of `--outside`."""
        if self.options.outside is None:
            return
        home = self.options.outside.absolute().parent
        scripts = msgspec.json.decode(self.options.outside.read_bytes(), type=list[Script])
        self._in_parallel(lambda script: self._outside(script, home / script.folder), scripts)

    def _outside(self, script: Script, folder: Path) -> None:
        name = f"outside/{script.name}"
        if script.setup and not self._once(f"{name}.setup", [sys.executable, *script.setup], folder):
            return
        overrides = self._script(Path(script.script), [*SHORT, *script.overrides])
        self._run(name, overrides, arguments=script.arguments, folder=folder)

    def _script(self, path: Path, overrides: list[str]) -> list[str]:
        return [f"script='{path}'", self.world, *overrides]

    def _run(self, name: str, overrides: list[str], arguments: Sequence[str] = (), folder: Path | None = None) -> None:
        """Record a run in FOLDER/name unless it is done; what an interrupted run left gets another name."""
        path = self.out / name
        if (RunDir(path).analysis / "summary.json").exists():
            return
        if path.exists() and self.commands.left > 0:
            path.rename(path.with_name(f"{path.name}.broken-{time.time_ns()}"))
        more = self.more_of_scripts if any(item.startswith("script=") for item in overrides) else self.more
        command = [*RANKSCOPE, "run", *overrides, *more, f"run_dir='{path}'"]
        self.commands.call(name, [*command, "--", *arguments] if arguments else command, _log(path), folder=folder)

    def _once(self, name: str, command: Sequence[object], folder: Path | None = None) -> bool:
        """Run a command unless its log says that it succeeded; return whether it did now or then."""
        log = _log(self.out / name)
        if log.exists() and log.read_text(errors="replace").rstrip().rpartition("\n")[2].startswith("exit status 0,"):
            return True
        return self.commands.call(name, command, log, folder=folder)

    def _in_parallel(self, work: Callable[[Item], None], items: Iterable[Item]) -> None:
        with ThreadPoolExecutor(self.options.jobs) as pool:
            list(pool.map(work, items))


def _say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece, because several threads print


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.log")


def _sweeps(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/sweep.json"))


def for_scripts(overrides: list[str]) -> list[str]:
    """Return the overrides that a run of a script takes."""
    return [item for item in overrides if _is_valid(["script=train.py", item])]


def _is_valid(overrides: list[str]) -> bool:
    try:
        compose(overrides)
    except ConfigError:
        return False
    return True


def missing_modules(path: Path) -> list[str]:
    """Return the modules that a script imports and that are not installed."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names if find_spec(name) is None)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", default="1,2", help="world sizes, separated by commas; scaling needs 1 as the first")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default=",".join(STAGES), help="stages, separated by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start nothing later than this")
    parser.add_argument("--jobs", type=int, default=6, help="runs that start in parallel; with 6 one always measures")
    parser.add_argument("--scenarios", help="names of scenarios, separated by commas; without it all")
    parser.add_argument("--models", default="gpt,mlp", help="models of the scaling sweep, separated by commas")
    parser.add_argument("--monitor-seconds", type=float, default=180)
    parser.add_argument("--monitor-arguments", default="", help="further arguments of benchmarks/monitor.py, in quotes")
    parser.add_argument("--outside", type=Path, help="a list of scripts, see above")
    parser.add_argument("overrides", nargs="*", help="further overrides for every run")
    options = parser.parse_args()
    stages = options.only.split(",")
    if unknown := sorted(set(stages) - set(STAGES)):
        parser.error(f"--only {','.join(unknown)}: no such stage; there are {', '.join(STAGES)}")
    if unknown := sorted(set(options.models.split(",")) - set(JOBS)):
        parser.error(f"--models {','.join(unknown)}: no such model; there are {', '.join(JOBS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    evidence = Evidence(options)
    for stage in stages:
        getattr(evidence, stage)()
    commands = evidence.commands
    for said, names in (("failed", commands.failed), ("not run, because the time was over", commands.not_run)):
        if names:
            _say(f"{said}: {', '.join(names)}")
    return 1 if commands.failed or commands.not_run else 0


if __name__ == "__main__":
    sys.exit(main())
