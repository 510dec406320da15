"""One rank from its configuration to its exit: a job is run, recorded, and whatever ends it is written down."""

import logging
import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from rankscope.conf.run_dir import RankDir, RunDir
from rankscope.harness.group.interrupt import saving
from rankscope.harness.group.process_group import die_with_parent
from rankscope.harness.record.nvtx import under_nsys
from rankscope.harness.record.progress import answer_for_stacks
from rankscope.harness.record.recording import Recording, one_line

log = logging.getLogger(__name__)


@record
def main(arguments: list[str]) -> None:
    """Run the rank that torchrun's environment names; `arguments` are the run folder and the pass.

    The error that stops a rank goes on to torchrun.
    """
    path, pass_name = arguments
    run_dir = RunDir(Path(path).absolute())  # a script may change the working folder
    rank_dir = run_dir.for_pass(pass_name).rank(int(os.environ.get("RANK", "0")))
    if "RANKSCOPE_UMASK" in os.environ:  # nsys clears it, which would let everybody write the rank's files
        os.umask(int(os.environ["RANKSCOPE_UMASK"], 8))
    rank_dir.path.mkdir(parents=True, exist_ok=True)
    if not under_nsys():  # there launch/shield.py stands for the parent, which is a short-lived helper of nsys
        die_with_parent()
    log_to(rank_dir)
    answer_for_stacks(rank_dir)
    recording = Recording(run_dir, pass_name, rank_dir)
    with saving(recording.save_for):
        try:
            _run(recording)
        except BaseException as error:  # a boundary: every end of a rank is recorded, and goes on to torchrun
            log.exception("rank %d failed", rank_dir.rank)
            recording.save(one_line(error))
            raise
        recording.save()


def _run(recording: Recording) -> None:
    config = recording.config
    if config.launch.turn is not None:
        import torch._dynamo  # noqa: F401  DDP imports it, which takes seconds: better while another run measures
    with recording.turn:
        if config.script is not None:
            from rankscope.harness.script import job as script

            script.run(recording)
        else:
            from rankscope.harness.reference import job as reference

            reference.run(recording)


def log_to(rank_dir: RankDir) -> None:
    """Log this rank's own lines into its folder."""
    handler = logging.FileHandler(rank_dir.log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("rankscope")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
