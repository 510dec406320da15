"""A JSON file from anybody: a value of another type is left out, and costs nothing but itself."""

from pathlib import Path

import pytest

from rankscope.conf.typed_json import Count, Real, read_object

TYPES = {"rank": Count, "host": str, "rate": Real, "parts": dict[str, Real | None]}


def test_only_wrong_values_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"rank": "0", "host": "a", "rate": -1e31, "parts": {"x": NaN, "y": 1e999}, "other": 1}')
    assert read_object(path, TYPES) == {"host": "a", "parts": {"x": None, "y": None}, "other": 1}


@pytest.mark.parametrize("text", ["", "[1]", "nope", "[" * 100_000])
def test_what_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError):
        read_object(path, TYPES)


def test_an_integer_of_many_digits_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(f'{{"rank": {"9" * 5000}, "host": "a"}}')
    assert read_object(path, TYPES) == {"host": "a"}


def test_half_a_surrogate_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"rank": "\\ud800", "host": "a"}')
    assert read_object(path, TYPES) == {"host": "a"}
