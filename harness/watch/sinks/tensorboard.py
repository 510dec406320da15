"""TensorBoard, live: the statistics as scalars by step, events as text."""

from pathlib import Path
from typing import Any

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks.sink import Sink


def open_sink(options: Options, folder: MonitorDir, context: RankContext) -> Sink | None:
    """Return the sink, None if the options do not ask for it."""
    return TensorBoard(folder.tensorboard, context.rank) if options.tensorboard else None


class TensorBoard:
    """A log folder of one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        from tensorboardX import summary  # an extra

        from rankscope.conf.event_file import EventFile

        self._summary = summary
        self._file = EventFile(folder / f"rank{rank}")

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Ignore single steps: the statistics of the window say enough."""

    def stats(self, stats: dict[str, Any]) -> None:
        for name, value in stats.items():
            if name != "step" and value is not None:
                self._file.write(self._summary.scalar(f"monitor/{name}", value), stats["step"])

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        """Ignore the other ranks: each writes its own."""

    def event(self, event: dict[str, Any], text: str) -> None:
        self._file.write(self._summary.text(f"monitor/{event['event']}", text), event["step"])

    def close(self) -> None:
        self._file.close()
