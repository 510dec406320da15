"""The rule about the stages of a pipeline."""

from typing import Any

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.units import estimate_ms
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import Advice, Claim, Mended, Rule
from rankscope.analysis.measure.pipeline_stages import Pipeline

_NS_PER_MS = 1e6


def _uneven_stages(facts: Facts, limits: Limits) -> Claim | None:
    """Claim what equal stages would save in the pipeline that gains most."""
    found = [(even_gain_ms(pipeline), pipeline) for pipeline in facts.pipelines]
    if not found:
        return None
    gain, pipeline = max(found, key=lambda item: item[0])
    if gain * _NS_PER_MS < limits.reported * facts.step_ns:
        return None
    slowest = max(pipeline.stages, key=lambda stage: stage.compute_ms)
    evidence: dict[str, Any] = {
        "stage": pipeline.stages.index(slowest),
        "compute_ms": slowest.compute_ms,
        "mean_compute_ms": estimate_ms(_mean_compute_ms(pipeline) * _NS_PER_MS),
        "bubble_ms_by_stage": [stage.bubble_ms for stage in pipeline.stages],
        "micro_batches": pipeline.micro_batches,
    }
    return Claim(gain_ns=gain * _NS_PER_MS, ranks=[slowest.rank], evidence=evidence)


def even_gain_ms(pipeline: Pipeline) -> float:
    """Return what equal stages would save at most (ms per step).

    A step lasts sum t_s + (n - 1) max t_s for n micro-batches (pipeline_stages.py). Equal stages keep the sum, so they
    save n - 1 times what the slowest has above the mean. A stage below the mean would compute more, so its bubble must
    hold both.
    """
    mean = _mean_compute_ms(pipeline)
    slowest = max(stage.compute_ms for stage in pipeline.stages)
    others = [stage for stage in pipeline.stages if stage.compute_ms < slowest]
    room = min((stage.bubble_ms - max(0.0, mean - stage.compute_ms) for stage in others), default=0.0)
    again = 1 - 1 / max(pipeline.micro_batches, 1.0)
    return max(0.0, min((slowest - mean) * again, room))


def _mean_compute_ms(pipeline: Pipeline) -> float:
    return sum(stage.compute_ms for stage in pipeline.stages) / len(pipeline.stages)


RULES = (
    Rule(
        id="uneven_stages",
        says="one stage of a pipeline computes longer than the others, which wait for it in every micro-batch",
        seen_in="exposed_transfer",
        based_on="compute and bubble of each stage (docs/metrics.md)",
        counts_steps=True,
        check=_uneven_stages,
        advice=Advice(
            "one stage computes longer than the others, and they wait for it in every micro-batch: move layers from it "
            "to stages with less work"
        ),
        part="communication",
        mended=Mended(works=("compute",), even=True),
        remains="nothing",
        rough_on_cpu=True,
    ),
)
