"""Batches for a reference model: a data set in memory or on disk, each rank's share of it, and a loader with its levers.

Sample `i` is the same on every machine and in every run. Data sets on disk are made once under `data.root`, by whoever
comes first, and reused by every later run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from rankscope.conf.schema import RunConfig
from rankscope.harness.process_group import RankContext, die_with_parent
from rankscope.models import SampleSpec

Sample = tuple[Tensor, Tensor]


class SyntheticDataset(Dataset[Sample]):
    """Random samples at the cost of a copy: each is a window, at its own place, into one pool of random numbers."""

    def __init__(self, spec: SampleSpec, samples: int) -> None:
        self._spec = spec
        self._samples = samples
        self._size = 1
        for side in spec.shape:
            self._size *= side
        generator = torch.Generator().manual_seed(0)
        length = 2 * self._size + 1
        if spec.kind == "tokens":
            self._pool = torch.randint(spec.classes, (length,), generator=generator)
        else:
            self._pool = torch.randn(length, generator=generator)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> Sample:
        start = index * 7919 % self._size
        values = self._pool[start : start + self._size]
        if self._spec.kind == "tokens":
            return values, self._pool[start + 1 : start + self._size + 1]
        return values.view(self._spec.shape), torch.tensor(index % self._spec.classes)


def make_dataset(config: RunConfig, spec: SampleSpec) -> Dataset[Sample]:
    """Return the data set that `config.data` names, made on disk first when it is not there."""
    return SyntheticDataset(spec, config.data.samples)


class Batches:
    """An endless stream of batches; when an epoch ends the loader starts again, shuffled anew."""

    def __init__(self, loader: DataLoader[Sample], sampler: DistributedSampler[Sample]) -> None:
        self._loader = loader
        self._sampler = sampler
        self._epoch = 0
        self._iterator: Iterator[Any] | None = None

    def next(self) -> tuple[Tensor, Tensor, bool]:
        """Return inputs, targets, and whether this is an epoch's first batch, for which workers were started."""
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
    wrap_collate: Callable[[Callable[[list[Sample]], Any]], Callable[[list[Sample]], Any]] | None = None,
) -> Batches:
    """Build this rank's loader; `wrap_collate` may put something around the making of each batch."""
    dataset = make_dataset(config, spec)
    sampler: DistributedSampler[Sample] = DistributedSampler(
        dataset, num_replicas=context.world_size, rank=context.rank, shuffle=True, seed=config.seed, drop_last=True
    )
    workers = config.num_workers
    loader = DataLoader(
        dataset,
        batch_size=config.rank_batch_size,
        sampler=sampler,
        drop_last=True,
        collate_fn=wrap_collate(default_collate) if wrap_collate else default_collate,
        num_workers=workers,
        prefetch_factor=config.data.prefetch_factor if workers else None,
        persistent_workers=config.data.persistent_workers and workers > 0,
        pin_memory=config.data.pin_memory and context.cuda,
        worker_init_fn=_start_worker if workers else None,
        generator=torch.Generator().manual_seed(config.seed + context.rank),
    )
    return Batches(loader, sampler)


def _start_worker(_: int) -> None:
    die_with_parent()
