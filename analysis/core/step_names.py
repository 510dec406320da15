"""Names of the ranges and marks that show where a step of a job begins and ends, for both readers.

`RANGES` last one step each, best first; the step's number is a group of the pattern, if the name has one. `MARKS` are
short and come once a step, so a step lasts from one to the next.
"""

import re
from dataclasses import dataclass
from typing import Literal

RANGES = (
    re.compile(r"ProfilerStep\s*#(\d+)"),
    re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)[ _#:-]*(\d+)", re.IGNORECASE),
    re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)", re.IGNORECASE),
    re.compile(r"batch[ _#:-]*(\d+)", re.IGNORECASE),
    re.compile(r"\[pl\]\[profile\]run_training_batch"),  # Lightning: loops/training_epoch_loop.py
    re.compile(r"step\[\w+ .*\]"),  # SGLang: step[DECODE bs=16]
    re.compile(r"execute_(?:new_\d+_cached_\d+|(?:\d+_)?context_.*)"),  # vLLM: v1/worker/gpu_worker.py
    re.compile(r"execute_diffusion_.*"),  # xDiT
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A mark of torch's own that comes once a step."""

    pattern: re.Pattern[str]
    at: Literal["start", "end"]  # which of its times separates two steps
    says: str


MARKS = (
    Mark(pattern=re.compile(r"Optimizer\.step#.+"), at="end", says="the optimizer's steps"),
    Mark(pattern=re.compile(r"Optimizer\.zero_grad#.+"), at="start", says="the optimizer's zero_grad"),
    Mark(
        pattern=re.compile(r"enumerate\((?:DataLoader|DataPipe)\)#.+"),
        at="start",
        says="the batches of the data loader",
    ),
)
