"""The TensorBoard sink: one folder per run, with scalars, images and hparams."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.image import imread
from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from rankscope.analysis.export.sink import Setting


class TensorBoard:
    """A log folder of TensorBoard. Replaces what an earlier export wrote there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = SummaryWriter(str(folder))

    def scalar(self, name: str, rank: int, step: int, value: float) -> None:
        self._writer.add_scalar(f"{name}/rank_{rank}", value, step)

    def image(self, name: str, step: int, png: bytes) -> None:
        pixels = np.asarray(imread(BytesIO(png))[..., :3] * 255).astype(np.uint8)
        self._writer.add_image(name, pixels, step, dataformats="HWC")

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        # `add_hparams` would show them as a separate run.
        for record in hparams(dict(settings), dict(results)):
            self._writer.file_writer.add_summary(record)
        for name, value in results.items():
            self._writer.add_scalar(name, value)

    def close(self) -> None:
        self._writer.close()
