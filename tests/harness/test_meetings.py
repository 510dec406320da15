"""Meeting points of ranks that need not all come: decided once, for all of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch.distributed as dist

from rankscope.harness.group.meetings import Meetings

T = TypeVar("T")


@pytest.fixture
def ranks() -> list[Meetings]:
    """Two ranks whose store is that of an agent."""
    c10d: Any = dist  # its stubs lack the class
    first = c10d.TCPStore("localhost", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    stores = [first, c10d.TCPStore("localhost", first.port, None, False, timedelta(seconds=30))]
    return [Meetings(store, rank, 2, least_s=0.5, most_s=60) for rank, store in enumerate(stores)]


def both(ranks: list[Meetings], *acts: Callable[[Meetings], T]) -> list[T]:
    """Let each rank act at the same time."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda pair: pair[0](pair[1]), zip(acts, ranks, strict=True)))


def test_ranks_that_all_come_are_together(ranks: list[Meetings]) -> None:
    def walk(rank: Meetings) -> list[bool]:
        return [rank.enter(), rank.meet("start"), rank.meet("window"), rank.meet("window")]

    assert both(ranks, walk, walk) == [[True] * 4] * 2
    ranks[0].finish()
    assert not ranks[1].all_finished
    ranks[1].finish()
    assert ranks[0].all_finished and not ranks[0].apart


def test_a_rank_that_steps_alone_goes_on_and_meets_the_other_later(ranks: list[Meetings]) -> None:
    assert [ranks[0].enter() for _ in range(3)] == [False] * 3
    assert ranks[0].absent() == [1]

    def again(rank: Meetings) -> bool:
        return any(rank.enter() for _ in range(1000))

    assert both(ranks, again, Meetings.enter) == [True, True]
    assert both(ranks, lambda rank: rank.meet("start"), lambda rank: rank.meet("start")) == [True, True]


def test_a_rank_that_does_not_come_holds_nobody_up_again(ranks: list[Meetings]) -> None:
    assert not ranks[0].meet("window") and ranks[0].apart
    assert not ranks[1].meet("end")  # learns it without waiting
    assert [rank.apart for rank in ranks] == [True, True]


def test_ranks_that_wait_at_different_places_are_apart(ranks: list[Meetings]) -> None:
    slow = [Meetings(rank._store, number, 2, least_s=60, most_s=60) for number, rank in enumerate(ranks)]
    assert both(slow, lambda rank: rank.meet("window"), lambda rank: rank.meet("end")) == [False, False]
