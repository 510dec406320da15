"""Where the ranks of one node write during a pass: the run folder itself, or a folder on the node's local disk.

When the pass has ended, its files are copied from the local disk to the run folder. Size and sha256 of each copy are
checked by reading it back. Nodes never write the same path: rank folders differ, and torchrun's logs go to a folder for
each node.
"""

import hashlib
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from rankscope.conf import RunConfig, RunDir
from rankscope.conf.files import replacing
from rankscope.launch.run.failure import Failure
from rankscope.launch.run.nodes import Node

Manifest = dict[str, tuple[int, str]]


class Stage:
    """`run_dir` is where the ranks read their configuration and write. Call `close` when the run has ended."""

    def __init__(self, config: RunConfig, node: Node) -> None:
        self._node = node
        self._aside: Path | None = None
        self.run_dir = node.run_dir
        if node.count == 1 and config.launch.local_dir is None:
            return
        if config.launch.local_dir is not None:
            Path(config.launch.local_dir).mkdir(parents=True, exist_ok=True)
        self._aside = Path(tempfile.mkdtemp(prefix="rankscope-", dir=config.launch.local_dir))
        self.run_dir = RunDir(self._aside / node.launch_id)
        self.run_dir.path.mkdir()
        for path in (node.run_dir.config, node.run_dir.environment):
            shutil.copyfile(path, self.run_dir.path / path.name)

    def collect(self, name: str, failure: Failure | None) -> tuple[Manifest, Failure | None]:
        """Copy the files of a pass to the run folder.

        Returns the copied files, and `failure` with paths in the run folder.
        """
        if self._aside is None:
            return {}, failure
        source, target = self.run_dir.for_pass(name), self._node.run_dir.for_pass(name)
        logs = target.torchrun / f"node-{self._node.number}"
        manifest: Manifest = {}
        for path in sorted(source.path.rglob("*")):
            if not path.is_file():
                continue
            inside = path.relative_to(source.path)
            place = logs / path.relative_to(source.torchrun) if inside.parts[0] == "torchrun" else target.path / inside
            try:
                entry = _copy(path, place)
            except OSError as error:
                text = f"{place}: cannot be written ({error.strerror}); the file is kept in {path}"
                self._aside = None  # keeps the folder, so that no recording is lost
                return manifest, failure or Failure(pass_name=name, kind="collect_failed", message=text)
            manifest[str(place.relative_to(self._node.run_dir.path))] = entry
        self._empty(source.path)
        moved = {str(source.torchrun): str(logs), str(source.path): str(target.path)}
        return manifest, None if failure is None else _renamed(failure, moved)

    def _empty(self, folder: Path) -> None:
        """Remove what is copied, but not rank.json: a later start looks there for what the job was seen to do."""
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # not empty
                    path.rmdir()
            elif path.name != "rank.json":
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder on the local disk."""
        if self._aside is not None:
            shutil.rmtree(self._aside, ignore_errors=True)


def missing(run_dir: RunDir, name: str, said: Manifest) -> Failure | None:
    """Return a failure for the first file that a node copied and that is missing or different now, or None."""
    for path, (size, digest) in said.items():
        place = run_dir.path / path
        if not place.resolve().is_relative_to(run_dir.path.resolve()):
            return Failure(pass_name=name, kind="collect_failed", message=f"{path}: leads out of the run folder")
        try:
            same = place.stat().st_size == size and _digest(place) == digest
        except OSError as error:
            return Failure(pass_name=name, kind="collect_failed", message=f"{place}: {error.strerror}")
        if not same:
            return Failure(pass_name=name, kind="collect_failed", message=f"{place}: is not what the node wrote")
    return None


def _copy(source: Path, target: Path) -> tuple[int, str]:
    target.parent.mkdir(parents=True, exist_ok=True)
    wanted = _digest(source)
    with replacing(target) as temporary:
        shutil.copy2(source, temporary)
        if _digest(temporary) != wanted:
            raise OSError(5, "the copy differs from the file", str(target))
    return target.stat().st_size, wanted


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _renamed(failure: Failure, moved: dict[str, str]) -> Failure:
    changes = {}
    for field in ("message", "log", "traceback"):
        text = getattr(failure, field)
        for old, new in moved.items():
            text = text and text.replace(old, new)
        changes[field] = text
    return msgspec.structs.replace(failure, **changes)
