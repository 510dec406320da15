"""How many samples a batch has: by its loader's sampler where that is certain, otherwise by its first tensor."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset


def samples_of(batch: Any) -> int | None:
    """Return the length of the first tensor in a batch, or None."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        found = (samples_of(item) for item in batch)
        return next((samples for samples in found if samples is not None), None)
    return None


def samples_from(batch: Any, loader: "DataLoader[Any] | None", number: int) -> int | None:
    """Return the samples of the batch `number` (from 1) of an epoch; None if it cannot be known.

    A collate function may put the samples in any dimension, or pack them, so the sampler's count goes first. Without
    one the data set itself gives a sample or a batch: nobody can tell which.
    """
    if loader is None:
        return samples_of(batch)
    if loader.batch_sampler is None:
        return None
    size, found = loader.batch_size, samples_of(batch)
    if not isinstance(size, int):
        return found
    exact = _by_sampler(loader, size, number)
    if exact is not None:
        return exact
    return size if found is None or found > size else found


def _by_sampler(loader: "DataLoader[Any]", size: int, number: int) -> int | None:
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        batches = len(loader.batch_sampler)  # type: ignore[arg-type]
        if number < batches or loader.drop_last:
            return size
        return len(loader.sampler) - (batches - 1) * size  # type: ignore[arg-type]
    except TypeError:  # a sampler without a length
        return None
