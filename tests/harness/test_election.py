"""What a step is taken to be: marks of several sources in, the chosen one and a sentence out."""

import pytest

from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.principal import Principal
from rankscope.harness.script.election import Election, kind_of


def many(source: Source, count: int) -> list[Source]:
    return [source] * count


def heard(election: Election, *marks: Source) -> list[str]:
    return [election.hear(mark) for mark in marks]


def test_an_optimizer_that_steps_is_chosen_at_once() -> None:
    election = Election(None)
    election.promised.add("optimizer")
    assert heard(election, "loader", "backward", "optimizer") == ["preview", "ignore", "step"]
    assert heard(election, "loader", "backward", "optimizer") == ["ignore", "ignore", "step"]
    assert election.why("optimizer") == "a step is one step of an optimizer (steps_from chooses otherwise)"


def test_an_optimizer_that_never_steps_is_passed_over_in_the_end() -> None:
    election = Election(None)
    election.promised.add("optimizer")
    said = heard(election, *many("loader", 200))
    assert set(said[:-1]) == {"preview"} and said[-1] == "step"
    assert "the optimizer never stepped" in election.why("loader")


def test_a_loader_without_a_model_may_be_a_look_at_the_data() -> None:
    election = Election(None)
    assert heard(election, *many("loader", 3)) == ["preview"] * 3
    election.computes = True
    assert election.hear("loader") == "step"
    assert election.hear("optimizer") == "switch" and election.source == "optimizer"


def test_a_profiler_that_stops_stepping_gives_way() -> None:
    election = Election(None)
    assert election.hear("profiler") == "step"
    assert heard(election, *many("optimizer", 10)) == ["ignore"] * 9 + ["switch"]
    waits = Election(None)
    waits.promised.add("profiler")
    assert heard(waits, *many("optimizer", 3)) == ["preview", "preview", "step"]


@pytest.mark.parametrize("source", ["backward", "model"])
def test_weak_sources_need_many_marks(source: Source) -> None:
    election = Election(None)
    assert heard(election, *many(source, 10)) == ["preview"] * 9 + ["step"]


def test_what_the_user_asks_for_or_an_earlier_start_found_is_taken() -> None:
    election = Election("loader")
    assert heard(election, "optimizer", "loader") == ["ignore", "step"]
    assert "as steps_from=loader asks for" in election.why("loader")
    assert Election(None, "model", "as before").why("model") == "as before"


def test_ranks_with_other_kinds_of_steps_do_not_meet() -> None:
    assert kind_of("profiler") == kind_of("optimizer") != kind_of("loader") != kind_of("model")


class Thing:
    pass


def test_the_first_of_several_counts_until_only_others_are_used() -> None:
    principal, first, second = Principal(), Thing(), Thing()
    assert [principal.hear(thing) for thing in (first, second, first, second)] == ["step", "other", "step", "other"]
    assert [principal.hear(second) for _ in range(9)] == ["other"] * 8 + ["changed"]
    assert [principal.hear(first) for _ in range(39)] == ["other"] * 39
    principal.release(second)
    assert principal.hear(first) == "step"
