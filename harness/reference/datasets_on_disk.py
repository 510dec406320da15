"""Creates the data sets on disk once, completely or not at all; later runs reuse them."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from rankscope.conf.files import replacing

TOKENS = 4_000_000
IMAGES = 256


def make_tokens(root: Path, vocabulary: int) -> Path:
    """Return the file of random 16-bit token ids below `vocabulary`."""
    path = root / f"tokens-{vocabulary}.u16"
    with _alone(root):
        if not path.exists():
            ids = np.random.default_rng(0).integers(vocabulary, size=TOKENS, dtype=np.uint16)
            with replacing(path) as temporary:
                ids.tofile(temporary)
    return path


def make_images(root: Path, side: int) -> Path:
    """Return the folder of JPEG files, an eighth larger than `side` in both directions, so that they can be cropped.

    They are smooth noise: about as large as a photograph of that size, and as expensive to decode.
    """
    folder = root / f"images-{side}"
    with _alone(root):
        if not folder.exists():
            temporary = root / f".images-{side}.{os.getpid()}.tmp"
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                _fill(temporary, side + side // 8)
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _fill(folder: Path, side: int) -> None:
    random = np.random.default_rng(0)
    coarse = max(1, side // 4)
    for index in range(IMAGES):
        noise = Image.fromarray(random.integers(256, size=(coarse, coarse, 3), dtype=np.uint8))
        noise.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{index:06}.jpg", quality=85)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock of `root`: one process creates the files, the others wait for them."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
