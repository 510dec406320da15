"""`rankscope mcp`: the answers of recordings for agents, over the Model Context Protocol on stdin and stdout.

It uses the official SDK (the extra `rankscope[mcp]`). It reads recordings that this user can read, writes only the
cache, and opens no port. Text of a recording is data: the tools return it inside JSON, and never act on it.
"""

from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import numpy as np
from pydantic import Field

from rankscope.analysis.commands.common import Recording, run_command
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import Table
from rankscope.analysis.pipeline import load
from rankscope.analysis.replay.predict import predict
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.answers import answers_of
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.show.timeline.build import RankView, build
from rankscope.analysis.show.timeline.codes import NAMES
from rankscope.conf.contract import OK

_ROWS = 200  # of a slice, for each of its tables
_INSTRUCTIONS = (
    "rankscope reads recordings of distributed training and says which rank is late, where a step's time goes, and "
    "what fixes would bring. Start with explain_recording. Numbers that are null are unknown: cannot_tell says why."
)
_Path = Annotated[str, Field(description="a run folder of rankscope, a folder of traces, or a trace file")]


def server() -> Any:
    """Return the server with its tools; needs the SDK."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    made = MCPServer("rankscope", instructions=_INSTRUCTIONS)

    def asked(path: str) -> Analysis:
        try:
            return load(Recording().convert(path, None, None))
        except AnalysisError as error:
            raise ToolError(str(error)) from None

    @made.tool()
    def explain_recording(path: _Path) -> dict[str, Any]:
        """Return the verdict, the findings with their bounds, and what the recording cannot tell, with reasons."""
        return dict(msgspec.to_builtins(answers_of(summarise(asked(path)))))

    @made.tool()
    def summary(path: _Path) -> dict[str, Any]:
        """Return the complete summary.json: steps, collectives, dimensions, stragglers, throughput, findings."""
        return summarise(asked(path))

    @made.tool()
    def timeline_slice(path: _Path, rank: int, step: int, start_ms: float = 0.0, end_ms: float = 1e9) -> dict[str, Any]:
        """Return what one rank did in a part of a step: its parts, collectives and kernels, ms from the step's start.

        At most 200 rows each, the longest ones.
        """
        analysis = asked(path)
        there = (analysis.rank_numbers, sorted({int(number) for number in analysis.step_table["step"]}))
        if rank not in there[0] or step not in there[1]:
            raise ToolError(f"no rank {rank} with a step {step}; there are ranks {there[0]} and steps {there[1]}")
        try:
            drawn = build(analysis, Path(path).name, step=step, ranks=[rank])
        except AnalysisError as error:
            raise ToolError(str(error)) from None
        return slice_of(drawn.view(rank), drawn.window(step)[0], start_ms, end_ms)

    @made.tool()
    def what_if(path: _Path, changes: list[str]) -> dict[str, Any]:
        """Return the step that changes would bring, and the critical path before and after.

        Changes: rank1.compute=median, loader=instant, transfer*0.5, host*0.8, kernel:REGEX*0.5, bucket_cap_mb=50,
        ranks=8.
        """
        analysis = asked(path)
        try:
            return dict(msgspec.to_builtins(predict(analysis, changes, analysis.without.step_ms)))
        except AnalysisError as error:
            raise ToolError(str(error)) from None

    return made


def slice_of(view: RankView, origin: int, start_ms: float, end_ms: float) -> dict[str, Any]:
    """Return the longest rows of a rank's tables that touch the window, in order of time."""
    low, high = origin + round(start_ms * 1e6), origin + round(min(end_ms, 1e9) * 1e6)

    def rows(table: Table, names: list[str]) -> list[dict[str, Any]]:
        inside = np.flatnonzero((table["start"] < high) & (table["end"] > low))
        took = (table["end"] - table["start"])[inside]
        kept = np.sort(inside[np.argsort(-took, kind="stable")[:_ROWS]])
        return [
            {
                "name": names[row],
                "start_ms": (int(table["start"][row]) - origin) / 1e6,
                "ms": (int(table["end"][row]) - int(table["start"][row])) / 1e6,
            }
            for row in kept.tolist()
        ]

    return {
        "rank": view.rank,
        "parts": rows(view.parts, [NAMES[code] for code in view.parts["part"].tolist()]),
        "collectives": rows(view.calls, [kind or "collective" for kind in view.calls.texts("kind")]),
        "kernels": rows(view.kernels, [name or "?" for name in view.kernels.texts("name")]),
    }


@click.command("rankscope mcp")
def mcp() -> int:
    """Serve recordings to agents over the Model Context Protocol, on stdin and stdout."""
    server().run("stdio")
    return OK


def main(argv: list[str]) -> int:
    """Run `rankscope mcp`; returns the exit status."""
    return run_command(mcp, argv)
