"""The steps of a watched run (`rankscope.harness.Monitor`) as one table, even if the run crashed or still runs."""

from pathlib import Path

import msgspec
import pandas as pd
import pyarrow.parquet as pq

from rankscope.analysis.core.notices import AnalysisError
from rankscope.conf.files import read_bytes
from rankscope.conf.monitor_dir import MonitorDir


def monitor_steps(folder: Path | str) -> pd.DataFrame:
    """Return one row per step and rank, ordered by rank and step: the columns of docs/monitor.md, and `rank`.

    A last line that a crash cut off is ignored. Raises `AnalysisError` if there are no steps.
    """
    tables = []
    for rank, rank_dir in MonitorDir(Path(folder)).ranks().items():
        for part in rank_dir.parts():
            if part.suffix == ".jsonl" and part.with_suffix(".parquet").exists():
                continue  # the process died between writing the Parquet file and removing the lines
            try:
                table = pq.read_table(part).to_pandas() if part.suffix == ".parquet" else _lines(part)
            except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
                raise AnalysisError(f"{part}: cannot be read ({error}); remove it to have the other steps") from None
            tables.append(table.assign(rank=rank))
    tables = [table for table in tables if len(table)]
    if not tables:
        raise AnalysisError(f"{folder}: has no steps of a Monitor; give the folder that contains monitor.json")
    steps: pd.DataFrame = pd.concat(tables, ignore_index=True)
    return steps.sort_values(["rank", "step"], ignore_index=True)


def _lines(path: Path) -> pd.DataFrame:
    rows = []
    for line in read_bytes(path).split(b"\n"):
        try:
            rows.append(msgspec.json.decode(line, type=dict))
        except msgspec.DecodeError:  # cut off
            continue
    return pd.DataFrame(rows)
