"""Jobs in processes of our own: each gives its result, in whatever parts, and one that dies costs only its own."""

import pytest

from rankscope.analysis.rank import pool

_DIES = "__import__('os')._exit(1)"


@pytest.mark.parametrize("count", [1, 3, 40, 300])
def test_every_job_gives_its_result_once(count: int) -> None:
    ended: list[int] = []
    found = pool.run(abs, {at: -at for at in range(count)}, None, 2, killed=lambda _: -1, ended=ended.append)
    assert found == {at: at for at in range(count)}
    assert sorted(ended) == list(range(count))


def test_a_process_that_dies_costs_only_its_own_job() -> None:
    jobs = {at: _DIES if at == 7 else str(at) for at in range(12)}
    found = pool.run(eval, jobs, None, 2, killed=lambda _: -1, ended=lambda _: None)
    assert found == {at: -1 if at == 7 else at for at in jobs}
