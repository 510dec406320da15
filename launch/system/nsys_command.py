"""Nsight Systems around one rank: which ranks it records, and the command line."""

import sys
from collections.abc import Mapping
from pathlib import Path

from rankscope.conf import ConfigError, RankDir, RunConfig, RunDir, nsys_tool
from rankscope.conf.contract import CAPTURE

PASS = "nsys"


def program(config: RunConfig) -> Path:
    """Return the nsys to use; raises `ConfigError` if there is none."""
    if config.nsys.program is not None:
        path = Path(config.nsys.program)
        if not path.is_file():
            raise ConfigError(f"nsys.program={path}: does not exist; set it to null to look for nsys")
        return path
    found = nsys_tool.find()
    if found is None:
        raise ConfigError(
            "passes=[nsys]: nsys is neither on PATH nor next to CUDA or Nsight Compute; install Nsight Systems "
            "(docs/nsys.md says how), or remove the pass"
        )
    return found


def is_profiled(config: RunConfig, rank: int, local_rank: int) -> bool:
    """Whether nsys records this rank."""
    ranks = config.nsys.ranks
    return local_rank == 0 if ranks == "one_per_host" else ranks == "all" or rank in ranks


def rank_command(run_dir: RunDir, name: str) -> list[str]:
    """Return the command of one rank without a profiler."""
    return [sys.executable, "-P", "-m", "rankscope.harness", str(run_dir.path), name]


def profile_command(
    nsys: Path, config: RunConfig, rank_dir: RankDir, session: str, *, cuda: bool, command: list[str]
) -> list[str]:
    """Return `command` under nsys, which records the window only and lets the rank run on.

    `--capture-range-end=stop`, because the default ends the job. `--cuda-graph-trace=node`, because otherwise the
    kernels of CUDA graphs are not recorded.
    """
    traces = [trace for trace in config.nsys.traces if cuda or trace != "cuda"]
    if cuda:
        window = ["--capture-range=cudaProfilerApi", "--cuda-graph-trace=node"]
    else:
        window = ["--capture-range=nvtx", f"--nvtx-capture={CAPTURE}"]
    return [
        str(nsys),
        "profile",
        f"--trace={','.join(traces)}",
        *("--sample=none", "--cpuctxsw=none"),
        *window,
        "--capture-range-end=stop",
        *(["--osrt-threshold=10000"] if "osrt" in traces else []),
        *("--force-overwrite=true", f"--session-new={session}"),
        *("-o", str(rank_dir.nsys_report.with_suffix(""))),
        *config.nsys.extra_args,
        *command,  # without "--" before it, which 2023.4 takes for an option
    ]


def sees_gpu(environment: Mapping[str, object], config: RunConfig) -> bool:
    """Whether the ranks compute on GPUs, according to environment.json."""
    torch = environment.get("torch")
    devices = torch.get("devices") if isinstance(torch, dict) else None
    return config.device != "cpu" and bool(devices)
