"""The order of the tests: those that wait longest come first, so that no process waits for them alone at the end."""

import pytest

_LONGEST = ("launch/test_slurm.py", "launch/run/test_nodes.py", "launch/test_sweep.py", "launch/run/test_links.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(_LONGEST))
