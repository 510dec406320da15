"""Memory that a rank has freed serves the next one: counted as page faults of a process."""

import platform
import resource
import subprocess
import sys

import pytest

# 20 times 64 MB in blocks. By itself the C library gives them back each time: 327,000 page faults.
SCRIPT = """
import resource
from rankscope.analysis.core.heap import keep_freed_memory
keep_freed_memory()
blocks = [b"x" * (1 << 23) for _ in range(8)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    blocks = [b"x" * (1 << 23) for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20 * (1 << 26) // resource.getpagesize() / 10
