"""Prometheus, live: the statistics as metrics on a port of each rank."""

from typing import Any

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks.sink import Sink


def open_sink(options: Options, folder: MonitorDir, context: RankContext) -> Sink | None:
    """Return the sink, None if the options do not ask for it. The ranks of a host use ports one after another."""
    port = options.prometheus_port
    return None if port is None else Prometheus(port + context.local_rank, context.rank)


class Prometheus:
    """Serves metrics on a port, with this rank as a label."""

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
                ("memory_peak_bytes", "Peak memory allocated on the device"),
                ("step", "Last step"),
            )
        }
        self._late = Gauge("rankscope_late_rank", "The late rank, -1 if there is none", registry=registry)
        self._late.set(-1)
        self._events = Counter("rankscope_events", "Events of the monitor", ["event"], registry=registry)
        self._server, self._thread = start_http_server(port, registry=registry)

    def steps(self, lines: list[dict[str, Any]]) -> None:
        """Ignore single steps: the statistics of the window say enough."""

    def stats(self, stats: dict[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            if stats.get(name) is not None:
                gauge.labels(self._rank).set(stats[name])

    def ranks(self, step: int, stats: list[dict[str, float]]) -> None:
        """Ignore the other ranks: each writes its own."""

    def event(self, event: dict[str, Any], text: str) -> None:
        self._events.labels(event["event"]).inc()
        if event["event"] in ("late_rank", "recovered"):
            self._late.set(event["rank"] if event["event"] == "late_rank" else -1)

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
