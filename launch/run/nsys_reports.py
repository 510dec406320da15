"""Checks the nsys pass: every recorded rank has a new, complete report that can be exported and holds all its steps.

nsys can end with status 0 without a report, so only the files count.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from rankscope.conf import PassDir, RankDir, RunConfig, nsys_tool
from rankscope.conf.contract import STEP_RANGE
from rankscope.launch.run.failure import Failure, Kind, usable
from rankscope.launch.run.rank_files import log_of, stream
from rankscope.launch.system.nsys_command import is_profiled

_COUNT = f"""
SELECT COUNT(*) FROM NVTX_EVENTS WHERE end IS NOT NULL
AND COALESCE(text, (SELECT value FROM StringIds WHERE id = textId)) GLOB '{STEP_RANGE}[0-9]*'
"""


def collect(config: RunConfig, pass_dir: PassDir, nsys: Path, ranks: Sequence[int], since: float) -> Failure | None:
    """Export the reports of all these ranks; returns the first failure, or None."""
    failures = []
    for rank in ranks:
        rank_dir = pass_dir.rank(rank)
        if not is_profiled(config, rank, _local_rank(config, rank)):
            continue
        fault = _one(config, rank_dir, nsys, since)
        if fault is not None:
            kind, message = fault
            log = stream(pass_dir, _local_rank(config, rank)) or log_of(rank_dir)
            failures.append(
                Failure(pass_name=pass_dir.name, rank=rank, kind=kind, message=message, log=log and str(log))
            )
    return failures[0] if failures else None


def of_pass_or_reports(of_pass: Failure | None, of_reports: Failure | None) -> Failure | None:
    """Return the root cause: the failure of the pass, unless nsys failed and its recording explains it better."""
    if of_reports is None or of_pass is None:
        return of_pass or of_reports
    return of_reports if of_pass.kind == "nsys_failed" and of_reports.kind == "nsys_report_unfinished" else of_pass


def _local_rank(config: RunConfig, rank: int) -> int:
    return rank % (config.world_size // config.launch.nnodes)


def _one(config: RunConfig, rank_dir: RankDir, nsys: Path, since: float) -> tuple[Kind, str] | None:
    """Export the report of one rank; returns the kind of failure and its message, or None."""
    report, raw = rank_dir.nsys_report, rank_dir.nsys_report.with_suffix(".qdstrm")
    if usable(report, since) is not None and raw.exists():
        importer = nsys_tool.importer(nsys)
        if importer is None:
            return "nsys_report_unfinished", (
                f"nsys left a raw recording and no report: {raw}; it found no importer of its release. Install the "
                "full package (docs/nsys.md lists what is missing), or run on that machine: QdstrmImporter -i FILE"
            )
        error = nsys_tool.import_raw(importer, raw, report)
        if error is not None:
            return "nsys_report_unfinished", f"nsys left a raw recording, which cannot be imported ({error}): {raw}"
    fault = usable(report, since)
    if fault is not None:
        return "nsys_report_missing", f"nsys wrote no usable report: {report} {fault}"
    error = nsys_tool.export(nsys, report, rank_dir.nsys_export)
    if error is not None:
        return "nsys_export_failed", f"{report}: {error}"
    found, expected = _steps(rank_dir.nsys_export), config.profile.active
    if found < expected:
        return "nsys_no_steps", (
            f"the report has {found} of {expected} step ranges: {report}; `rankscope doctor` tests whether NVTX "
            "ranges arrive; long sessions lose rows, so keep the pass short"
        )
    return None


def _steps(export: Path) -> int:
    """Return the number of complete step ranges in an export."""
    try:
        database = sqlite3.connect(f"{export.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            return int(database.execute(_COUNT).fetchone()[0])
        finally:
            database.close()
    except sqlite3.Error:
        return 0
