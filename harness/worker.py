"""One rank from its configuration to its exit: runs and records a job, and writes down whatever ends it."""

import logging
import os
import signal
from multiprocessing import current_process
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from rankscope.conf.contract import DUMP, SOCKETS, TURN
from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.harness.group.interrupt import SIGNALS, saving
from rankscope.harness.group.process_group import die_with_parent
from rankscope.harness.record.describe import one_line
from rankscope.harness.record.hang_dump import write_record
from rankscope.harness.record.nvtx import under_nsys
from rankscope.harness.record.progress import answer_for_stacks, reporting
from rankscope.harness.record.recording import Recording
from rankscope.harness.record.timed_collectives import keep_record
from rankscope.harness.script import run as script

log = logging.getLogger(__name__)


@record
def main(arguments: list[str]) -> None:
    """Run the rank that torchrun's environment names; `arguments` are the run folder and the pass.

    An error that stops the rank is passed on to torchrun.
    """
    path, names = arguments[0], arguments[1].split(",")
    run_dir = RunDir(Path(path).absolute())  # a script may change the working folder
    rank = int(os.environ.get("RANK", "0"))
    rank_dir = run_dir.for_pass(names[0]).rank(rank)
    if "RANKSCOPE_UMASK" in os.environ:  # nsys clears the umask, which would make the files writable for everybody
        os.umask(int(os.environ["RANKSCOPE_UMASK"], 8))
    rank_dir.path.mkdir(parents=True, exist_ok=True)
    if SOCKETS in os.environ:  # otherwise a rank that is killed leaves a folder pymp-... behind
        current_process()._config["tempdir"] = os.environ[SOCKETS]  # type: ignore[attr-defined]
    if not under_nsys():  # its parent is a short-lived helper of nsys; launch/run/nsys_shield.py takes care of it
        die_with_parent()
    log_to(rank_dir)
    answer_for_stacks(rank_dir)
    keep_record()  # for timed collectives, and to say what a job that hangs waits for
    recording = Recording(run_dir, names, rank)
    # Ctrl-C goes to the launcher, which sends SIGTERM: a script's own KeyboardInterrupt stays its own
    signals = (signal.SIGTERM,) if recording.config.script is not None else SIGNALS
    with saving(recording.save_for, signals, {DUMP: lambda: write_record(rank_dir)}):
        try:
            _run(recording)
        except BaseException as error:  # a boundary: every end of a rank is recorded and passed on to torchrun
            log.exception("rank %d failed", rank_dir.rank)
            recording.save(one_line(error))
            raise
        recording.save()


def _run(recording: Recording) -> None:
    config = recording.config
    if config.launch.turn is not None:
        # DDP imports it, which takes seconds: better now, while another run may measure
        import torch._dynamo  # noqa: F401

        with reporting(recording.rank_dir, of=0) as progress:
            progress.enter(TURN)
    with recording.turn:
        if config.script is not None:
            script.run(recording)
        else:
            from rankscope.harness.reference import job as reference  # models and data sets, which no script needs

            reference.run(recording)


def log_to(rank_dir: RankDir) -> None:
    """Log to the folder of this rank."""
    handler = logging.FileHandler(rank_dir.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("rankscope")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
