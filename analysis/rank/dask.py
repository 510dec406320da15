"""Runs the ranks' jobs on a Dask cluster instead of in local processes: an address in, an `Executor` out."""

from typing import TYPE_CHECKING

from rankscope.analysis.core.notices import AnalysisError

if TYPE_CHECKING:
    from concurrent.futures import Executor

_WAIT_S = 20


def executor(address: str) -> "Executor":
    """Return an executor of the cluster at `address` (tcp://host:port, or a scheduler file).

    Its workers must see the traces under the same paths and have this rankscope installed. If a worker dies, its task
    runs again on another one. This is safe because tasks write under a temporary name and then rename.
    """
    try:
        from distributed import Client
    except ImportError:
        raise AnalysisError("--dask: dask is not installed; pip install 'rankscope[cluster]'") from None
    where = {"address": address} if "://" in address or ":" in address else {"scheduler_file": address}
    try:
        client = Client(**where, timeout=_WAIT_S)
        workers = client.scheduler_info()["workers"]
    except (OSError, ValueError) as error:
        raise AnalysisError(f"--dask {address}: no scheduler answers ({error or 'timeout'})") from None
    if not workers:
        raise AnalysisError(f"--dask {address}: the cluster has no worker; start some and try again")
    found: Executor = client.get_executor(pure=False)
    return found
