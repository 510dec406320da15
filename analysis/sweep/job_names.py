"""Names the jobs of a sweep by the settings in which they differ."""

from collections.abc import Sequence
from typing import Any


def names(jobs: Sequence[Any]) -> list[str]:
    """Return a name for each job: the settings in which they differ, or the model if all are the same."""
    flat = [flattened(job) for job in jobs]
    differing = [key for key in flat[0] if any(other.get(key) != flat[0][key] for other in flat)] if flat else []
    if not differing:
        model = flat[0].get("model.name", "model") if flat else ""
        return [str(model)] * len(jobs)
    return [", ".join(f"{key}={job.get(key)}" for key in differing) for job in flat]


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
