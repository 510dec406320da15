"""`Window`: the steps of one window that all ranks have.

Input: what the ranks recorded in a pass. Output: one array per column, ranks x steps, in ns; NaN for null.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.read.pass_steps import PassSteps
from rankscope.conf.contract import BACKWARD_COMPUTE

Matrix = NDArray[np.float64]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of all ranks, in arrays of the same shape."""

    ranks: list[int]
    steps: list[int]
    columns: dict[str, Matrix]  # ranks x steps
    counted: NDArray[np.bool_]  # by step: whether it is after warm-up

    @classmethod
    def of(cls, passed: PassSteps) -> "Window | None":
        """Return the steps that every rank has; None if there are none."""
        ranks = sorted(passed.ranks)
        numbers = [passed.numbers[rank] for rank in ranks]
        common = sorted(set(numbers[0].tolist()).intersection(*(found.tolist() for found in numbers[1:])))
        if not common:
            return None
        at = [np.searchsorted(found, common) for found in numbers]
        names = set(passed.ranks[ranks[0]]).intersection(*(passed.ranks[rank] for rank in ranks[1:]))
        columns = {
            name: np.array([passed.ranks[rank][name][rows] for rank, rows in zip(ranks, at, strict=True)])
            for name in names
        }
        counted = np.all([passed.counted[rank][rows] for rank, rows in zip(ranks, at, strict=True)], axis=0)
        return cls(ranks=ranks, steps=[int(step) for step in common], columns=columns, counted=counted)

    def only(self, chosen: NDArray[np.bool_]) -> "Window":
        """Return the window with only the chosen steps."""
        steps = [step for step, kept in zip(self.steps, chosen.tolist(), strict=True) if kept]
        columns = {name: values[:, chosen] for name, values in self.columns.items()}
        return Window(ranks=self.ranks, steps=steps, columns=columns, counted=self.counted[chosen])

    @property
    def on_device(self) -> bool:
        """Whether the device's clock timed all steps."""
        return "device_ns" in self.columns and not np.isnan(self.columns["device_ns"]).any()

    @property
    def step_ns(self) -> Matrix:
        """Ranks x steps, by the device's clock if it timed them, otherwise by the host's."""
        return self.columns["device_ns" if self.on_device else "host_ns"]

    def part(self, name: str) -> Matrix:
        """Return a column, with 0 for what was not recorded."""
        found = self.columns.get(f"{name}_ns")
        return np.zeros(self.step_ns.shape) if found is None else np.nan_to_num(found)

    @property
    def backward_compute_ns(self) -> Matrix:
        """From the begin of the backward pass until the rank's own gradients are computed; 0 if unknown for a rank."""
        found = self.columns.get(BACKWARD_COMPUTE, np.full(self.step_ns.shape, np.nan))
        return np.where(np.isnan(found).any(axis=0), 0.0, found)
