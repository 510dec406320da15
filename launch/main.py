"""`rankscope run`: overrides in, a run folder and the analysis's summary out.

Reads as the list of what happens: compose and validate, refuse what this machine cannot do, claim the folder, write
what ranks read, one pass after another, check what they wrote, write the status in every case, analyse.
"""

import errno
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import yaml

from rankscope.conf import ConfigError, RunConfig, RunDir, RunDirError, save_config
from rankscope.conf.files import write_json
from rankscope.conf.run_dir import Status
from rankscope.launch.compose import compose
from rankscope.launch.environment import environment, git_commit
from rankscope.launch.failure import Failure, Kind, failure_of
from rankscope.launch.nsys_command import program
from rankscope.launch.nsys_reports import collect, of_pass_or_reports
from rankscope.launch.preflight import refuse
from rankscope.launch.processes import MARK, Interrupted, Stop, end, mark, start
from rankscope.launch.torch_facts import TorchFacts, torch_facts
from rankscope.launch.torchrun import run_pass, torchrun_command
from rankscope.launch.usage import usage

REFUSED, PARTIAL = 2, 3

_RESERVE_BYTES = 64 * 1024  # given back when the run ends, so that its status can be written to a full disk
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ANALYSIS = ("-m", "rankscope.analysis")
_ANALYSIS_GRACE_S = 5.0
_log = logging.getLogger("rankscope.launch")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one point; returns the exit status: 0, 2 refused or no numbers, 3 partial, 130 or 143 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(usage())
        return 0
    try:
        overrides = _overrides(arguments)
        config = compose(overrides)
        if "--cfg" in arguments:
            print(yaml.safe_dump(msgspec.to_builtins(config), sort_keys=False), end="")
            return 0
        with Stop() as stop:
            facts = torch_facts()
            stop.check()
            refuse(config, facts)
            run_dir, failure = record(config, overrides, facts, stop)
            return _report(run_dir, failure, stop)
    except (ConfigError, RunDirError) as error:
        _say(f"rankscope: {error}")
        return REFUSED
    except OSError as error:  # the run folder cannot be made or written: nothing of ours is at fault
        _say(f"rankscope: {error.filename or 'run folder'}: {error.strerror}; give another runs_dir or make room")
        return REFUSED
    except Interrupted as interrupted:
        _say(f"rankscope: interrupted by {interrupted}")
        return 128 + interrupted.signum


def record(config: RunConfig, overrides: Sequence[str], facts: TorchFacts, stop: Stop) -> tuple[RunDir, Failure | None]:
    """Claim a run folder and record every pass into it; returns the folder and the first cause if one failed.

    The folder's status is written in every case. Raises `Interrupted` after no process of the run is left.
    """
    started = datetime.now().astimezone()
    exact = Path(config.run_dir) if config.run_dir is not None else None
    run_dir = RunDir.claim(Path(config.runs_dir), config.name, started, exact)
    with _logged(run_dir):
        return run_dir, _record(run_dir, config, overrides, facts, stop, started)


def _record(
    run_dir: RunDir, config: RunConfig, overrides: Sequence[str], facts: TorchFacts, stop: Stop, started: datetime
) -> Failure | None:
    passes: dict[str, Status] = {}
    failure: Failure | None = Failure(kind="launcher", message="the launcher failed")  # until it is known better
    try:
        _write_inputs(run_dir, config, overrides, facts, started)
        failure = _record_passes(run_dir, config, stop, passes)
    except OSError as error:
        kind: Kind = "disk_full" if error.errno in _FULL else "launcher"
        failure = Failure(kind=kind, message=f"{error.filename or run_dir.path}: {error.strerror}")
    except Interrupted as interrupted:
        failure = Failure(kind="interrupted", message=f"interrupted by {interrupted}")
        raise
    finally:
        _finish(run_dir, failure, passes)
    return failure


def _write_inputs(
    run_dir: RunDir, config: RunConfig, overrides: Sequence[str], facts: TorchFacts, started: datetime
) -> None:
    run_dir.write_record(
        rankscope=version("rankscope"),
        status="running",
        overrides=list(overrides),
        start=started.astimezone(UTC).isoformat(),
        end=None,
        git_commit=git_commit(),
        passes={},
        failure=None,
    )
    _reserve(run_dir).write_bytes(bytes(_RESERVE_BYTES))
    save_config(config, run_dir.config)
    write_json(run_dir.environment, environment(facts))


def _record_passes(run_dir: RunDir, config: RunConfig, stop: Stop, passes: dict[str, Status]) -> Failure | None:
    """Run the passes in turn, up to the first that fails; notes the status of each in `passes`."""
    for name in config.passes:
        since = time.time()
        passes[name] = "running"
        _log.info("pass %s: %s", name, shlex.join(torchrun_command(config, run_dir, name)))
        run_dir.write_record(passes=passes)
        pass_dir = run_dir.for_pass(name)
        failure = failure_of(pass_dir, run_pass(config, run_dir, name, stop), config.world_size, since)
        if name == "nsys":  # of a pass that failed too: the ranks that ended well have reports
            failure = of_pass_or_reports(failure, collect(config, pass_dir, program(config), since))
        if failure is not None:
            return failure
        passes[name] = "completed"
    return None


def _finish(run_dir: RunDir, failure: Failure | None, passes: dict[str, Status]) -> None:
    """Write how the run ended; a pass that did not end by itself shares the run's status."""
    _reserve(run_dir).unlink(missing_ok=True)
    _log.info("%s", "completed" if failure is None else failure.text())
    status: Status = "completed" if failure is None else "interrupted" if failure.kind == "interrupted" else "failed"
    ended = {name: status if state == "running" else state for name, state in passes.items()}
    run_dir.finish(status, passes=ended, failure=msgspec.to_builtins(failure))


def _report(run_dir: RunDir, failure: Failure | None, stop: Stop) -> int:
    """Say what failed, analyse what there is, and return the exit status."""
    if failure is not None:
        _say(failure.text())
        traces = [rank for rank in run_dir.for_pass("torch").ranks() if rank.trace.exists() and rank.info.exists()]
        traces = traces or [rank for rank in run_dir.for_pass("nsys").ranks() if rank.nsys_export.exists()]
        status = analyse(run_dir, stop, partial=True) if traces else REFUSED
        _say(f"rankscope: status failed; what was recorded is kept in {run_dir.path}")
        return PARTIAL if traces and status in (0, PARTIAL) else REFUSED
    return analyse(run_dir, stop)


def analyse(run_dir: RunDir, stop: Stop, partial: bool = False) -> int:
    """Start the analysis by its name; its summary goes to our stdout, its exit status is returned."""
    command = [sys.executable, *_ANALYSIS, str(run_dir.path), *(["--allow-partial"] if partial else [])]
    process = start(command, {**os.environ, MARK: mark(run_dir.path)})
    try:
        status = stop.wait(process)
    except Interrupted as interrupted:
        if partial:  # the run has failed before, and says why
            raise
        message = f"interrupted by {interrupted} in the analysis; every pass is complete"
        run_dir.finish("interrupted", failure=msgspec.to_builtins(Failure(kind="interrupted", message=message)))
        raise
    finally:
        end(process, run_dir.path, _ANALYSIS_GRACE_S)
    if status not in (0, REFUSED, PARTIAL):
        _say(f"rankscope: the analysis ended with exit status {status}; again with: rankscope analyze {run_dir.path}")
    return status if status >= 0 else 128 - status


def _overrides(arguments: Sequence[str]) -> list[str]:
    """Return the overrides among the arguments; raises `ConfigError` for a flag that does not exist."""
    flags = [argument for argument in arguments if argument.startswith("-") and argument != "--cfg"]
    if flags:
        raise ConfigError(f"{flags[0]}: no such option; there are --cfg and --help, the rest is key=value")
    return [argument for argument in arguments if argument != "--cfg"]


@contextmanager
def _logged(run_dir: RunDir) -> Iterator[None]:
    """Write what the launcher logs to launcher.log; a full disk must not turn a line of log into a traceback."""
    handler = logging.FileHandler(run_dir.log, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        handler.close()


def _reserve(run_dir: RunDir) -> Path:
    return run_dir.path / ".reserve"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
