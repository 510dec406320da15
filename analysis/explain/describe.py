"""Makes the tables of docs/findings.md from the rules and the limits: `make docs` writes them, a test compares."""

import re
from pathlib import Path

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain.findings import RULES


def tables() -> dict[str, str]:
    """Return the Markdown tables by the name of their place in the document."""
    rules = ["| id | says | based on |", "| --- | --- | --- |"]
    rules += [f"| `{rule.id}` | {rule.says} | {rule.based_on} |" for rule in RULES]
    limits = ["| key | default | of |", "| --- | ---: | --- |"]
    for field in msgspec.inspect.type_info(Limits).fields:  # type: ignore[attr-defined]
        limits.append(f"| `{field.name}` | {field.default:.4g} | {field.type.extra_json_schema['description']} |")
    return {"rules": "\n".join(rules), "limits": "\n".join(limits)}


def filled(document: str) -> str:
    """Return the document with a new table between each `<!-- made: NAME -->` and `<!-- end -->`."""
    for name, table in tables().items():
        place = re.compile(rf"(<!-- made: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not place.search(document):
            raise ValueError(f"no place for the table of {name}: <!-- made: {name} --> ... <!-- end -->")
        document = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", document)  # type: ignore[misc]
    return document


if __name__ == "__main__":
    page = Path("docs/findings.md")
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
