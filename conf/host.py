"""The name of this host, as the other hosts of a job know it."""

import os
import socket


def host_name() -> str:
    """Return SLURM's name of this node inside a SLURM job, otherwise the host's own name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
