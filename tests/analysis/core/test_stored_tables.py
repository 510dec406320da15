"""Tables in a cache: damage is an error, never another number."""

import os
from pathlib import Path

import numpy as np
import pytest

from rankscope.analysis.core.packed import read_table, write_table
from rankscope.analysis.core.table import Table


def test_a_changed_bit_and_a_lost_end_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "table.z"
    codes = (np.arange(300) % 7).astype(np.int32)
    write_table(path, Table({"start": np.arange(300) * 977 % 1000, "name": codes}, {"name": list("abcdefg")}))
    good = path.read_bytes()
    assert read_table(path)["start"].tolist() == [number * 977 % 1000 for number in range(300)]
    numbers = read_table(path)["start"].tolist()
    noticed = 0
    changed = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(0, len(good), 7)]
    for damaged in [*changed, good[:-1], good[:7], b""]:
        path.write_bytes(damaged)
        try:
            assert read_table(path)["start"].tolist() == numbers  # a bit that says only how well it is compressed
        except (OSError, ValueError):
            noticed += 1
    assert noticed >= len(changed)


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "table.z")
    with pytest.raises(OSError, match="not a regular file"):
        read_table(tmp_path / "table.z")
