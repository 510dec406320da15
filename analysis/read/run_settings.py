"""Reads what a run folder says about its job: the settings, and each rank's `rank.json`."""

from collections.abc import Sequence
from typing import Any

from rankscope.analysis.read.rank_info import read_rank_info
from rankscope.conf import ConfigError, RunConfig, RunDir, load_config
from rankscope.conf.contract import PASSES


def config_of(run_dir: RunDir) -> RunConfig | None:
    """Return the settings of a run of the reference model; None if unreadable or if a script determined them."""
    try:
        config = load_config(run_dir.config)
    except ConfigError:
        return None  # the summary reports this
    return config if config.script is None else None


def rank_infos(run_dir: RunDir, passes: Sequence[str] = PASSES) -> list[dict[str, Any]]:
    """Return rank.json of every rank of the first pass that has them."""
    for name in passes:
        infos = []
        for rank_dir in run_dir.for_pass(name).ranks():
            try:
                infos.append(read_rank_info(rank_dir))
            except (OSError, ValueError):
                break
        if infos:
            return infos
    return []
