"""The program nsys: its path, its version, and its exports of reports. Used by launch and by the analysis.

No function raises for a missing or failing program: it returns None, or one line that gives the reason.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

HIDDEN = ("/opt/nvidia/nsight-systems/*/bin/nsys", "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys")
_LIMIT_S = 300
_RELEASE = re.compile(r"\d{4}(?:\.\d+)+")
_HOST_FOLDERS = ("host-linux-x64", "host-linux-armv8", "linux-desktop-glibc_2_11_3-x64")


def find() -> Path | None:
    """Return nsys from PATH, otherwise the newest that the CUDA toolkit or Nsight Compute installed."""
    on_path = shutil.which("nsys")
    if on_path is not None:
        return Path(on_path)
    found = [path for pattern in HIDDEN for path in Path("/").glob(pattern.lstrip("/")) if os.access(path, os.X_OK)]
    return max(found, key=lambda path: (release_numbers(str(path)), str(path)), default=None)


def release(program: Path) -> str | None:
    """Return the release that a program of Nsight Systems reports, such as 2023.4.4.54."""
    said, _ = _run([str(program), "--version"], limit_s=30)
    match = _RELEASE.search(said)
    return match[0] if match else None


def release_numbers(text: str) -> tuple[int, ...]:
    """Return the first release in a text as numbers for comparison, or () if there is none."""
    match = _RELEASE.search(text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def importer(nsys: Path) -> Path | None:
    """Return the importer of the same release, which converts a raw recording (.qdstrm) to a report."""
    real = nsys.resolve()
    folders = [real.parent.parent / name for name in _HOST_FOLDERS]
    if len(real.parents) > 3:  # Debian: lib/<architecture>/nsight-systems/target.../nsys, lib/nsight-systems/host...
        folders += [real.parents[3] / "nsight-systems" / name for name in _HOST_FOLDERS]
    found = [folder / "QdstrmImporter" for folder in folders if (folder / "QdstrmImporter").exists()]
    wanted = release(nsys)
    return next((path for path in found if wanted is not None and release(path) == wanted), None)


def export(nsys: Path, report: Path, target: Path) -> str | None:
    """Write a report's SQLite export to `target`, completely or not at all. Return None, or the reason for failure."""
    temporary = target.with_name(f".{target.stem}.{os.getpid()}.tmp.sqlite")
    said, status = "", None
    try:
        # NCCL's payload needs the blobs, but releases before 2024 do not know the option
        for extra in (["--include-blobs=true"], []):
            options = ["-t", "sqlite", "-q", "true", "-f", "true", *extra, "-o", str(temporary), str(report)]
            said, status = _run([str(nsys), "export", *options])
            if status == 0 and temporary.exists() and temporary.stat().st_size:
                os.replace(temporary, target)
                return None
    finally:
        temporary.unlink(missing_ok=True)
    return f"nsys export failed: {last_line(said) or f'exit status {status}'}"


def import_raw(importer: Path, raw: Path, target: Path) -> str | None:
    """Convert a raw recording to a report. Return None, or the reason for failure."""
    said, status = _run([str(importer), "-i", str(raw), "-o", str(target)])
    return None if target.exists() and target.stat().st_size else last_line(said) or f"exit status {status}"


def last_line(text: str) -> str:
    """Return the last line of a program's output that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _run(command: list[str], limit_s: float = _LIMIT_S) -> tuple[str, int | None]:
    """Return a program's output and its exit status; the status is None if it could not run or did not end."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=limit_s
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error), None
    return done.stdout + done.stderr, done.returncode
