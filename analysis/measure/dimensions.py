"""Communication by dimension of the job: data, sharded, tensor, pipeline, expert, context parallel, or by its groups.

Input: a `Recording`. Output: rows per dimension, means per step and rank. A group's dimension comes from what the job
calls it (`Process Group Description`), otherwise from the annotations of FSDP around its collectives. If neither tells,
the dimension is described by its groups: all ranks, or groups of N with a stride.
"""

import re
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from rankscope.analysis.align.groups import group_members, group_name
from rankscope.analysis.core import group_by
from rankscope.analysis.core.collective_kinds import UNKNOWN_KIND
from rankscope.analysis.core.table import UNKNOWN, Column, Table
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.read.run_settings import config_of

# Words in descriptions, as device meshes, Megatron and inference engines write them.
_WORDS = {
    "tp": "tp", "tensor": "tp", "pp": "pp", "pipeline": "pp", "pipe": "pp", "ep": "ep", "expert": "ep", "moe": "ep",
    "cp": "cp", "context": "cp", "sp": "sp", "sequence": "sp", "fsdp": "fsdp", "shard": "fsdp",
    "dp": "dp", "data": "dp", "replicate": "dp", "ddp": "dp",
}  # fmt: skip
_GRADIENTS = {"dp", "fsdp"}  # dimensions over which gradients are reduced
_ACTIVATIONS = {"tp", "sp", "cp", "ep", "pp"}  # dimensions whose ranks exchange activations within a pass
_NOTHING = ("", "default_pg", "undefined", "none")
_LONGEST = 40  # characters of a description that is shown as it is
ALL_RANKS = "all ranks"


class Dimension(msgspec.Struct, frozen=True, kw_only=True):
    """The communication of one dimension; ms are means per analysed step and rank."""

    dimension: str
    groups: int
    group_size: int | None  # of the largest group
    kinds: list[str]  # the costliest first
    calls_per_step: float  # of a rank
    comm_ms: float
    transfer_ms: float | None  # None: not split
    wait_ms: float | None
    exposed_ms: float | None
    last_rank: int | None  # the rank that most often arrives last in its group; None: unknown, or a tie
    last_position: int | None  # its position in its group: the stage of a pipeline
    last_share: float | None  # of the collectives of its group
    last_by_ms: float | None  # median, after the median of the others
    uneven: float | None  # of all-to-all: what the fullest rank receives over the mean, median of the calls
    fullest_rank: int | None  # the rank that receives the most in more than half of these calls


def dimensions(recording: Recording) -> list[Dimension]:
    """Return the dimensions, the one with the most communication first; empty without analysed collectives."""
    if not len(recording.calls):
        return []
    calls = recording.calls.take(np.isin(recording.calls["step"], recording.steps_analysed))
    if not len(calls):
        return []
    of_group = names_by_group(recording)
    names = [of_group[code] for code in calls["group_id"].tolist()]
    found = {name: calls.take(rows) for name, rows in _places(names).items()}
    rank_steps = len(recording.ranks) * len(recording.steps_analysed)
    return sorted((_row(name, own, rank_steps) for name, own in found.items()), key=lambda row: -row.comm_ms)


class ShardedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What sharded data parallelism moves for one layer; ms are means per analysed step and rank."""

    layer: str
    gathers_per_step: float  # 2: the parameters are gathered again in the backward pass
    gather_ms: float
    gather_exposed_ms: float
    scatter_ms: float
    scatter_exposed_ms: float


_LAYER = re.compile(r"\(([^()]+)\)$")


def sharded_layers(recording: Recording) -> list[ShardedLayer]:
    """Return the layers of FSDP2, by name, as the annotations around the collectives name them."""
    if not len(recording.calls):
        return []
    calls = recording.calls.take(np.isin(recording.calls["step"], recording.steps_analysed))
    calls = calls.take(calls["scope"] >= 0)
    words = [match[1] if (match := _LAYER.search(word)) else "" for word in calls.words["scope"]]
    names = [words[code] for code in calls["scope"].tolist()]
    rank_steps = len(recording.ranks) * len(recording.steps_analysed)
    found = []
    for name, rows in _places(names).items():
        own = calls.take(rows)
        kinds = np.array(own.texts("kind"), str)
        gather, scatter = own.take(kinds == "allgather"), own.take(kinds == "reducescatter")
        if not name or not len(gather) + len(scatter):
            continue
        found.append(
            ShardedLayer(
                layer=name,
                gathers_per_step=round(len(gather) / rank_steps, 3),
                gather_ms=estimate_ms(float((gather["end"] - gather["start"]).sum()) / rank_steps),
                gather_exposed_ms=estimate_ms(float(gather["exposed_ns"].sum()) / rank_steps),
                scatter_ms=estimate_ms(float((scatter["end"] - scatter["start"]).sum()) / rank_steps),
                scatter_exposed_ms=estimate_ms(float(scatter["exposed_ns"].sum()) / rank_steps),
            )
        )
    return sorted(found, key=lambda row: _numbered(row.layer))


def _numbered(name: str) -> list[tuple[int, str]]:
    """Return a key by which layers.2 comes before layers.10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name[:200])]


def descriptions(recording: Recording) -> dict[str, str]:
    """Return what the job calls its process groups; of ranks that disagree, the first counts."""
    found: dict[str, str] = {}
    for data in recording.ranks:
        found = data.descriptions | found
    return found


def _places(names: Sequence[str]) -> dict[str, Column]:
    words = list(dict.fromkeys(names))
    codes = np.array([words.index(name) for name in names])
    return {words[code]: rows for code, rows in group_by.positions(codes).items()}


def names_by_group(recording: Recording) -> dict[int, str]:
    """Return the dimension of each group, by its code in the table of calls."""
    calls, described = recording.calls, descriptions(recording)
    if not len(calls):
        return {}
    whole = _of_run(recording)
    sharded = set(np.unique(calls["group_id"][calls["scope"] >= 0]).tolist())
    names = {}
    for code in np.unique(calls["group_id"]).tolist():
        word = calls.words["group_id"][code] if code >= 0 else "|null"
        told = canonical(described.get(group_name(word), ""))
        names[code] = told or ("fsdp" if code in sharded else _by_members(word, recording.world_size, whole))
    return names


def _of_run(recording: Recording) -> str:
    """Return the dimension of all ranks together, if the run's settings say it."""
    config = None if recording.run_dir is None else config_of(recording.run_dir)
    kind = "none" if config is None else config.parallelism
    return {"ddp": "dp", "fsdp": "fsdp", "tp": "tp", "pp": "pp"}.get(kind, ALL_RANKS)


def canonical(description: str) -> str:
    """Return the dimension that a description means (`mesh_dp_shard` is fsdp); empty if it says nothing."""
    if description.lower() in _NOTHING:
        return ""
    tokens = re.findall(r"[a-z]+", description.lower())
    found = list(dict.fromkeys(_WORDS[token] for token in tokens if token in _WORDS))
    if "fsdp" in found and "dp" in found:  # dp_shard
        found.remove("dp")
    return "_".join(found) or description.lower()[:_LONGEST]


def exchanges_activations(dimension: str) -> bool:
    """Return whether the ranks of a dimension exchange activations, and do not reduce gradients (as those of dp_cp)."""
    parts = set(dimension.split("_"))
    return bool(parts & _ACTIVATIONS) and not parts & _GRADIENTS


def exchanging(names: dict[int, str]) -> list[int]:
    """Return the codes of the groups whose dimension exchanges activations."""
    return [code for code, name in names.items() if exchanges_activations(name)]


def _by_members(word: str, world_size: int, whole: str) -> str:
    members = group_members(word)
    if members is None:
        return f"group {group_name(word)}" if group_name(word) else "unknown group"
    if len(members) == world_size:
        return whole
    gaps = set(np.diff(sorted(members)).tolist())
    stride = f", every {gaps.pop()} ranks" if len(gaps) == 1 and gaps != {1} else "" if gaps <= {1} else ", irregular"
    return f"groups of {len(members)}{stride}"


def _row(name: str, calls: Table, rank_steps: int) -> Dimension:
    took = calls["end"] - calls["start"]
    kinds = Counter[str]()
    for kind, ns in zip(calls.texts("kind"), took.tolist(), strict=True):
        kinds[kind or UNKNOWN_KIND] += ns
    last = _last(calls)
    uneven, fullest = _uneven(calls)
    return Dimension(
        dimension=name,
        groups=len(np.unique(calls["group_id"])),
        group_size=int(calls["members"].max()) or None,
        kinds=[kind for kind, _ in kinds.most_common()],
        calls_per_step=round(len(calls) / rank_steps, 3),
        comm_ms=estimate_ms(float(took.sum()) / rank_steps),
        transfer_ms=_mean(calls["transfer_ns"], rank_steps),
        wait_ms=_mean(calls["wait_ns"], rank_steps),
        exposed_ms=_mean(calls["exposed_ns"], rank_steps),
        last_rank=last[0],
        last_position=last[1],
        last_share=last[2],
        last_by_ms=last[3],
        uneven=uneven,
        fullest_rank=fullest,
    )


_EVEN_ENOUGH = 1.001  # the fullest rank over the mean, up to which no rank counts as the fullest


def _uneven(calls: Table) -> tuple[float | None, int | None]:
    """Return how unevenly all-to-all spreads its elements over the ranks that receive them, and who receives most."""
    known = calls["matched"] & (calls["out_nelems"] != UNKNOWN) & calls.where("kind", lambda word: word == "alltoall")
    rows = np.flatnonzero(known)
    if not len(rows):
        return None, None
    rows = rows[np.argsort(calls["call"][rows], kind="stable")]
    call, received = calls["call"][rows], calls["out_nelems"][rows]
    size = group_by.sizes(call)
    mean = np.add.reduceat(received, group_by.starts_of(call)).repeat(size[group_by.starts_of(call)]) / size
    share = received / np.maximum(mean, 1)
    most = group_by.highest(share, call)
    fullest = calls["rank"][rows][(share == most) & (most > _EVEN_ENOUGH)]
    ratio = round(float(np.median(most[group_by.starts_of(call)])), 4)
    ranks, counts = np.unique(fullest, return_counts=True)
    often = len(counts) and counts.max() * 2 > len(group_by.starts_of(call))
    return ratio, int(ranks[np.argmax(counts)]) if often else None


def _mean(values: Column, rank_steps: int) -> float | None:
    return None if (values == UNKNOWN).any() else estimate_ms(float(values.sum()) / rank_steps)


def _last(calls: Table) -> tuple[int | None, int | None, float | None, float | None]:
    """Return the rank that most often arrives last, its position in its group, how often, and by how much (ms).

    A rank counts only if it is last in more than half of the collectives of its groups.
    """
    known = calls.take(calls["matched"] & (calls["lateness_ns"] != UNKNOWN))
    if not len(known):
        return None, None, None, None
    order = np.lexsort([-known["lateness_ns"], known["call"]])
    _, first = np.unique(known["call"][order], return_index=True)
    last = known.take(order[first])
    ranks, counts = np.unique(last["rank"], return_counts=True)
    rank = int(ranks[np.argmax(counts)])
    share = float(counts.max()) / float((known["rank"] == rank).sum())
    if share <= 0.5:
        return None, None, None, None
    own = last.take(last["rank"] == rank)
    groups = Counter(own["group_id"].tolist()).most_common(1)
    members = group_members(known.words["group_id"][groups[0][0]]) or []
    position = list(members).index(rank) if rank in members else None
    return rank, position, round(share, 4), estimate_ms(float(np.median(own["lateness_ns"])))
