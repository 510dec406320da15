"""The user's cache folder is a temporary one in these tests."""

from collections.abc import Iterator

import pytest

from rankscope.analysis import kineto


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if kineto.has_scanner():  # compiled code stays where it always is: compiling takes seconds
        from rankscope.analysis.scanner import kernels

        kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=[False, True], ids=["msgspec", "scanner"], scope="session")
def fast(request: pytest.FixtureRequest) -> bool:
    """Both ways to read a trace; the accelerated one where it is installed."""
    if request.param and not kineto.has_scanner():
        pytest.skip("numba is not installed: pip install 'rankscope[fast]'")
    return bool(request.param)
