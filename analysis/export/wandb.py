"""The sink for Weights & Biases: one run per run or point, with scalars, images, settings and results."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.export.by_step import BySteps
from rankscope.analysis.export.sink import Setting


class Wandb:
    """A run of W&B; the mode (`WANDB_MODE`), host and key are those of wandb. Raises `AnalysisError` without a key."""

    def __init__(self, project: str | None, group: str, name: str, folder: Path) -> None:
        try:
            refused = wandb.setup().settings.mode == "online" and not wandb.login(prompt=False)
        except (wandb.Error, ValueError) as error:
            raise AnalysisError(f"wandb: {str(error).splitlines()[0][:300]}") from None
        if refused:
            raise AnalysisError("wandb has no API key; run `wandb login`, or set WANDB_MODE=offline")
        self._files = folder / "wandb"  # as wandb calls it
        self._files.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=project, group=group, name=name, job_type="rankscope", dir=str(folder), reinit="create_new",
                settings=wandb.Settings(console="off", save_code=False, disable_git=True),
            )  # fmt: skip
        except (wandb.Error, ValueError) as error:
            raise AnalysisError(f"wandb: {str(error).splitlines()[0][:300]}") from None
        self._scalars = BySteps()
        self._images: dict[str, Any] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="rankscope-")

    def scalar(self, name: str, rank: int, step: int, value: float) -> None:
        self._scalars.add(name, rank, step, value)

    def image(self, name: str, step: int, png: bytes) -> None:
        path = Path(self._folder.name) / f"{len(self._images)}.png"
        path.write_bytes(png)
        self._images[name] = wandb.Image(str(path))

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        self._run.config.update(dict(settings))
        self._run.summary.update(dict(results))

    def close(self) -> None:
        """Write the steps in their order, which wandb asks for, and end the run."""
        for step, values in self._scalars.rows():
            self._run.log(values, step=step)
        if self._images:
            self._run.log(self._images)
        self._run.finish()
        self._folder.cleanup()
        for path in self._files.rglob("*"):
            if path.is_symlink():  # to the latest run and its logs; commands refuse to write where links are
                path.unlink()
