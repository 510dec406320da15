"""The table of formats that a watched run is written in.

To add one, write a module with a `Sink` and `open_sink`, list it in `_FORMATS`, and add an option of `Monitor`.
"""

import logging
from collections.abc import Callable

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.describe import one_line
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks import mlflow, prometheus, tensorboard, wandb
from rankscope.harness.watch.sinks.files import Files
from rankscope.harness.watch.sinks.guarded import Guarded
from rankscope.harness.watch.sinks.sink import Sink

log = logging.getLogger("rankscope.monitor")
_FORMATS: tuple[Callable[[Options, MonitorDir, RankContext], Sink | None], ...] = (
    tensorboard.open_sink,
    prometheus.open_sink,
    wandb.open_sink,
    mlflow.open_sink,
)


def open_sinks(options: Options, folder: MonitorDir, context: RankContext) -> list[Sink]:
    """Open the files of the run and each format that the options ask for; log a format that cannot be opened."""
    sinks: list[Sink] = [Files(folder, context.rank, options.part_steps)]
    for open_sink in _FORMATS:
        try:
            sink = open_sink(options, folder, context)
        except (OSError, ImportError) as error:  # such as a port in use, or a missing package
            log.warning("rankscope: %s", one_line(error))
            continue
        if sink is not None:
            sinks.append(Guarded(open_sink.__module__.rpartition(".")[2], sink))
    return sinks
