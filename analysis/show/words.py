"""Sentences shared by the terminal, Markdown, HTML and exports. Input: parts of `summary.json`. Output: text."""

from rankscope.analysis.core.json import Json
from rankscope.analysis.core.parts import BETWEEN_COLLECTIVES

_CAUSE = {
    "compute": "it computes longer",
    "data": "its loader is slower",
    "host": "its host launches later",
    "copy": "its copies take longer",
    "earlier_comm": "collectives of another group hold it up",
    "mixed": "it has several causes",
    "unexplained": "the trace does not show why",
}
_CAUSE_OF_SEVERAL = {
    "compute": "they compute longer",
    "data": "their loaders are slower",
    "host": "their hosts launch later",
    "copy": "their copies take longer",
    "earlier_comm": "collectives of another group hold them up",
    "mixed": "there are several causes",
    "unexplained": "the trace does not show why",
}
_NAMED_RANKS = 8
_NAMED_STEPS = 3
_INDEPENDENT = "The ranks share no collective, so each trains on its own"
_OF_MANY_KINDS = ("recording",)  # what ranks noted: each is about something else
_SMALLEST_GAIN_MS = 0.005  # shown as 0.01
NO_GAIN = "other work sets the pace"
PROFILERS = {
    "timed": "NCCL's timing of collectives",
    "torch": "torch.profiler",
    "light": "its light pass (device only)",
    "nsys": "Nsight Systems",
}


def run_words(summary: Json) -> str:
    """Say what was run in a line; empty if nothing is known of it."""
    run, shown = summary["run"], ("job", "traces", "batch", "arithmetic", "ranks", "versions")
    return "; ".join(f"batch {run[name]}" if name == "batch" else run[name] for name in shown if name in run)


def recorded_words(summary: Json) -> str:
    """Say which steps were traced, and whether something is missing or doubtful."""
    steps, source = summary["steps"], summary["source"]
    if source is None:
        said = "Not traced"
    elif not steps:
        said = "No complete step was traced"
    else:
        said = f"{len(steps)} traced step{'s' if len(steps) > 1 else ''} analysed ("
        said += f"{steps[0]} to {steps[-1]})" if len(steps) > 1 else f"{steps[0]})"
    missing = summary["missing_ranks"]
    if missing:
        said += f"; without {ranks_words(missing, len(missing) + 1)}"
    states = {"partial": "; incomplete: see the warnings", "ok_with_warnings": "; with warnings"}
    return f"{said}{states.get(summary['status'], '')}"


def gain_words(finding: Json, per: str) -> str:
    """Say what a fix would save: ": up to 2.1 ms per step"; nothing of a finding that is no loss of time."""
    gain = finding["recoverable_ms"]
    if gain is None:
        return ": gain unknown"
    if gain >= _SMALLEST_GAIN_MS:
        return f": up to {gain:.2f} ms {per}"
    return f": no gain, {NO_GAIN}" if "replayed_ms" in finding["evidence"] else ""


def clock_words(clock: Json | None) -> str:
    """Say how the clocks of the ranks were made one, and how exactly; empty if they were not."""
    if clock is None or clock["error_bound_us"] is None:
        return ""
    way = {
        "shared_clock": "The ranks share a clock",
        "collective_ends": "The ranks' clocks were set by the ends of their collectives",
        "probes": "The ranks' clocks were set by recorded probes",
    }
    bound, against = clock["error_bound_us"], clock["causality_violations"]
    said = f"{way[clock['method']]}; error at most {max(bound, 1):.0f} us"
    if against:
        said += f"; {against} collective{'s' if against > 1 else ''} seem to end on one rank before another has begun"
    return said


def verdict_sentence(summary: Json) -> str:
    """Return the verdict in one or two sentences: which rank is late, by how much and why, and if the trace agrees."""
    found, traced = summary["stragglers"], summary["stragglers"]["traced"]
    said, stages = _verdict(summary), _of_stages(summary["findings"])
    if stages and found["verdict"] in ("none", "undetermined"):
        return stages
    if found["window"] == "trace" or traced["rank"] == found["rank"] or found["rank"] in traced["ranks"]:
        return said
    if traced["rank"] is None:
        if traced["verdict"] == "undetermined" or found["part"] == BETWEEN_COLLECTIVES:
            return said
        return f"{said} The traced steps do not show it."
    why = ", because it computes longer." if traced["cause"] == "compute" else ": profilers slow hosts unevenly."
    return f"{said} Under the profiler rank {traced['rank']} seems late{why}"


def _verdict(summary: Json) -> str:
    found = summary["stragglers"]
    rank, late, of = found["rank"], found["steps_late"], found["steps_judged"]
    if _apart(summary):
        return f"{_INDEPENDENT}: is the model wrapped in DistributedDataParallel?"
    if found["verdict"] == "undetermined":
        return f"Late rank: undetermined ({found['reason']})."
    where = _where(summary)
    if found["verdict"] == "none":
        if summary["world_size"] < 2:
            return "Only one rank, so nothing to wait for."
        if found["window"] == "timed" and found["reason"]:
            return f"No rank is known to be late in {of} steps{where}: {found['reason']}."
        only_traced = where and found["window"] == "trace"
        without = f"; without it this is not known: {found['reason']}" if only_traced and found["reason"] else ""
        return f"No rank is late{f' in {of} steps{where}' if where else ''}{without}."
    if found["verdict"] == "rotating":
        return f"Ranks take turns at being late ({late} of {of} steps{where}), by {found['lateness_ms']:.2f} ms."
    several = len(found["ranks"]) > 1
    because = (_CAUSE_OF_SEVERAL if several else _CAUSE).get(found["cause"], "the cause is unknown")
    if found["part"]:
        because += f" ({found['part']})"
    slow = [row for row in slow_hosts(summary) if set(row["ranks"]) & set(found["ranks"])]
    if len(slow) == 1 and set(found["ranks"]) <= set(slow[0]["ranks"]):
        every = "these are the ranks" if set(found["ranks"]) == set(slow[0]["ranks"]) else "like every rank"
        because += f", {every} of {'' if several else 'its '}host {slow[0]['host']}"
    because += _of_group(found["group"], several=several)
    interval = found["lateness_interval_ms"]
    sure = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    who = f"Ranks {_ranks(found['ranks'])} are" if several else f"Rank {rank} is"
    more = f" Others may be late too: {found['reason']}." if found["window"] == "trace" and found["reason"] else ""
    return f"{who} late in {late} of {of} steps{where}, by {found['lateness_ms']:.2f} ms{sure}: {because}.{more}"


def _of_group(group: Json | None, *, several: bool) -> str:
    """Say what the late ranks are within the job, if they are a group or a stage."""
    if group is None:
        return ""
    if group["position"] is not None:
        return f", {'these are' if several else 'this is'} stage {group['position']} of the pipeline"
    dimension = group["dimension"]
    one = f"the {dimension}" if dimension.startswith("groups") else f"the {dimension} groups"
    return f", these are the ranks of one of {one}"


def _of_stages(findings: list[Json]) -> str:
    """Say which stage of a pipeline the others wait for, if a finding says it."""
    uneven = next((item for item in findings if item["id"] == "uneven_stages"), None)
    if uneven is None:
        return ""
    stage, who = uneven["evidence"]["stage"], ranks_words(uneven["ranks"], 0)
    return f"Stage {stage} of the pipeline ({who}) computes longest, and the others wait for it, as the trace shows."


def _apart(summary: Json) -> bool:
    """Return whether the ranks share no collective."""
    return any(warning["kind"] == "independent_ranks" for warning in summary.get("warnings") or [])


def _ranks(ranks: list[int]) -> str:
    if len(ranks) <= _NAMED_RANKS:
        return ", ".join(map(str, ranks))
    return f"{', '.join(map(str, ranks[:_NAMED_RANKS]))} and {len(ranks) - _NAMED_RANKS} more"


def worth_dimensions(rows: list[Json]) -> bool:
    """Return whether dimensions say more than that all ranks communicate with one another."""
    return len(rows) > 1 or bool(rows and rows[0]["dimension"] not in ("all ranks", "dp"))


def ranks_words(ranks: list[int], world_size: int) -> str:
    """Name some ranks of a job: "every rank", "rank 3", "ranks 0, 2"; of many how many there are."""
    if len(ranks) == world_size and world_size > 1:
        return "every rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_ranks(ranks)}"


def _where(summary: Json) -> str:
    """Say which steps the verdict is from, if the recording has more than one kind of steps."""
    if summary["stragglers"]["window"] != "trace":
        return " without a profiler"
    return " under the profiler only" if summary["throughput"] else ""


def slow_words(summary: Json) -> str:
    """Say which steps are far longer than usual, where the time goes, and what it costs; empty if that is little."""
    costs = any(item["id"] == "slow_steps" for item in summary["findings"])
    return _slow(summary) if summary["slow_steps"] is not None and costs else ""


def rare_words(summary: Json) -> str:
    """Say the same of steps that cost too little for a finding, if a rank is at fault; otherwise empty."""
    slow = summary["slow_steps"]
    return _slow(summary) if slow is not None and slow["waiting"] and not slow_words(summary) else ""


def _slow(summary: Json) -> str:
    slow, of = summary["slow_steps"], summary["throughput"]
    count, more = len(slow["steps"]), slow["slow_ms"] - slow["usual_ms"]
    all_steps = f" of {of['steps']}" if of else ""
    named = f" ({', '.join(map(str, slow['steps']))})" if count <= _NAMED_STEPS else ""
    often = f"Every {slow['period']} steps" if slow["period"] else f"In {count}{all_steps} steps{named}"
    who = ranks_words(slow["ranks"], summary["world_size"])
    verb = "spend" if len(slow["ranks"]) > 1 and who != "every rank" else "spends"
    place = f", at {slow['where']}" if slow["where"] else ""
    cost = f"{slow['lost_ms']:.1f} of {slow['mean_ms']:.1f} ms per step"
    return f"{often} {who} {verb} {more:.0f} ms more than usual in {slow['place']}{place}: {cost}."


def slow_hosts(summary: Json) -> list[Json]:
    """Return the late hosts with several ranks; a late host with one rank is just a late rank."""
    return [row for row in summary.get("hosts") or [] if row["late"] and len(row["ranks"]) > 1]


def device_words(rows: list[Json]) -> str:
    """Say how busy the devices and their SMs were; empty if that is unknown."""
    busy, used = (_percent([row[name] for row in rows]) for name in ("gpu_busy_ratio", "sm_efficiency"))
    more = f", its SMs {used} (estimated from launches)" if used else ""
    return f"Device busy {busy} of the step{more}" if busy else ""


def unsplit_words(rows: list[Json]) -> str:
    """Say how much communication is exposed on ranks whose wait and transfer cannot be told apart; else empty."""
    known = [
        f"rank {row['rank']} {row['exposed_comm_ms']:.2f} ms"
        for row in rows
        if row["breakdown_ms"]["exposed_transfer"] is None and row["exposed_comm_ms"] is not None
    ]
    return f"; both together: {', '.join(known)}" if known else ""


def per_words(summary: Json) -> str:
    """Say what the gain of a finding is part of: a step, or the whole window of a recording without steps."""
    whole = not summary["steps"] and any("window_ms" in item["evidence"] for item in summary["findings"])
    return "of the window" if whole else "per step"


def _percent(values: list[float | None]) -> str:
    """Return the range of shares ("98 %", "63 to 93 %"); empty if one of them is unknown."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    low, high = f"{min(known):.0%}".rstrip("%"), f"{max(known):.0%}".rstrip("%")
    return f"{low} %" if low == high else f"{low} to {high} %"


def memory_words(rows: list[Json]) -> str:
    """Say how much memory the rank with the highest peak used; empty if that was not recorded."""
    if not rows:
        return ""
    most = max(rows, key=lambda row: row["peak_bytes"])
    reserved = "" if most["reserved_bytes"] is None else f", {byte_size(most['reserved_bytes'])} reserved"
    return f"Memory: at most {byte_size(most['peak_bytes'])} allocated{reserved} (rank {most['rank']})"


def rate_words(summary: Json) -> str:
    """Say how fast the job is without a profiler: samples, steps and their spread, percentiles of latency, MFU."""
    rate = summary["throughput"]
    if rate is None:
        return ""
    latency = {name.removesuffix("_ms"): value for name, value in (rate.get("latency") or {}).items()}
    known = ", ".join(f"{name} {value:.2f}" for name, value in latency.items() if value is not None)
    answer = f", latency {known} ms" if known else ""
    mfu = "" if rate["mfu"] is None else f", MFU {rate['mfu']:.1%}"
    added = ", all ranks added up," if _apart(summary) else ""
    samples = "" if rate["samples_per_s"] is None else f"{rate['samples_per_s']:.1f} samples/s{added} at "
    high = "" if rate["step_ms_p95"] is None else f", p95 {rate['step_ms_p95']:.2f}"
    steps = f"{rate['step_ms_mean']:.2f} ms per step (median {rate['step_ms_p50']:.2f}{high}; plain pass)"
    return f"Throughput {samples}{steps}{answer}{mfu}"


def slowdowns(summary: Json) -> list[str]:
    """Say for each profiler what it costs, with the interval of the ratio."""
    ratios, intervals = summary["profiler_overhead"], summary["profiler_overhead_interval"]
    return [
        _slowdown(title, ratios[name], intervals.get(name))
        for name, title in PROFILERS.items()
        if ratios.get(name) is not None
    ]


def _slowdown(profiler: str, ratio: float, interval: list[float] | None) -> str:
    """Say what a profiler costs. A ratio that may be 1, or is below 1, is noise."""
    low, high = interval or (ratio, ratio)
    if ratio <= 1 or low <= 1:
        return f"{profiler} adds no measurable time"
    between = f" ({low:.2f} to {high:.2f})" if interval else ""
    return f"{profiler} makes the step {ratio:.2f} times as long{between}"


def advice_of(finding: Json) -> str:
    """Return the advice, with the overrides that try it."""
    tried = " ".join(finding["overrides"])
    measured = finding["evidence"].get("of_ceiling")
    text: str = finding["advice"]
    if measured is not None:
        size = byte_size(finding["evidence"]["bytes"])
        text += f"; now {measured:.0%} of this node's all-reduce at {size}, bound by {finding['evidence']['bound_by']}"
    same = finding["evidence"].get("same_time_as")
    return (
        text
        + (f"; try {tried}" if tried else "")
        + (f" (overlaps with {same}: this time can be saved only once)" if same else "")
    )


def warning_lines(summary: Json) -> list[str]:
    """Return one line for each kind of warning: the first of its kind, and how many more there are."""
    kinds: dict[str, list[str]] = {}
    # A finding says the same with advice, and the verdict that ranks share no collective.
    elsewhere = {"independent_ranks", *(item["id"] for item in summary["findings"])}
    for warning in summary["warnings"]:
        if warning["level"] != "info" and warning["kind"] not in elsewhere:
            alike = warning["message"] if warning["kind"] in _OF_MANY_KINDS else warning["kind"]
            kinds.setdefault(alike, []).append(warning["message"])
    return [lines[0] + (f" (and {len(lines) - 1} more like it)" if len(lines) > 1 else "") for lines in kinds.values()]


def byte_size(count: int) -> str:
    """Return a size in decimal units, as bandwidths are: 33.55 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"
