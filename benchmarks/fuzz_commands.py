"""Damages recordings and gives them to the commands: no traceback, no warning of Python, no hang, bounded memory.

    python benchmarks/fuzz_commands.py traces --seed 1 --count 40000
    python benchmarks/fuzz_commands.py exports --seed 1 --count 30000
    python benchmarks/fuzz_commands.py runs --seed 1 --count 30000
    python benchmarks/fuzz_commands.py runs --seed 1 --only 12          # number 12 alone; its folder is kept

Each number is a small recording (fuzz_seeds.py) after one to five changes (fuzz_changes.py). `rankscope analyze` reads
it and writes tables, Markdown and page; some numbers also go to the other commands. All run in one process, which is
made anew after some thousand numbers or when it hangs. Findings are printed with their changes, and kept.

A finding is a traceback or a warning, an exit status other than 0, 2 and 3, more than 20 s, more than 1.5 GB above the
process at rest, a control character in any output, or a tag of the poison in a page.
"""

import argparse
import collections
import contextlib
import gc
import io
import mmap
import os
import random
import re
import shutil
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

LIMIT_S, LIMIT_MB, KILL_MB = 20, 1500, 4000
ALLOWED = (0, 2, 3)
KINDS = ("bytes", "structure", "values")
_PER_PROCESS = 4000
_SWEEPS = 0.015
_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
_CODE = re.compile(r"(?s)\n```\n.*?\n```\n")
_TEXTS = (".html", ".md", ".svg", ".csv")


def commands(kind: str, folder: Path, out: Path, chance: random.Random) -> list[list[str]]:
    """Return what is run: always the analysis, sometimes another command."""
    path = str(folder)
    if (folder / "sweep.json").exists():
        return [
            chance.choice(
                [
                    ["report", path, "--out", str(out / "report"), "--quiet"],
                    ["compare", path, path, "--out", str(out / "compared")],
                    ["tensorboard", path, "--out", str(out / "log")],
                ]
            )
        ]
    found = [["analyze", path, "--no-cache", "--out", str(out)]]
    if chance.random() < 0.02:
        found += chance.choice(
            [
                [["timeline", path, "--out", str(out), "--no-cache"]],
                [["timeline", path, "--out", str(out), "--no-cache", "--full", "--make", "perfetto"]],
                [["ingest", path, "--out", str(out / "kept")], ["analyze", path, "--cache", str(out / "kept")]],
                [["analyze", path, "--no-cache", "--only-steps", "1:2", "--only-ranks", "0", "--json", "-"]],
                [["whatif", path, "--no-cache", "compute*2"], ["whatif", path, "--no-cache", "ranks=8"]],
                [["explain", path, "--no-cache", "--json"]],
            ]
        )
    if kind == "runs" and chance.random() < 0.015:
        found += [
            ["compare", path, path, "--out", str(out / "compared")],
            ["tensorboard", path, "--out", str(out / "log")],
        ]
    if kind == "exports" and chance.random() < 0.05:
        found.append(["nsys-strip", *map(str, sorted(folder.glob("*.sqlite"))), "--out", str(out / "stripped")])
    return found


def make(recording: dict[str, bytes], folder: Path, chance: random.Random, kind: str) -> list[str]:
    """Write the recording with one to five changes; returns what was done."""
    from fuzz_changes import ODD, Skipped, changed

    files, odd, done = dict(recording), {}, []
    for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
        name, change = chance.choice(sorted(files)), chance.choice(KINDS)
        if change == "structure" and chance.random() < (0.3 if kind == "runs" else 0.03):
            instead = chance.choice(["removed", "empty", "copied", "added", *ODD])
            if instead in ODD:
                odd[name] = instead
            elif instead == "removed":
                del files[name]
            else:
                place = re.sub(r"\d+", chance.choice(["2", "7", "1048575", "x"]), name) if instead == "added" else name
                files[place] = b"" if instead == "empty" else chance.choice(list(files.values()))
            done.append(f"{instead} {name}")
            if not files:
                break
            continue
        with contextlib.suppress(Skipped):
            files[name] = changed(name, files[name], change, chance)
            done.append(f"{change} {name}")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _place(path, data, odd.get(name))
    return done


def _place(path: Path, data: bytes, odd: str | None) -> None:
    if odd == "fifo":
        os.mkfifo(path)
    elif odd == "folder":
        path.mkdir()
    elif odd is not None:
        path.symlink_to({"loop": path.name, "outside": "/etc/hostname", "device": "/dev/zero"}[odd])
    else:
        path.write_bytes(data)


def run(words: list[str]) -> tuple[int | None, str]:
    """Return a command's exit status (None after an error of Python) and all that it printed."""
    from rankscope.conf.cli import main as rankscope

    out = io.StringIO()
    status: int | None = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = rankscope(words)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
    return status, out.getvalue()


def wrong(status: int | None, said: str, took: float, megabytes: float, out: Path) -> str | None:
    """Return what is wrong with a command's end, or None."""
    if status is None:
        return "traceback"
    if status not in ALLOWED:
        return f"exit status {status}"
    if took > LIMIT_S:
        return f"{took:.0f} s"
    if megabytes > LIMIT_MB:
        return f"{megabytes:.0f} MB"
    if _ACTS.search(said):
        return "control characters on the terminal"
    for path in out.rglob("*"):
        if path.suffix in _TEXTS:
            text = _CODE.sub("", path.read_bytes().decode("utf-8", "surrogateescape"))
            if _ACTS.search(text) or "<img src=x" in text:
                return f"poison in {path.name}"
    return None


def peak_mb() -> float:
    """Return the largest memory since the last call (MB), and count anew."""
    text = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def serve(options: argparse.Namespace, first: int, state: mmap.mmap, work: Path) -> None:
    """Try the numbers from `first` on, and note each in `state` before it is tried."""
    import pyarrow as pa
    from fuzz_seeds import KINDS as SEEDS

    warnings.simplefilter("error")
    recordings = SEEDS[options.kind]()
    run(["analyze", "/nowhere"])
    pa.set_cpu_count(1)
    gc.freeze()  # what was imported is never garbage
    peak_mb()
    rest = peak_mb()
    for number in range(first, min(options.count, first + _PER_PROCESS)):
        chance = random.Random(f"{options.seed} {number}")
        folder, out = work / f"{number}" / options.kind, work / f"{number}" / "out"
        state[:16] = struct.pack("qd", number, time.time())
        folder.mkdir(parents=True)
        out.mkdir()
        last = chance.random() < _SWEEPS  # the last of the run folders is a sweep, whose commands take long
        recording = recordings[-1] if last else chance.choice(recordings[:-1])
        done = make(recording, folder, chance, options.kind)
        kept = options.only is not None
        for words in commands(options.kind, folder, out, chance):
            state[:16] = struct.pack("qd", number, time.time())
            began = time.monotonic()
            status, said = run(words)
            problem = wrong(status, said, time.monotonic() - began, peak_mb() - rest, out)
            _count(state, status)
            if options.only is not None:
                print(said)
            if problem is not None:
                kept = True
                _report(options, number, problem, done, words, said)
        if not kept:
            shutil.rmtree(folder.parent)
    state[:16] = struct.pack("qd", min(options.count, first + _PER_PROCESS), 0.0)


def _count(state: mmap.mmap, status: int | None) -> None:
    at = 32 + 8 * (status if status in ALLOWED and status is not None else 4)
    state[at : at + 8] = struct.pack("q", struct.unpack("q", state[at : at + 8])[0] + 1)


def _report(options: Any, number: int, problem: str, done: list[str], words: list[str], said: str) -> None:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ") and "site-packages" not in line][-1:]
    text = " ".join([*places, *lines[-1:]])[:300]
    print(f"{options.kind} {options.seed} {number}: {problem}: {words[0]}: {'; '.join(done)}: {text!a}", flush=True)


def watch(child: int, state: mmap.mmap) -> str | None:
    """Wait for the child; returns why it had to be ended, or how it ended by itself, None if all is well."""
    while True:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            return None if code == 0 else f"the process ended with {os.waitstatus_to_exitcode(code)}"
        _, began = struct.unpack("qd", state[:16])
        why = f"no end in {LIMIT_S + 5} s" if began and time.time() - began > LIMIT_S + 5 else None
        with contextlib.suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
            if pages * os.sysconf("SC_PAGESIZE") / 1e6 > KILL_MB:
                why = f"more than {KILL_MB} MB"
        if why is not None:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return why
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["traces", "exports", "runs"])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    if options.only is not None:
        options.first, options.count = options.only, options.only + 1
    work = Path(tempfile.mkdtemp(prefix="rankscope-fuzz-"))
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    print(f"{options.kind}, seed {options.seed}, numbers {options.first} to {options.count - 1}, in {work}", flush=True)
    state, began, number = mmap.mmap(-1, 4096), time.monotonic(), options.first
    while number < options.count:
        state[:16] = struct.pack("qd", number, 0.0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                serve(options, number, state, work)
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)
        why = watch(child, state)
        number = struct.unpack("qd", state[:16])[0]
        if why is not None:
            print(f"{options.kind} {options.seed} {number}: {why}", flush=True)
            number += 1
    kept = collections.Counter(path.name for path in work.iterdir() if path.name != "cache")
    ends = {status: struct.unpack("q", state[32 + 8 * status : 40 + 8 * status])[0] for status in ALLOWED}
    print(f"{options.kind}, seed {options.seed}: {options.count - options.first} mutations in "
          f"{time.monotonic() - began:.0f} s; exits {ends}; {len(kept)} findings, kept in {work}")  # fmt: skip
    return 1 if kept and options.only is None else 0


if __name__ == "__main__":
    sys.exit(main())
