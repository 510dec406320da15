"""When a light pass follows: steps of two passes as a GPU would have written them, since this needs no GPU."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankscope.conf import RunDir, parse_config
from rankscope.launch.run.record import distorted

ASKED = {"profile": {"light_above": 1.15}}


@pytest.mark.parametrize(
    ("traced_ms", "changes", "follows"),
    [
        (11.6, ASKED, True),
        (11.4, ASKED, False),
        (None, ASKED, False),  # a CPU has no device times
        (11.6, {}, False),
        (11.6, {"profile": {"light_above": 1.2}}, False),
        (11.6, ASKED | {"passes": ["plain", "torch", "light"]}, False),  # it is there already
    ],
)
def test_a_light_pass_follows_where_the_torch_pass_made_steps_longer(
    traced_ms: float | None, changes: dict[str, object], follows: bool, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    for name, phase, taken in (("plain", "measured", 10.0), ("torch", "active", traced_ms)):
        for rank in (0, 1):
            rank_dir = run_dir.for_pass(name).rank(rank)
            rank_dir.path.mkdir(parents=True)
            times = [None if taken is None else round(taken * 1e6), None if taken is None else 10**9]
            pq.write_table(
                pa.table({"phase": [phase, "warmup"], "device_ns": pa.array(times, pa.int64())}), rank_dir.steps
            )
    config = parse_config({"world_size": 2} | changes)
    assert (distorted(config, run_dir) is not None) is follows
