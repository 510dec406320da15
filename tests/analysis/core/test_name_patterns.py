"""Tests of names give the same answers, whether they are remembered or not."""

import re

import pytest

from rankscope.analysis.core import name_patterns


def test_a_test_is_asked_once_and_remembers_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def holds(name: str) -> bool:
        asked.append(name)
        return name == "b"

    monkeypatch.setattr(name_patterns, "MOST_NAMES", 3)
    test = name_patterns.remembered(holds)
    for _ in range(2):
        assert [test(name) for name in "abc"] == [False, True, False]
    assert asked == list("abc")
    assert [test(name) for name in "dbbd"] == [False, True, True, False]
    assert asked == list("abcdb")  # the fourth name took the place of all before


def test_found_and_begins() -> None:
    found, begins = name_patterns.found_in(re.compile("x")), name_patterns.begins(re.compile("x"))
    assert [(found(name), begins(name)) for name in ("x", "ax", "a")] == [(True, True), (True, False), (False, False)]
