"""What launch, harness and analysis agree on: recorded files hold the columns that the contract names."""

import typing
from pathlib import Path

import pyarrow.parquet as pq

from rankscope.conf.contract import DEVICE_RANGES, PASSES, RANGE_COLUMNS, RANGES, STEP_COLUMNS, StepColumn
from rankscope.conf.run_dir import RunDir

RUNS = Path(__file__).parents[1] / "data" / "runs"


def test_recorded_steps_have_columns_of_the_contract() -> None:
    for run in sorted(RUNS.iterdir()):
        for name in PASSES:
            for rank in RunDir(run).for_pass(name).ranks():
                if rank.steps.exists():
                    assert set(pq.read_schema(rank.steps).names) <= set(STEP_COLUMNS)


def test_every_range_has_a_column() -> None:
    assert list(RANGE_COLUMNS) == list(RANGES) == ["data_wait", *DEVICE_RANGES]
    assert set(RANGE_COLUMNS.values()) < set(STEP_COLUMNS)
    assert len(STEP_COLUMNS) == len(typing.get_args(StepColumn)), "a column stands there twice"
