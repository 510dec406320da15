"""A sparse column is the same as the full one for whoever reads it, and a table keeps it in the cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.analysis.core.packed import read_table, write_table
from rankscope.analysis.core.sparse import Sparse
from rankscope.analysis.core.table import UNKNOWN, Table


@given(st.data(), st.integers(1, 60))
def test_rows_masks_and_comparisons(data: Any, length: int) -> None:
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, length - 1)))), np.int64)
    column = Sparse(rows, rows * 10 + 1, length, -1)
    full = np.full(length, -1)
    full[rows] = rows * 10 + 1
    assert np.array_equal(np.asarray(column), full) and len(column) == length and column.tolist() == full.tolist()
    taken = np.array(data.draw(st.lists(st.integers(-length, length - 1))), np.int64)
    assert np.array_equal(np.asarray(column[taken]), full[taken])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    assert np.array_equal(np.asarray(column[mask]), full[mask])
    assert column[length - 1] == full[-1]
    assert np.array_equal(column >= 0, full >= 0) and np.array_equal(np.isin(column, [1, 11]), np.isin(full, [1, 11]))


@pytest.mark.parametrize("rows", [1, 9, 300_000])
def test_the_cache_keeps_values_nulls_and_types(rows: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(rows)
    table = Table(
        {
            "ns": np.where(rng.random(rows) < 0.3, UNKNOWN, rng.integers(-5, 5, rows)),
            "is": rng.random(rows) < 0.5,
            "share": np.where(rng.random(rows) < 0.2, np.nan, rng.random(rows)),
            "name": rng.integers(-1, 3, rows).astype(np.int32),
            "kind": rng.integers(-3, 3, rows).astype(np.int8),
            "few": Sparse(np.arange(0, rows, 20), np.arange(0, rows, 20), rows, UNKNOWN),
        },
        {"name": ["x", "y", "z"]},
    )
    write_table(tmp_path / "t.z", table)
    found = read_table(tmp_path / "t.z")
    assert found.words == table.words
    for name in table.columns:
        assert found[name].dtype == table[name].dtype
        np.testing.assert_array_equal(found[name], np.asarray(table[name]))
