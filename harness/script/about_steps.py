"""What is said about the steps of a script: in rank.json, and as notes that the analysis shows."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from rankscope.harness.observe.marks import Marks, Source
from rankscope.harness.record.steps import Steps
from rankscope.harness.script.election import Election


def about_steps(election: Election, samples: Sequence[int | None]) -> dict[str, Any]:
    """Return what rank.json says: the samples of a step (null if one is not known), and what a step is."""
    counts = [count for count in samples if count is not None]
    known = bool(counts) and all(counts) and len(counts) == len(samples)
    # The median, because the step after which a script validates also has the batches of the validation.
    found: dict[str, Any] = {"samples_per_step": statistics.median(counts) if known else None}
    if election.source is not None:
        found["step_is"] = election.why(election.source)
    return found


def notes_on(source: Source | None, marks: Marks, info: dict[str, Any], steps: Steps) -> Iterator[str]:
    """Yield a line for each thing about the steps that a reader may not expect."""
    made = marks.optimizers
    if source == "optimizer" and len(made) > 1:
        names = ", ".join(sorted({name.split()[0] for name in made}))
        yield f"{len(made)} optimizers ({names}): a step is one of the first one in use"
    if source == "loader" and len(marks.loaders) > 1:
        yield f"{len(marks.loaders)} loaders give batches: a step is a batch of the first one in use"
    if marks.elsewhere and not steps.timer.waits_known:
        yield "the loop runs in another thread than the main one: waits for data and samples are null"
    elif info["samples_per_step"] is None:
        why = (
            "the batches do not tell how many samples they have" if marks.loaders else "no DataLoader gives the batches"
        )
        yield f"samples per second are null: {why}"
    if marks.skipped:
        yield f"the GradScaler skipped {marks.skipped} optimizer steps; they count as steps"
    if not steps.context.cuda and dist.is_initialized() and "nccl" in str(dist.get_backend()):
        yield "the device was first used after the first step: device times are null"
