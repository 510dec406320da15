"""The TensorBoard sink: one folder per run, with scalars, images and hparams."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.image import imread
from tensorboardX import summary

from rankscope.analysis.export.sink import Setting
from rankscope.conf.event_file import EventFile


class TensorBoard:
    """A log folder of TensorBoard. Replaces what an earlier export wrote there."""

    def __init__(self, folder: Path) -> None:
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._file = EventFile(folder)

    def scalar(self, name: str, rank: int, step: int, value: float) -> None:
        self._file.write(summary.scalar(f"{name}/rank_{rank}", value), step)

    def image(self, name: str, step: int, png: bytes) -> None:
        pixels = np.asarray(imread(BytesIO(png))[..., :3] * 255).astype(np.uint8)
        self._file.write(summary.image(name, pixels, dataformats="HWC"), step)

    def settings(self, settings: Mapping[str, Setting], results: Mapping[str, float]) -> None:
        # `add_hparams` of a `SummaryWriter` would show them as a separate run.
        for record in summary.hparams(dict(settings), dict(results)):
            self._file.write(record)
        for name, value in results.items():
            self._file.write(summary.scalar(name, value))

    def close(self) -> None:
        self._file.close()
