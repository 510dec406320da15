"""Checks Nsight Systems: is it installed, does it have its importer, and do NVTX ranges arrive in a report."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from rankscope.conf import nsys_tool
from rankscope.conf.contract import DOCTOR_RANGE
from rankscope.launch.doctor.check import Check

_LIMIT_S = 120
_ATTEMPTS = 3  # on a busy machine a short program can end before nsys is attached: one miss proves nothing
_GET = "install NVIDIA Nsight Systems (docs/nsys.md says how)"


def checks() -> list[Check]:
    """Return the checks; one of them profiles a small program, which takes about 10 s."""
    nsys = nsys_tool.find()
    if nsys is None:
        return [Check(name="nsys", state="missing", detail="neither on PATH nor next to CUDA", fix=_GET)]
    release = nsys_tool.release(nsys)
    if release is None:
        return [Check(name="nsys", state="fails", detail=f"{nsys} does not state its version", fix=_GET)]
    found = Check(name="nsys", state="works", detail=f"{release} ({nsys})")
    proof = _nvtx(nsys)
    return [found, _importer(nsys, release, imports=proof.state == "works"), proof]


def _importer(nsys: Path, release: str, *, imports: bool) -> Check:
    """Check whether raw recordings become reports; `imports` means that one just did, wherever the importer is."""
    importer = nsys_tool.importer(nsys)
    if importer is None and imports:
        return Check(name="nsys importer", state="works", detail="nsys made a report of its recording")
    if importer is not None:
        return Check(name="nsys importer", state="works", detail=f"{release} ({importer.parent})")
    beside = nsys.resolve().parent.parent / "host-linux-x64"
    fix = f"install the full package (with QdstrmImporter {release}) and link its host folder to {beside}"
    detail = "none of this release: nsys will leave a raw recording without a report"
    return Check(name="nsys importer", state="missing", detail=detail, fix=fix)


def _nvtx(nsys: Path) -> Check:
    name = "nsys sees NVTX"
    detail = fix = ""
    for _ in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            error = _proof(nsys, Path(folder))
        if error is None:
            return Check(name=name, state="works", detail="a range of this Python arrived in a report")
        detail, fix = error
    return Check(name=name, state="fails", detail=detail, fix=fix)


def _proof(nsys: Path, folder: Path) -> tuple[str, str] | None:
    """Profile one range; returns (what is wrong, what to do), or None if it arrived."""
    report, export = folder / "proof.nsys-rep", folder / "proof.sqlite"
    options = ["--trace=nvtx", "--sample=none", "--cpuctxsw=none", f"--session-new=rankscope-doctor-{os.getpid()}"]
    program = [sys.executable, "-m", "rankscope.harness.record.nvtx"]
    command = [str(nsys), "profile", *options, "-o", str(report.with_suffix("")), *program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as failed:
        return f"nsys profile cannot run: {failed}", _GET
    if "nvtx<0.2.12" in done.stderr:
        return "the package nvtx is too new for this nsys", "pip install 'nvtx<0.2.12'"
    if not report.exists():
        if report.with_suffix(".qdstrm").exists():
            return "nsys left a raw recording without a report", "see the importer above"
        said = nsys_tool.last_line(done.stderr + done.stdout)[:200]
        return f"nsys profile made no report: {said}", "try it yourself: nsys profile -t nvtx sleep 1"
    error = nsys_tool.export(nsys, report, export)
    if error is not None:
        return error, "check whether the disk is full, or install another release"
    if not _arrived(export):
        return "the range is not in the report", "pip install 'nvtx<0.2.12', or a CUDA build of torch"
    return None


def _arrived(export: Path) -> bool:
    query = "SELECT COUNT(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId WHERE COALESCE(text, value) = ?"
    try:
        database = sqlite3.connect(export)
        try:
            return bool(database.execute(query, (DOCTOR_RANGE,)).fetchone()[0])
        finally:
            database.close()
    except sqlite3.Error:  # without any range the table does not exist
        return False
