"""What a run folder says about its job: its settings, and what each rank wrote about itself."""

from typing import Any

from rankscope.conf import ConfigError, RunConfig, RunDir, load_config
from rankscope.conf.files import read_json


def config_of(run_dir: RunDir) -> RunConfig | None:
    """Return the settings of a run of the reference model; None if they are unreadable or a script decided them."""
    try:
        config = load_config(run_dir.config)
    except ConfigError:
        return None  # the summary says so
    return config if config.script is None else None


def rank_infos(run_dir: RunDir, passes: tuple[str, ...] = ("plain", "torch", "light", "nsys")) -> list[dict[str, Any]]:
    """Return rank.json of every rank of the first pass that has them."""
    for name in passes:
        infos = []
        for rank_dir in run_dir.for_pass(name).ranks():
            try:
                infos.append(read_json(rank_dir.info))
            except (OSError, ValueError):
                break
        if infos:
            return infos
    return []
