"""The user's cache folder is a temporary one in these tests."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.MonkeyPatch().setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
