"""The list of rules: documented, distinct, and each with a limit that the documentation names."""

from pathlib import Path

from rankscope.analysis.explain.describe import filled
from rankscope.analysis.explain.findings import RULES

DOCUMENT = Path(__file__).parents[3] / "docs" / "findings.md"


def test_the_document_is_made_from_the_rules() -> None:
    text = DOCUMENT.read_text()
    assert filled(text) == text, "make docs"


def test_every_rule_has_its_own_name_and_meaning() -> None:
    assert len({rule.id for rule in RULES}) == len({rule.says for rule in RULES}) == len(RULES)
