"""Where the numbers of a watched run go: JSON lines that survive a crash, Parquet, TensorBoard, Prometheus.

Every line is handed to the system at once, in one write, so it stays if the process is killed. Only a crash of the
machine can lose the last seconds.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from rankscope.conf.contract import RANGES
from rankscope.conf.files import replacing
from rankscope.conf.monitor_dir import MonitorRankDir
from rankscope.harness.record.recording import one_line

log = logging.getLogger("rankscope.monitor")
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("start_ns", pa.int64()),
        *((f"{name}_ms", pa.float64()) for name in ("step", *RANGES)),
        ("host_ms", pa.float64()),
        ("samples", pa.int64()),
        ("memory_peak_bytes", pa.int64()),
        ("first_of_epoch", pa.bool_()),
        ("traced", pa.bool_()),
    ]
)


class Lines:
    """A file of JSON lines; each call appends complete lines in one write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, *values: Any) -> None:
        if values:
            os.write(self._file, b"".join(msgspec.json.encode(value) + b"\n" for value in values))

    def close(self) -> None:
        os.close(self._file)


class StepFiles:
    """The steps of one rank in parts: JSON lines while a part grows, Parquet once it is full."""

    def __init__(self, folder: MonitorRankDir, part_steps: int) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._part_steps = part_steps
        self._lines: Lines | None = None
        self._count = 0
        self._packing: threading.Thread | None = None

    def write(self, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if self._lines is None:
            self._lines = Lines(self._folder.part(rows[0]["step"]))
        self._lines.write(*rows)
        self._count += len(rows)
        if self._count >= self._part_steps:
            self._end_part()

    def close(self) -> None:
        """Pack what is left; returns when it is written."""
        if self._packing is not None:
            self._packing.join()
        if self._lines is not None:
            self._lines.close()
            pack(self._lines.path)  # not in a thread: none can be started while the interpreter ends
            self._lines = None

    def _end_part(self) -> None:
        assert self._lines is not None  # `write` has just used it
        self._lines.close()
        if self._packing is not None:
            self._packing.join()
        self._packing = threading.Thread(target=pack, args=(self._lines.path,), name="rankscope-pack")
        self._packing.start()
        self._lines, self._count = None, 0


def pack(path: Path) -> None:
    """Turn JSON lines into Parquet; removes the lines once the Parquet file is complete."""
    options = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    table = pyarrow.json.read_json(path, parse_options=options)
    with replacing(path.with_suffix(".parquet")) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    path.unlink()


class Sink(Protocol):
    """A further place for statistics and events."""

    def stats(self, stats: dict[str, Any]) -> None: ...

    def event(self, event: dict[str, Any], text: str) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """The statistics as scalars, by step."""

    def __init__(self, folder: Path, rank: int) -> None:
        from tensorboardX import SummaryWriter  # an extra

        self._writer = SummaryWriter(str(folder / f"rank{rank}"))

    def stats(self, stats: dict[str, Any]) -> None:
        for name, value in stats.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(f"monitor/{name}", value, stats["step"])

    def event(self, event: dict[str, Any], text: str) -> None:
        self._writer.add_text(f"monitor/{event['event']}", text, event["step"])

    def close(self) -> None:
        self._writer.close()


class Prometheus:
    """The statistics as metrics on a port, with this rank as a label."""

    def __init__(self, port: int, rank: int) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server  # an extra

        registry = CollectorRegistry()
        self._rank = str(rank)
        self._gauges = {
            name: Gauge(f"rankscope_{name}", text, ["rank"], registry=registry)
            for name, text in (
                ("step_ms_p50", "Median step of the rolling window, milliseconds"),
                ("step_ms_p95", "95th percentile of the step, milliseconds"),
                ("step_ms_p99", "99th percentile of the step, milliseconds"),
                ("data_wait_ms", "Mean wait for the loader in a step, milliseconds"),
                ("samples_per_s", "Samples of this rank per second"),
                ("memory_peak_bytes", "Most memory allocated on the device"),
                ("step", "Last step"),
            )
        }
        self._late = Gauge("rankscope_late_rank", "The rank that is late, -1 for none", registry=registry)
        self._late.set(-1)
        self._events = Counter("rankscope_events", "Events of the monitor", ["event"], registry=registry)
        self._server, self._thread = start_http_server(port, registry=registry)

    def stats(self, stats: dict[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            if stats.get(name) is not None:
                gauge.labels(self._rank).set(stats[name])

    def event(self, event: dict[str, Any], text: str) -> None:
        self._events.labels(event["event"]).inc()
        if event["event"] in ("late_rank", "recovered"):
            self._late.set(event["rank"] if event["event"] == "late_rank" else -1)

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_sinks(tensorboard: Path | None, port: int | None, rank: int) -> list[Sink]:
    """Open the sinks that are asked for; one that cannot be opened is only logged."""
    makers: list[Callable[[], Sink]] = []
    if tensorboard is not None:
        makers.append(lambda: TensorBoard(tensorboard, rank))
    if port is not None:
        makers.append(lambda: Prometheus(port, rank))
    sinks: list[Sink] = []
    for make in makers:
        try:
            sinks.append(make())
        except (OSError, ImportError) as error:  # such as a port in use, or a missing package
            log.warning("rankscope: %s", one_line(error))
    return sinks
