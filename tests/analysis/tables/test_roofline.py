"""The roofline by hand: what a matrix product computes and moves, and which roof is above it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankscope.analysis.core.png import png
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.tables.roofline import figure, peaks, roofline
from rankscope.conf import parse_config
from rankscope.conf.run_dir import RankDir

NODE = Ceilings(matmul_TFLOPs={"fp32": 50.0}, d2d_GBs=2000.0)  # ridge at 25 FLOPs a byte


def rank_dir(tmp_path: Path, shapes: str, flops: int | None, name: str = "aten::mm") -> RankDir:
    columns = {
        "name": name,
        "count": 2,
        "self_cpu_ns": 9,
        "self_device_ns": 1000,
        "flops": flops,
        "input_shapes": shapes,
    }
    pq.write_table(pa.Table.from_pylist([columns]), tmp_path / "key_averages.parquet")
    return RankDir(tmp_path)


@pytest.mark.parametrize(
    ("name", "shapes", "bytes_a_call", "bound"),
    [
        ("aten::mm", "[[64, 32], [32, 16]]", 4 * (64 * 32 + 32 * 16 + 64 * 16), "memory"),
        ("aten::addmm", "[[16], [64, 32], [32, 16], [], []]", 4 * (16 + 64 * 32 + 32 * 16 + 64 * 16), "memory"),
        ("aten::mm", "[[1024, 1024], [1024, 1024]]", 4 * 3 * 1024**2, "compute"),
        ("aten::gelu", "[[64, 32]]", None, None),
    ],
)
def test_by_hand(name: str, shapes: str, bytes_a_call: int | None, bound: str | None, tmp_path: Path) -> None:
    side = 1024 if "1024" in shapes else 0
    flops = 2 * (2 * side**3 if side else 2 * 64 * 32 * 16)
    table = roofline(rank_dir(tmp_path, shapes, flops, name), parse_config({}), NODE)
    assert table is not None
    (row,) = table.to_arrow().to_pylist()
    assert row["bytes"] == (None if bytes_a_call is None else 2 * bytes_a_call) and row["bound"] == bound
    assert row["rate_TFLOPs"] == pytest.approx(flops / 1000e-9 / 1e12)
    if bytes_a_call:
        intensity = flops / (2 * bytes_a_call)
        assert row["of_roof"] == pytest.approx(row["rate_TFLOPs"] / min(50, intensity * 2))
    assert png(figure(table, *peaks(parse_config({}), NODE))).startswith(b"\x89PNG")


def test_without_flops_or_ceilings_nothing_is_invented(tmp_path: Path) -> None:
    assert roofline(rank_dir(tmp_path, "[[2, 2], [2, 2]]", None), parse_config({}), NODE) is None
    table = roofline(rank_dir(tmp_path, "[[2, 2], [2, 2]]", 16), parse_config({}), None)
    assert table is not None and table["bound"].tolist() == [-1] and table.to_pandas()["of_roof"].isna().all()


@pytest.mark.parametrize(
    "shapes", ["[1, 2]", "[[0, 0], [0, 0]]", f"[[{10**300}, 1], [1, 1]]", "[" * 9999, "__import__"]
)
def test_odd_shapes_have_no_bytes(shapes: str, tmp_path: Path) -> None:
    table = roofline(rank_dir(tmp_path, shapes, 16), parse_config({}), NODE)
    assert table is not None and table.to_pandas()["bytes"].isna().all()


@pytest.mark.parametrize("flops", [-1, 2**62])
def test_damaged_counts_are_left_out(flops: int, tmp_path: Path) -> None:
    assert roofline(rank_dir(tmp_path, "[[2, 2], [2, 2]]", flops), parse_config({}), NODE) is None
