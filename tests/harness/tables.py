"""The tables of a rank as the rank itself leaves them; the launcher makes Parquet of them afterwards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from rankscope.conf.columns_file import read_columns
from rankscope.conf.contract import STEP_COLUMNS


def table_of(path: Path, types: Mapping[Any, type] = STEP_COLUMNS) -> pd.DataFrame:
    frame: pd.DataFrame = read_columns(path, types).to_pandas()
    return frame
