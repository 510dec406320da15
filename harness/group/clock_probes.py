"""Probes of this rank's wall clock against rank 0's, over the control group.

Every rank in turn sends an empty message to rank 0 and receives rank 0's time. Rank 0 read its clock between the two
readings of the rank, so the error of the offset is at most half the round trip. Of several tries, the one with the
shortest round trip counts.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rankscope.harness.group.control import Control
from rankscope.harness.group.process_group import RankContext

TRIES = 20


@dataclass(frozen=True, kw_only=True)
class ClockProbe:
    """One comparison of clocks, in nanoseconds."""

    when: str  # "before" or "after" the loop
    time_ns: int  # this rank's wall clock at the probe
    offset_ns: int  # this rank's clock minus rank 0's; positive if this rank is ahead
    rtt_ns: int  # round trip of the best try: |error of the offset| <= rtt / 2

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def probe(context: RankContext, when: str) -> ClockProbe:
    """Compare this rank's clock with rank 0's; every rank must call this at the same point."""
    control = context.control
    if control is None or context.rank == 0:
        _serve(control)
        return ClockProbe(when=when, time_ns=time.time_ns(), offset_ns=0, rtt_ns=0)
    message = torch.zeros(1, dtype=torch.int64)
    best: ClockProbe | None = None
    for _ in range(TRIES):
        sent = time.time_ns()
        control.send(message, 0)
        control.receive(message, 0)
        received = time.time_ns()
        rtt = received - sent
        if best is None or rtt < best.rtt_ns:
            offset = (sent + received) // 2 - int(message.item())
            best = ClockProbe(when=when, time_ns=received, offset_ns=offset, rtt_ns=rtt)
    assert best is not None  # TRIES is positive
    return best


def _serve(control: Control | None) -> None:
    if control is None:
        return
    message = torch.zeros(1, dtype=torch.int64)
    for rank in range(1, control.world_size):
        for _ in range(TRIES):
            control.receive(message, rank)
            message[0] = time.time_ns()
            control.send(message, rank)
