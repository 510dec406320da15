"""The list of rules: documented, distinct, and each with a limit that the documentation names."""

import re
from pathlib import Path

from rankscope.analysis.explain.describe import filled
from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.explain.findings import _IN_CODE, _OF_SCRIPTS, RULES, in_own_words

DOCUMENT = Path(__file__).parents[3] / "docs" / "findings.md"


def test_the_document_is_made_from_the_rules() -> None:
    text = DOCUMENT.read_text()
    assert filled(text) == text, "make docs"


def test_every_rule_has_its_own_name_and_meaning() -> None:
    assert len({rule.id for rule in RULES}) == len({rule.says for rule in RULES}) == len(RULES)


def test_every_advice_can_be_followed_in_a_job_that_rankscope_did_not_start() -> None:
    for rule in RULES:
        for advice in (rule.advice, *rule.variants.values()):
            assert not re.search(r"\b(ddp|data|model|profile|launch|optimizer|scenario)\.", advice.text), advice.text
            keys = {word.partition("=")[0] for word in advice.overrides}
            assert all(key in _IN_CODE or key.startswith(_OF_SCRIPTS) for key in keys), keys


def test_overrides_become_words_for_the_users_own_code() -> None:
    item = Finding(
        id="no_overlap", severity="low", ranks=[0], recoverable_ms=None, evidence={}, advice="smaller buckets",
        overrides=["ddp.bucket_cap_mb=1", "profile=light"],
    )  # fmt: skip
    foreign, script = in_own_words(item, keys=()), in_own_words(item, keys=_OF_SCRIPTS)
    assert foreign.advice == script.advice == "smaller buckets; in your code: bucket_cap_mb of DistributedDataParallel"
    assert (foreign.overrides, script.overrides) == ([], ["profile=light"])
