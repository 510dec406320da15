"""A rank answers a request by signal, whichever of its threads the signal reaches, and goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankscope.conf.contract import DUMP

PROGRAM = """
import sys, threading, time
from pathlib import Path
from rankscope.conf.contract import DUMP
from rankscope.harness.group.interrupt import saving
folder = Path(sys.argv[1])
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()  # its signals are not blocked
def answer():
    (folder / "answered").touch()
    raise RuntimeError("what is asked for cannot be had")
with saving(lambda name: (folder / name).touch(), answers={DUMP: answer}):
    (folder / "ready").touch()
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)  # the main thread waits, as inside a collective
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path.name
        time.sleep(0.01)


def test_a_question_is_answered_and_the_process_goes_on(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)])
    try:
        wait_for(tmp_path / "ready")
        for _ in range(2):
            os.kill(process.pid, DUMP)
            wait_for(tmp_path / "answered")
            (tmp_path / "answered").unlink()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        assert (tmp_path / "SIGTERM").exists()
    finally:
        process.kill()
