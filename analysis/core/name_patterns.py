"""Tests of names, most by regular expression. The same few names occur in every rank, so answers are remembered."""

import re
from collections.abc import Callable
from typing import TypeVar

NameT = TypeVar("NameT", bound="str | None")
AnswerT = TypeVar("AnswerT")
MOST_NAMES = 1 << 14  # remembered for each test: names may be different in every record


def remembered(test: Callable[[NameT], AnswerT]) -> Callable[[NameT], AnswerT]:
    """Make a test of a name that remembers its answers; asking it again takes half as long as with `lru_cache`."""
    return _Answers(test).__getitem__


class _Answers(dict[NameT, AnswerT]):
    def __init__(self, test: Callable[[NameT], AnswerT]) -> None:
        self._test: Callable[[NameT], AnswerT] = test

    def __missing__(self, name: NameT) -> AnswerT:
        if len(self) >= MOST_NAMES:
            self.clear()
        answer = self[name] = self._test(name)
        return answer


def found_in(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Return the test whether a pattern is found anywhere in a name."""
    return remembered(lambda name: pattern.search(name) is not None)


def begins(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """Return the test whether a name begins with a pattern."""
    return remembered(lambda name: pattern.match(name) is not None)
