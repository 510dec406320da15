"""`rankscope ncu RUN`: Nsight Compute on the heaviest kernels of one rank; prints the command, or runs it.

In: an analysed run folder. Out: a command that runs one rank's share of the job under ncu; with `--go`, also the result
as `analysis/tables/ncu.parquet`. Nsight Compute replays each kernel many times, so its times are not step times. It
needs permission to read performance counters.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.conf import ConfigError, RunDir, load_config, save_config
from rankscope.conf.contract import OK
from rankscope.conf.files import write_parquet
from rankscope.launch.cli import run_command
from rankscope.launch.ncu.output import METRICS, base_name, kernel_of, lines_of, metrics_here, read_csv
from rankscope.launch.system import ncu_tool
from rankscope.launch.system.terminal import say


@click.command("rankscope ncu")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--top", default=5, show_default=True, help="How many of the heaviest kernels.")
@click.option("--rank", default=0, show_default=True, help="Whose kernels.")
@click.option("--launches", default=3, show_default=True, help="How many launches of each kernel.")
@click.option("--go", is_flag=True, help="Run the command here instead of printing it.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Read this CSV of ncu instead of running it.")
def ncu(run: Path, top: int, rank: int, launches: int, go: bool, csv_file: Path | None) -> int:
    """Look at the heaviest kernels of one rank of RUN with Nsight Compute."""
    run_dir = RunDir(run)
    kernels = heaviest(run_dir, rank, top)
    prepare(run_dir)
    listed = _listed() if go and csv_file is None else None
    command = command_of(run_dir, kernels, launches, metrics_here(listed))
    if csv_file is not None:
        text = csv_file.read_text(errors="replace")
    elif not go:
        print(shlex.join(command))
        say("only printed; --go runs it here, --csv FILE reads its output")
        return OK
    else:
        if ncu_tool.find() is None:
            raise ConfigError("ncu is not on PATH; install Nsight Compute, or run the printed command elsewhere")
        text = _run(command)
    rows = read_csv(text)
    if not rows:
        said = "ncu's output" if csv_file is None else f"{csv_file}:"
        raise ConfigError(f"{said} holds no kernel; ncu needs --csv and permission to read counters (ERR_NVGPUCTRPERM)")
    for row in rows:
        row["kernel"] = kernel_of(row["name"], kernels)
    _write(run_dir, rows)
    print("\n".join(lines_of(rows, kernels)))
    return OK


def main(argv: list[str]) -> int:
    return run_command(ncu, argv, hint="give another path", prefix="rankscope ncu")


def heaviest(run_dir: RunDir, rank: int, top: int) -> list[str]:
    """Return the names of a rank's kernels with the most device time, without collectives and copies."""
    path = run_dir.analysis / "tables" / "kernels_by_name.parquet"
    if not path.exists():
        raise ConfigError(f"{path}: does not exist; run rankscope analyze {run_dir.path}")
    try:
        rows = pq.read_table(path, columns=["rank", "class", "name", "total_ns"]).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise ConfigError(f"{path}: cannot be read ({error}); run rankscope analyze {run_dir.path}") from None
    own = [row for row in rows if row["rank"] == rank and row["class"] not in ("communication", "copy")]
    if not own:
        raise ConfigError(f"{path}: no kernels of rank {rank}; Nsight Compute needs a run on a GPU")
    return [row["name"] for row in sorted(own, key=lambda row: -row["total_ns"])[:top]]


def command_of(run_dir: RunDir, kernels: Sequence[str], launches: int, metrics: Sequence[str]) -> list[str]:
    """Return the command that profiles these kernels in a job like the run's, as one process on one GPU.

    The window is that of the nsys pass: one step after warm-up. ncu counts launches separately for each kernel and
    grid, because one function name stands for many kernels, and those that fill new memory come first.
    """
    bases = sorted({base_name(name) for name in kernels})
    pattern = "regex:^(" + "|".join(map(re.escape, bases)) + ")$"
    program = str(ncu_tool.find() or "ncu")
    return [
        program,
        *("--csv", "--page", "raw", "--kernel-name-base", "function", "--kernel-name", pattern),
        *("--filter-mode", "per-launch-config", "--launch-count", str(launches), "--metrics", ",".join(metrics)),
        *("--target-processes", "all", "--profile-from-start", "off"),
        *("--clock-control", "none"),  # keep the clocks of the job, and do not slow down other jobs
        *(sys.executable, "-m", "rankscope.harness", str(run_dir.ncu), "nsys"),
    ]


def prepare(run_dir: RunDir) -> None:
    """Write the configuration of the job that ncu runs: one rank's share in one process without DDP, for a few steps.

    With several ranks, a kernel that is replayed on one would leave the others waiting in collectives.
    """
    config = load_config(run_dir.config)
    if config.script is not None:
        raise ConfigError(
            f"{run_dir.path}: is a run of {config.script}; rankscope ncu needs a run of a reference model"
        )
    alone = msgspec.structs.replace(
        config,
        world_size=1,
        batch_size=config.rank_batch_size,
        global_batch_size=None,
        profile=msgspec.structs.replace(config.profile, wait=0, warmup=2, active=1, repeat=1),
        passes=["nsys"],
        ddp=msgspec.structs.replace(config.ddp, enabled=False),
        launch=type(config.launch)(),
        scenario=type(config.scenario)(),
    )
    run_dir.ncu.mkdir(exist_ok=True)
    save_config(alone, run_dir.ncu / run_dir.config.name)


def _listed() -> str | None:
    """Return ncu's list of metrics for the GPU of this machine, or None."""
    program = ncu_tool.find()
    if program is None:
        return None
    done = subprocess.run([program, "--query-metrics"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise ConfigError(f"ncu ended with exit status {done.returncode}: {said[-1] if said else 'no output'}")
    return done.stdout


def _write(run_dir: RunDir, rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        [("name", pa.string()), ("kernel", pa.string()), *((name, pa.float64()) for name in METRICS.values())]
    )
    write_parquet(run_dir.analysis / "tables" / "ncu.parquet", pa.Table.from_pylist(rows, schema=schema))
