"""The sink for MLflow: one run per run or point, with metrics, images, parameters and results."""

import os
import tempfile
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.export.by_step import BySteps
from rankscope.analysis.export.sink import Setting

_BATCH = 1000  # metrics that a server takes at once; of parameters it takes 100
_PARAMETERS = 100
_LONGEST = 6000  # characters of a parameter


class Mlflow:
    """A run of MLflow, in the experiment of `MLFLOW_EXPERIMENT_NAME` or `rankscope`."""

    def __init__(self, uri: str | None, group: str, name: str) -> None:
        try:
            self._client = MlflowClient(tracking_uri=uri)
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rankscope")
            found = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run = self._client.create_run(number, run_name=name, tags={"rankscope.recording": group})
        except MlflowException as error:
            told = textwrap.shorten(str(error).splitlines()[0], 300, placeholder=" ...")
            raise AnalysisError(
                f"mlflow: {told} Give the address of a server (--uri), install the complete mlflow, or set "
                "MLFLOW_ALLOW_FILE_STORE=true for a folder"
            ) from None
        self._id = run.info.run_id
        self._scalars = BySteps()

    def scalar(self, name: str, rank: int, step: int, value: float) -> None:
        self._scalars.add(name, rank, step, value)

    def image(self, name: str, step: int, png: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
            path = Path(folder) / f"{name.replace('/', '_')}.png"
            path.write_bytes(png)
            self._client.log_artifact(self._id, str(path), "images")

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        parameters = [Param(key, str(value)[:_LONGEST]) for key, value in settings.items()]
        for first in range(0, len(parameters), _PARAMETERS):
            self._client.log_batch(self._id, params=parameters[first : first + _PARAMETERS])
        now = _now()
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, 0) for name, value in results.items()])

    def close(self) -> None:
        """Write the steps and end the run."""
        now = _now()
        metrics = [
            Metric(name, value, now, step) for step, values in self._scalars.rows() for name, value in values.items()
        ]
        for first in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._id, metrics=metrics[first : first + _BATCH])
        self._client.set_terminated(self._id)


def _now() -> int:
    return int(time.time() * 1000)
