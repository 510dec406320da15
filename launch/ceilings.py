"""`rankscope ceilings`: measures the best rates of this node once, keeps them in the user's cache, and prints them.

In: overrides as for `rankscope run` (world_size, device, backend). Out: one JSON file per host, device type, backend
and number of ranks, which `rankscope analyze` finds for runs on this node.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rankscope.conf import ConfigError, RunConfig, save_config
from rankscope.conf.contract import OK
from rankscope.conf.files import write_json
from rankscope.conf.host import host_name
from rankscope.conf.user_cache import cache_folder, path_for
from rankscope.launch.cli import overrides_only, run_command
from rankscope.launch.configure.compose import compose
from rankscope.launch.configure.preflight import refuse
from rankscope.launch.system.environment import usable_cores
from rankscope.launch.system.processes import MARK, Stop, end, mark, start
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import TorchFacts, torch_facts

_GRACE_S = 5.0
_HINT = "set XDG_CACHE_HOME to a folder you may write"


@click.command("rankscope ceilings", context_settings={"ignore_unknown_options": True})
@click.option("--again", is_flag=True, help="Measure again, although there is a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print the file instead of tables.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
def ceilings(again: bool, as_json: bool, words: tuple[str, ...]) -> int:
    """Measure what this node can do, over the process group that training would use.

    Measured are all-reduce, reduce-scatter, all-gather and broadcast by size; copies to and on the device and in the
    host's memory; matrix products by arithmetic; the time to launch an operator. It takes a minute. The result is kept
    in the user's cache, where `rankscope analyze` finds it for runs on this node.

    \b
      rankscope ceilings                    as many ranks as there are GPUs (CPU: 2)
      rankscope ceilings world_size=4 backend=gloo device=cpu
    """
    overrides = overrides_only(words, ["--again", "--json", "--help"])
    with Stop() as stop:
        facts = torch_facts()
        config = _config(overrides, facts)
        refuse(config, facts)
        path = _path(config, facts)
        if again or not path.exists():
            _measure(config, path, stop)
        _print(path, as_json=as_json)
        return OK


def main(argv: Sequence[str]) -> int:
    """Measure or read the rates and print them; returns 0, 2 refused or failed, 130 or 143 interrupted."""
    return run_command(ceilings, argv, hint=_HINT, prefix="rankscope ceilings")


def _config(overrides: Sequence[str], facts: TorchFacts) -> RunConfig:
    named = any(item.startswith("world_size=") for item in overrides)
    on_cpu = "device=cpu" in overrides or not facts.devices
    return compose([*([] if named else [f"world_size={2 if on_cpu else len(facts.devices)}"]), *overrides])


def _path(config: RunConfig, facts: TorchFacts) -> Path:
    """Return the file for these settings; `analysis` builds the same path from rank.json."""
    on_cpu = config.device == "cpu" or not facts.devices
    device = "cpu" if on_cpu else str(facts.devices[0]["name"])
    backend = config.backend if config.backend != "auto" else "gloo" if on_cpu else "nccl"
    return path_for(cache_folder(), host_name(), device, backend, config.world_size)


def _measure(config: RunConfig, path: Path, stop: Stop) -> None:
    """Start the ranks, wait for them, and move the result to `path`; leaves no process."""
    say(f"measuring with {config.world_size} rank{'s' if config.world_size > 1 else ''}; use an idle machine")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="rankscope-ceilings-"))
    try:
        save_config(config, folder / "config.yaml")
        threads = str(config.threads or max(1, usable_cores() // config.world_size))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, MARK: mark(folder)}
        with (folder / "ranks.log").open("wb") as log:
            process = start(_command(config, folder), environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = stop.wait(process)
        finally:
            end(process, folder, _GRACE_S)
        result = folder / "ceilings.json"
        if status or not result.exists():
            lines = (folder / "ranks.log").read_text(errors="replace").splitlines()
            said = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "no output")
            raise ConfigError(f"the ranks ended with exit status {status}: {said.strip()}")
        write_json(path, json.loads(result.read_text()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(config: RunConfig, folder: Path) -> list[str]:
    return [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.world_size}", "--max-restarts=0"),
        *("-m", "rankscope.harness.ceilings", str(folder)),
    ]


_HEADS = {
    "allreduce": "all-\nreduce",
    "broadcast": "broad-\ncast",
    "reducescatter": "reduce-\nscatter",
    "allgather": "all-\ngather",
    "alltoall": "all-\nto-all",
    "sendrecv": "send,\nreceive",
}


def _size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} B"


def _print(path: Path, *, as_json: bool) -> None:
    found: dict[str, Any] = json.loads(path.read_text())
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console(highlight=False)
    ranks, backend = found["world_size"], found["backend"]
    console.print(
        f"{found['host']}: {ranks} x {found['device']}, {backend}, measured {found['measured']}", style="bold"
    )
    if found["collectives"]:
        table = Table(title="Bus bandwidth, GB/s; below it us a call", title_justify="left", box=None)
        table.add_column("bytes", justify="right")
        for kind in found["collectives"]:
            table.add_column(_HEADS.get(kind, kind), justify="right")
        for rows in zip(*found["collectives"].values(), strict=True):
            table.add_row(_size(max(row[0] for row in rows)), *(f"{row[2]:.3g}\n{row[1]:,.0f}" for row in rows))
        console.print(table)
    rates = {
        "host to device, pinned": found["h2d_pinned_GBs"],
        "host to device, pageable": found["h2d_pageable_GBs"],
        "device to device, read + written": found["d2d_GBs"],
        "host memory, read + written": found["host_GBs"],
    }
    for name, rate in rates.items():
        if rate is not None:
            console.print(f"{name:<34} {rate:10.4g} GB/s")
    for name, rate in found["matmul_TFLOPs"].items():
        console.print(f"{'matrix product, ' + name:<34} {rate:10.4g} TFLOP/s")
    console.print(f"{'launching an operator':<34} {found['launch_us']:10.4g} us")
    console.print(f"\n{path}", soft_wrap=True)
