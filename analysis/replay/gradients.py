"""The all-reduces of gradients that DDP would add to a recording of one rank: when each bucket is ready, what waits.

Input: the device records of the rank with the thread that launched each. Output: `Buckets`. Autograd launches the
backward pass from a thread of its own, so its kernels are those that another thread than the first of the step
launched. Gradients are taken to come evenly over the time of these kernels, and fill the buckets in that order. The
optimizer, which is what comes next on the stream, waits for the last bucket.
"""

import msgspec
import numpy as np

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.record_kinds import COMMUNICATION, COMPUTE
from rankscope.analysis.core.table import Column, Table
from rankscope.analysis.replay.graph import NONE

_MB = 1e6
_MIB = 1 << 20
_MOST_BUCKETS = 10_000  # of a step
_FIRST_BUCKET = 1 * _MIB  # DDP's own: the first one is small, so that communication begins early
USUAL_BUCKET = 25.0  # MiB, DDP's default for the others


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of a data-parallel job would reduce."""

    megabytes: float  # 10^6 bytes: parameters times the bytes of a gradient
    bucket_cap_mb: float = USUAL_BUCKET  # MiB, as for DDP

    def sizes(self) -> list[int]:
        """Return the bytes of the buckets in the order in which they are reduced."""
        left, cap = round(self.megabytes * _MB), round(self.bucket_cap_mb * _MIB)
        if left < 1 or cap < 1:
            raise AnalysisError("gradient_mb, bucket_cap_mb: less than a byte; give megabytes")
        if left / cap > _MOST_BUCKETS:
            raise AnalysisError(
                f"gradient_mb={self.megabytes:g} in buckets of {self.bucket_cap_mb:g} MiB: more than {_MOST_BUCKETS} "
                "buckets; give larger ones (bucket_cap_mb=)"
            )
        found = [min(left, _FIRST_BUCKET, cap)]
        left -= found[0]
        return found + [cap] * (left // cap) + ([left % cap] if left % cap else [])


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """Columns with a row per step and bucket, in order."""

    step: Column
    bytes: Column
    after: Column  # the record with whose end the bucket is complete
    before: Column  # the record that waits for the last bucket of the step; NONE if none follows


def buckets(records: Table, thread: Column, steps: list[int], gradients: Gradients) -> Buckets:
    """Return the buckets of the steps; `AnalysisError` if the recording does not show the backward pass."""
    if (records["role"] == COMMUNICATION).any():
        raise AnalysisError("gradient_mb: the recorded rank communicates already, so it is one of several")
    sizes = np.array(gradients.sizes(), np.int64)
    after, before = [], []
    for step in steps:
        rows = np.flatnonzero((records["step"] == step) & (records["role"] == COMPUTE) & (thread != NONE))
        rows = rows[np.argsort(records["start"][rows], kind="stable")]
        backward = rows[thread[rows] != thread[rows[0]]] if len(rows) else rows
        if not len(backward):
            raise AnalysisError(
                "gradient_mb: the backward pass is unknown, because one thread launches everything (or CUDA graphs do)"
            )
        done = np.cumsum(records["end"][backward] - records["start"][backward])
        share = np.cumsum(sizes) / sizes.sum()
        after.append(backward[np.minimum(np.searchsorted(done, share * done[-1] - 0.5), len(backward) - 1)])
        following = rows[records["start"][rows] >= records["end"][backward[-1]]]
        before.append(np.full(len(sizes), following[0] if len(following) else NONE))
    return Buckets(
        step=np.repeat(steps, len(sizes)),
        bytes=np.tile(sizes, len(steps)),
        after=np.concatenate(after),
        before=np.concatenate(before),
    )
