"""`rankscope explain` and the MCP server: ten recordings, and questions with known answers."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from rankscope.analysis.commands.explain import main

DATA = Path(__file__).parents[2] / "data"
Json = dict[str, Any]


def gains_are_bounds(found: Json) -> bool:
    return all(
        item["gain"]["at_most_ms"] is None or 0 <= item["gain"]["at_most_ms"] <= item["gain"]["of_step_ms"]
        for item in found["findings"]
    )


def untold(found: Json) -> dict[str, str]:
    return {item["about"]: item["reason"] for item in found["cannot_tell"]}


# recording: (exit status, what must hold). Truths: truth.json of the traces, DEFINITIONS.md of the cases.
QUESTIONS: dict[str, tuple[int, Callable[[Json], bool]]] = {
    "traces/big_baseline_w4": (0, lambda a: a["verdict"] == "none" and a["late_ranks"] == []),
    "traces/big_straggler_gpu_w4": (0, lambda a: (a["late_ranks"], a["cause"]) == ([3], "compute")),
    "traces/big_data_stall_rank0_w4": (0, lambda a: (a["late_ranks"], a["cause"]) == ([0], "data")),
    "traces/comm_bound_w4": (0, lambda a: a["late_ranks"] == [] and "exposed_comm" in [f["id"] for f in a["findings"]]),
    "nsys/big_baseline_w4": (0, lambda a: a["verdict"] == "none"),
    "runs/slow_host_w2": (0, lambda a: a["window"] == "plain" and "throughput" not in untold(a)),
    "cases/T04-truncated-json": (3, lambda a: "late_rank" in untold(a) and "waits" in untold(a)),
    "cases/P04-one-rank-input-stall": (0, lambda a: len(a["late_ranks"]) == 1 and a["cause"] == "data"),
    "cases/T23-no-profiler-step": (0, lambda a: "steps" in untold(a)),
    "cases/O04-no-communication": (0, lambda a: a["late_ranks"] == []),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_program_gets_the_right_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, holds = QUESTIONS[name]
    assert main([str(DATA / name), "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert holds(found), found
    assert gains_are_bounds(found)
    assert all(item["reason"] for item in found["cannot_tell"])
    if name.startswith(("traces", "cases")):
        assert "no plain pass" in untold(found)["throughput"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA / "traces" / "big_straggler_gpu_w4")]) == 0
    out = capsys.readouterr().out
    assert "What this recording cannot tell" in out and "throughput: no plain pass" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main([str(DATA / "nowhere"), "--json"]) == 2


async def _ask(calls: list[tuple[str, Json]]) -> list[Any]:
    from mcp import Client, StdioServerParameters, stdio_client

    command = StdioServerParameters(command=sys.executable, args=["-m", "rankscope.conf.cli", "mcp"])
    async with Client(stdio_client(command)) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"explain_recording", "summary", "timeline_slice", "what_if"}
        return [await client.call_tool(name, arguments) for name, arguments in calls]


def answers_to(calls: list[tuple[str, Json]]) -> list[Any]:
    """Ask in a thread of its own: browsers of other tests keep an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, _ask, calls).result()


def test_an_agent_gets_the_same_answers_from_a_real_server() -> None:
    path = str(DATA / "traces" / "big_straggler_gpu_w4")
    calls: list[tuple[str, Json]] = [
        ("explain_recording", {"path": path}),
        ("summary", {"path": path}),
        ("timeline_slice", {"path": path, "rank": 3, "step": 6, "start_ms": 0, "end_ms": 10}),
        ("what_if", {"path": path, "changes": ["rank3.compute=median"]}),
        ("what_if", {"path": path, "changes": ["nonsense"]}),
        ("explain_recording", {"path": "/nowhere"}),
        ("timeline_slice", {"path": path, "rank": 3, "step": 999}),
    ]
    answers, summary, part, predicted, refused, absent, beyond = answers_to(calls)
    assert answers.structured_content["late_ranks"] == [3]
    assert summary.structured_content["stragglers"]["rank"] == 3
    kernels = part.structured_content["kernels"]
    assert kernels and all(row["start_ms"] < 10 and row["start_ms"] + row["ms"] > 0 for row in kernels)
    assert predicted.structured_content["predicted_ms"] == pytest.approx(55.81, rel=0.03)  # the healthy job
    assert refused.is_error and "not a change" in refused.content[0].text
    assert absent.is_error and "/nowhere" in absent.content[0].text
    assert beyond.is_error and "there are ranks [0, 1, 2, 3] and steps" in beyond.content[0].text
