"""MLflow, live: one run for the job, written by rank 0, with the statistics of every rank."""

import os
import time

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks.guarded import Background
from rankscope.harness.watch.sinks.rank_metrics import RankMetrics, needed
from rankscope.harness.watch.sinks.sink import Sink


def open_sink(options: Options, folder: MonitorDir, context: RankContext) -> Sink | None:
    """Return the sink on rank 0, None elsewhere or if the options do not ask for it."""
    asked = options.mlflow
    if not asked or context.rank != 0:
        return None
    needed("mlflow")
    uri = asked if isinstance(asked, str) else None
    return Background("mlflow", lambda: Mlflow(uri, folder.path.name, context.world_size))


class Mlflow(RankMetrics):
    """A run of its own. It uses a client, so that the active run of the job stays what it is."""

    def __init__(self, uri: str | None, name: str, world_size: int) -> None:
        from mlflow import MlflowClient  # an extra
        from mlflow.entities import Metric

        self._metric = Metric
        self._client = MlflowClient(tracking_uri=uri)  # None: MLFLOW_TRACKING_URI, or MLflow's default
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rankscope")
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._run = self._client.create_run(number, run_name=name).info.run_id
        self._client.log_param(self._run, "world_size", world_size)

    def last_event(self, text: str) -> None:
        self._client.set_tag(self._run, "last_event", text)

    def close(self) -> None:
        self._client.set_terminated(self._run)

    def log(self, step: int, values: dict[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in values.items()]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)
