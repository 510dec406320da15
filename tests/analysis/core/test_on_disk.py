"""A column on the disk is the same as the array for whoever reads it, and so is an analysis with all columns there."""

import errno
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis import Options, load, summarise
from rankscope.analysis.core import at_once, on_disk
from rankscope.analysis.core.columns import assigned, sort_in_place
from rankscope.analysis.core.on_disk import OnDisk, Written, mapped, moved, release
from rankscope.analysis.core.sparse import Sparse
from rankscope.analysis.core.table import UNKNOWN, Table
from rankscope.analysis.read.kineto import columns
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import merge_cycles
from rankscope.analysis.show.tables import tables

DATA = Path(__file__).parents[2] / "data"
VALUES = st.lists(st.sampled_from([-7, 0, 1, 5, 2**40, UNKNOWN]), min_size=1, max_size=40)


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=40))
def test_a_mapped_array_keeps_its_values(values: list[int]) -> None:
    array = np.array([values, values[::-1]])
    with small_pieces():
        found = mapped(array)
        release()
        assert isinstance(found, np.ndarray) and found.base is not None and (found == array).all()
        release()
        assert (found[:, 1:] == array[:, 1:]).all() and (pickle.loads(pickle.dumps(found)) == array).all()
    assert mapped(array) is array  # a short one stays as it is


@contextmanager
def small_pieces() -> Iterator[None]:
    """Make every column a long one, of which only a few rows are in memory at a time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (on_disk, columns):
            patch.setattr(module, "MANY", 1)
        patch.setattr(at_once, "ROWS", 7)
        yield


@given(st.data(), VALUES, st.integers(0, 3))
@small_pieces()
def test_rows_masks_and_comparisons(data: Any, values: list[int], offset: int) -> None:
    array = np.array(values, np.int64)
    written = Written(np.int64)
    for part in np.array_split(array, 3):
        written.add(part)
    column, full = written.column().with_offset(offset, UNKNOWN), np.where(array == UNKNOWN, UNKNOWN, array + offset)
    rows = np.array(data.draw(st.lists(st.integers(-len(full), len(full) - 1))), np.int64)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full))))
    low, high = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    for index in (rows, mask, slice(low, high), -1):
        np.testing.assert_array_equal(column[index], full[index])
    np.testing.assert_array_equal(column > 0, full > 0)
    np.testing.assert_array_equal(full - column, full - full)
    np.testing.assert_array_equal(np.maximum(column, 1), np.maximum(full, 1))
    np.testing.assert_array_equal(column.reordered(np.argsort(full)), np.sort(full))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(column)), full)
    np.testing.assert_array_equal(column[np.arange(2).reshape(2, 1) - 1], full[np.arange(2).reshape(2, 1) - 1])
    with pytest.raises(TypeError):
        column += 1  # nobody writes to it
    assert (column.dtype, column.nbytes, len(column)) == (full.dtype, full.nbytes, len(full))
    assert (column.tolist(), column.min(), column.copy().sum()) == (full.tolist(), full.min(), full.sum())


@given(st.data(), VALUES)
@small_pieces()
def test_columns_are_sorted_and_changed_alike(data: Any, values: list[int]) -> None:
    """The same rows as with arrays, whichever way a column is kept."""
    key = np.array(values, np.int64)
    few = np.array(sorted(data.draw(st.sets(st.integers(0, len(key) - 1)))), np.int64)
    sparse = np.full(len(key), -1)
    sparse[few] = few
    full = {"key": key, "other": np.arange(len(key)), "disk": np.arange(len(key)), "few": sparse}
    kept = {**full, "key": key.copy(), "other": full["other"].copy(), "disk": moved(full["disk"])}
    kept["few"] = Sparse(few, few, len(key), -1)
    order = np.argsort(key, kind="stable")
    after = sort_in_place(kept, "key")
    assert isinstance(after["disk"], OnDisk) and isinstance(after["few"], Sparse)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(key) - 1)))), np.int64)
    changed = assigned(after, rows, {"few": rows * 10, "other": 5})
    for name, column in full.items():
        expected = column[order]
        np.testing.assert_array_equal(np.asarray(after[name]), expected)
        if name in ("few", "other"):
            expected[rows] = rows * 10 if name == "few" else 5
        np.testing.assert_array_equal(np.asarray(changed[name]), expected)


def test_several_cycles_of_a_rank_are_on_the_disk() -> None:
    first = kineto.read(DATA / "traces" / "two_groups_w2" / "rank0.json.gz")
    whole = merge_cycles([first, first])
    with small_pieces():
        joined = merge_cycles([first, first])
    for part in ("device", "launches", "host"):
        kept, full = getattr(joined, part), getattr(whole, part)
        assert isinstance(kept["start"], OnDisk) and not isinstance(full["start"], OnDisk)
        for name in full.columns:
            np.testing.assert_array_equal(np.asarray(kept[name]), np.asarray(full[name]))


@pytest.mark.parametrize("name", ["traces/big_straggler_gpu_w4", "traces/fsdp2_w2", "cases/O02-sync-events"])
def test_an_analysis_says_the_same(name: str) -> None:
    with small_pieces():
        pieces = load(DATA / name, options=Options(cache=False))
        found, summary = tables(pieces), summarise(pieces)
    whole = load(DATA / name, options=Options(cache=False))
    for analysis, there in ((pieces, True), (whole, False)):
        assert isinstance(analysis.ranks[0].kernels["start"], OnDisk) == there
        assert isinstance(analysis.ranks[0].host["start"], OnDisk) == there
    assert summarise(whole) == summary
    for title, table in tables(whole).items():
        assert found[title].to_arrow().equals(table.to_arrow())


def test_a_full_disk_keeps_columns_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is no room from the beginning, or none after the first part."""
    summary = summarise(load(DATA / "traces" / "two_groups_w2", options=Options(cache=False)))
    monkeypatch.setattr(on_disk, "MANY", 1)
    monkeypatch.setattr(columns, "MANY", 1)
    add = Written.add
    for fits in (0, 1):
        added: dict[int, int] = {}

        def until_full(self: Written, values: Any, fits: int = fits, added: dict[int, int] = added) -> None:
            added[id(self)] = added.get(id(self), 0) + 1
            if added[id(self)] > fits:
                raise OSError(errno.ENOSPC, "No space left on device")
            add(self, values)

        monkeypatch.setattr(Written, "add", until_full)
        assert summarise(load(DATA / "traces" / "two_groups_w2", options=Options(cache=False))) == summary


def test_a_written_part_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk took before it was full is still there."""
    monkeypatch.setattr(columns, "MANY", 2)
    growing = columns._Growing(np.int64, may_move=True)
    growing.add(np.array([1, 2, 3]))

    def full(self: Written, values: Any) -> None:
        self._file.write(b"\1\2\3")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Written, "add", full)
    growing.add(np.array([4]))
    growing.add(np.array([5, 6]))
    assert growing.finish().tolist() == [1, 2, 3, 4, 5, 6]


def test_without_descriptors_columns_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column needs one. Other columns, or the user's limit, may have taken the last one."""
    monkeypatch.setattr(columns, "MANY", 2)
    growing = columns._Growing(np.int64, may_move=True)
    growing.add(np.array([1, 2, 3]))

    def refused(self: Written) -> OnDisk:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(resource, "getrlimit", lambda _: (8, 8))
        assert isinstance(moved(np.zeros(on_disk.MANY)), np.ndarray)  # those that are left are for other files
        patch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert isinstance(moved(np.zeros(on_disk.MANY)), OnDisk)
    monkeypatch.setattr(Written, "column", refused)
    assert growing.finish().tolist() == [1, 2, 3]
    assert isinstance(moved(np.zeros(on_disk.MANY)), np.ndarray)


def test_only_columns_of_many_rows_move() -> None:
    short, long = np.zeros(on_disk.MANY - 1, np.int8), np.zeros(on_disk.MANY, np.int8)
    table = Table({"a": short}).moved(), Table({"a": long}).moved()
    assert [isinstance(each["a"], OnDisk) for each in table] == [False, True]
