"""Batches for a reference model: a data set in memory or on disk, the share of a rank, and the loader with its options.

Sample `i` is the same on every machine and in every run. The configuration sets the length of an epoch; the files of a
data set on disk are reused as often as needed.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from rankscope.conf.schema import RunConfig
from rankscope.harness.group.process_group import RankContext, die_with_parent
from rankscope.harness.reference.datasets_on_disk import make_images, make_tokens
from rankscope.models import SampleSpec

Sample = tuple[Tensor, Tensor]
Collate = Callable[[Any], Any]

STRIDE = 7919  # a prime: neighbouring samples begin far apart


class SyntheticDataset(Dataset[Sample]):
    """Random samples at the cost of a copy: each is a window at its own place in one pool of random numbers."""

    def __init__(self, spec: SampleSpec, samples: int) -> None:
        self._spec = spec
        self._samples = samples
        self._size = math.prod(spec.shape)
        generator = torch.Generator().manual_seed(0)
        length = 2 * self._size + 1
        if spec.kind == "tokens":
            self._pool = torch.randint(spec.classes, (length,), generator=generator)
        else:
            self._pool = torch.randn(length, generator=generator)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Sample:
        start = index * STRIDE % self._size
        values = self._pool[start : start + self._size]
        if self._spec.kind == "tokens":
            return values, self._pool[start + 1 : start + self._size + 1]
        return values.view(self._spec.shape), torch.tensor(index % self._spec.classes)


class TokenDataset(Dataset[Sample]):
    """Windows into a file of 16-bit token ids, which each process maps into memory."""

    def __init__(self, path: Path, spec: SampleSpec, samples: int) -> None:
        self._path = path
        self._context = spec.shape[0]
        self._samples = samples

    @cached_property
    def _tokens(self) -> Any:
        return np.memmap(self._path, dtype=np.uint16, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_tokens"}  # each process maps its own

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Sample:
        start = index * STRIDE % (len(self._tokens) - self._context)
        window = torch.from_numpy(self._tokens[start : start + self._context + 1].astype(np.int64))
        return window[:-1], window[1:]


class ImageDataset(Dataset[Sample]):
    """JPEG files, decoded, cropped to the model's size and scaled to about [-1, 1]."""

    def __init__(self, folder: Path, spec: SampleSpec, samples: int) -> None:
        self._files = sorted(folder.glob("*.jpg"))
        self._side = spec.shape[-1]
        self._classes = spec.classes
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Sample:
        with Image.open(self._files[index % len(self._files)]) as image:
            left, top = ((size - self._side) // 2 for size in image.size)
            pixels = np.array(image.convert("RGB").crop((left, top, left + self._side, top + self._side)))
        values = torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32).div_(127.5).sub_(1.0)
        return values, torch.tensor(index % self._classes)


def make_dataset(config: RunConfig, spec: SampleSpec) -> Dataset[Sample]:
    """Return the data set of `config.data`; creates it on disk if necessary."""
    root, samples = Path(config.data.root), config.data.samples
    if config.data.name == "tokens":
        return TokenDataset(make_tokens(root, spec.classes), spec, samples)
    if config.data.name == "images":
        return ImageDataset(make_images(root, spec.shape[-1]), spec, samples)
    return SyntheticDataset(spec, samples)


class Batches:
    """An endless stream of batches. At the end of an epoch the loader starts again with a new shuffle."""

    def __init__(self, loader: DataLoader[Sample], sampler: DistributedSampler[Sample]) -> None:
        self._loader = loader
        self._sampler = sampler
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None

    def next(self) -> tuple[Tensor, Tensor, bool]:
        """Return inputs, targets, and whether this is the first batch of an epoch, for which the loader was started."""
        if self._iterator is not None:
            batch = next(self._iterator, None)
            if batch is not None:
                return batch[0], batch[1], False
            self._epoch += 1
        self._sampler.set_epoch(self._epoch)
        self._iterator = iter(self._loader)
        inputs, targets = next(self._iterator)
        return inputs, targets, True

    def close(self) -> None:
        """Stop the workers."""
        self._iterator = None


def make_batches(
    config: RunConfig,
    context: RankContext,
    spec: SampleSpec,
    collate: Collate = default_collate,
    wrap: Callable[[Dataset[Any]], Dataset[Any]] = lambda dataset: dataset,
) -> Batches:
    """Build the loader of this rank over its share of the data set; `collate` turns samples into a batch."""
    dataset = wrap(make_dataset(config, spec))
    sampler: DistributedSampler[Sample] = DistributedSampler(
        dataset,
        num_replicas=config.replicas,
        rank=context.rank % config.replicas,
        shuffle=True,
        seed=config.seed,
        drop_last=True,
    )
    workers = config.num_workers
    loader = DataLoader(
        dataset,
        batch_size=config.rank_batch_size,
        sampler=sampler,
        drop_last=True,
        collate_fn=collate,
        num_workers=workers,
        prefetch_factor=config.data.prefetch_factor if workers else None,
        persistent_workers=config.data.persistent_workers,
        pin_memory=config.data.pin_memory and context.cuda,
        worker_init_fn=_start_worker if workers else None,
        generator=torch.Generator().manual_seed(config.seed + context.rank),
    )
    return Batches(loader, sampler)


def _start_worker(_: int) -> None:
    die_with_parent()
