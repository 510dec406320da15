"""How long a thread waits for a core: read from Linux's schedstat, null elsewhere."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankscope.harness.record.core_wait import CoreWait


def test_the_second_number_counts(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("1024385890 7000 313\n")
    assert CoreWait(str(tmp_path / "schedstat")).read() == 7000


@pytest.mark.parametrize("text", ["", "12", "a b c"])
def test_anything_else_is_unknown(text: str, tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text(text)
    assert CoreWait(str(tmp_path / "schedstat")).read() is None
    assert CoreWait(str(tmp_path / "missing")).read() is None


@pytest.mark.skipif(CoreWait().read() is None, reason="the system has no schedstat")
def test_a_thread_that_shares_its_core_waits() -> None:
    """Two processes on one core: each computes about half of the time, and waits in the other half."""
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    os.sched_setaffinity(0, one)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # inherits the core
    try:
        time.sleep(0.2)  # until it has started
        clock = CoreWait()
        waited, began, busy = clock.read(), time.perf_counter_ns(), time.thread_time_ns()
        while time.perf_counter_ns() - began < 300_000_000:
            pass
        took, busy, later = time.perf_counter_ns() - began, time.thread_time_ns() - busy, clock.read()
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
    assert waited is not None and later is not None
    assert 0.1 * took < later - waited
    assert later - waited + busy < 1.2 * took
