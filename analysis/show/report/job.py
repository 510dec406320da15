"""Says what was run: job, batch, ranks and devices, versions, time. Input: the `Analysis`. Output: pairs of text."""

import datetime
from pathlib import Path
from typing import Any

from rankscope.analysis.core.json import Json
from rankscope.analysis.read.run_settings import rank_infos
from rankscope.analysis.result import Analysis
from rankscope.conf import ConfigError, RunConfig, RunDir, load_config
from rankscope.conf.files import read_json

_PROFILERS = {"nsys": "Nsight Systems", "kineto": "torch.profiler"}

Pairs = list[tuple[str, str]]


def what_was_run(analysis: Analysis, summary: Json) -> Pairs:
    """Return name and value of what identifies the job, as far as the recording says it."""
    run_dir = analysis.run_dir
    config = None if run_dir is None else _config(run_dir)
    found: dict[str, Any] = _recorded(analysis)
    if run_dir is not None and config is not None:
        found = {"Job": _job(config), "Batch": _batch(config, run_dir)} | found
        found |= {"Arithmetic": None if config.script else config.precision.name}
    found |= {"Ranks": _ranks(analysis, summary)}
    machine = {} if run_dir is None else machine_of(run_dir)
    found |= {"Versions": _versions(machine), "Recorded": None if run_dir is None else _when(run_dir)}
    return [(name, str(value)) for name, value in found.items() if value]


def machine_of(run_dir: RunDir) -> dict[str, Any]:
    """Return the machine and the versions that a run recorded; empty if its file cannot be read."""
    try:
        found = read_json(run_dir.environment)
        torch, gpus, cpu = found.get("torch") or {}, found.get("gpus") or [], found.get("cpu") or {}
        return {
            "host": found.get("host"),
            "CPU": f"{cpu.get('model')}, {cpu.get('usable')} cores" if cpu.get("model") else None,
            "GPUs": f"{len(gpus)} x {gpus[0].get('name')}, driver {gpus[0].get('driver')}" if gpus else None,
            "torch": torch.get("version"),
            "CUDA": torch.get("cuda"),
            "NCCL": torch.get("nccl"),
            "Nsight Systems": found.get("nsys"),
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _config(run_dir: RunDir) -> RunConfig | None:
    try:
        return load_config(run_dir.config)
    except ConfigError:
        return None  # the summary reports this


def _job(config: RunConfig) -> str:
    if config.script is not None:
        return " ".join([Path(config.script).name, *config.script_argv])
    size = "" if config.model.size == "auto" else f", size {config.model.size}"
    return f"{config.mode} {config.model.name}{size}{', compiled' if config.compile != 'off' else ''}"


def _batch(config: RunConfig, run_dir: RunDir) -> str | None:
    """Return the samples of a rank and of all ranks in one step."""
    if config.script is None:
        micro = f", {config.gradient_accumulation} micro-steps" if config.gradient_accumulation > 1 else ""
        return f"{config.rank_batch_size} per rank{micro}, {config.samples_per_step} per step"
    counts = [info.get("samples_per_step") for info in rank_infos(run_dir)]
    known = [count for count in counts if isinstance(count, int | float)]
    if not known or len(known) < len(counts):
        return None
    each = f"{known[0]:g} per rank, " if len(set(known)) == 1 else ""
    return f"{each}{sum(known):g} per step"


def _recorded(analysis: Analysis) -> dict[str, Any]:
    """Return what was read, for traces that are not a run of rankscope."""
    if analysis.run_dir is not None or not analysis.ranks:
        return {}
    files = [name for data in analysis.ranks for name in data.files]
    profiler = _PROFILERS.get(analysis.ranks[0].source, analysis.ranks[0].source)
    return {"Traces": f"{len(files)} file{'s' if len(files) != 1 else ''} of {profiler}"}


def _ranks(analysis: Analysis, summary: Json) -> str:
    count = summary["world_size"]
    text = f"{'' if analysis.size_stated else 'at least '}{count} rank{'s' if count != 1 else ''}"
    infos = [] if analysis.run_dir is None else rank_infos(analysis.run_dir)
    names = {info["device_name"] for info in infos if isinstance(info.get("device_name"), str)}
    names |= {data.model.name for data in analysis.ranks if data.model is not None and data.model.name}
    where = ", ".join(sorted(names)[:3]) or ("" if not analysis.ranks or analysis.on_gpu else "CPU")
    hosts = {info["host"] for info in infos if isinstance(info.get("host"), str)}
    return text + (f" on {where}" if where else "") + (f", {len(hosts)} hosts" if len(hosts) > 1 else "")


def _versions(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {machine[name]}" for name in ("torch", "CUDA", "NCCL") if machine.get(name))


def _when(run_dir: RunDir) -> str | None:
    """Return when the run began and how long it took."""
    try:
        record = read_json(run_dir.record)
        begin = datetime.datetime.fromisoformat(record["start"])
        text = f"{begin:%Y-%m-%d %H:%M} UTC"
        if isinstance(record.get("end"), str):
            seconds = (datetime.datetime.fromisoformat(record["end"]) - begin).total_seconds()
            text += f", {seconds:.0f} s with all passes" if 0 <= seconds < 1e7 else ""
        return text
    except (OSError, ValueError, KeyError, TypeError):
        return None
