"""The definition of a run and its files: the schema, the run folder, the command table, and the YAML groups."""

from rankscope.conf.messages import ConfigError
from rankscope.conf.run_dir import LAYOUT_VERSION, PassDir, RankDir, RunDir, RunDirError
from rankscope.conf.schema import RunConfig, load_config, parse_config, save_config

__all__ = [
    "LAYOUT_VERSION",
    "ConfigError",
    "PassDir",
    "RankDir",
    "RunConfig",
    "RunDir",
    "RunDirError",
    "load_config",
    "parse_config",
    "save_config",
]
