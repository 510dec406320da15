"""Tests of names by regular expression. The same few names occur in every rank, so the answers are remembered."""

import re
from collections.abc import Callable
from functools import lru_cache

MOST_NAMES = 1 << 14  # remembered for each test: names may be different in every record


def found_in(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Return the test whether a pattern is found anywhere in a name."""

    @lru_cache(MOST_NAMES)
    def holds(name: str) -> bool:
        return pattern.search(name) is not None

    return holds


def begins(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Return the test whether a name begins with a pattern."""

    @lru_cache(MOST_NAMES)
    def holds(name: str) -> bool:
        return pattern.match(name) is not None

    return holds
