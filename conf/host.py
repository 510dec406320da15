"""This host: its name, as the other hosts of a job know it, and the boot that its clock belongs to."""

import os
import socket
from pathlib import Path


def host_name() -> str:
    """Return SLURM's name of this node inside a SLURM job, otherwise the host's own name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def boot_id() -> str | None:
    """Return the kernel's random id of this boot: processes with the same id share a clock. None if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
