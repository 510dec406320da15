"""Names from files as text that does nothing: no control of the terminal, no formula of a spreadsheet, no mathematics.

A recording may come from anybody. Hosts, groups, kernels, files and messages can hold any character.
"""

import unicodedata

_KEPT = "\n\t"
_DIRECTIONS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"


def visible(text: str) -> str:
    """Return `text` with control characters as escapes, such as `\\x1b`, except for line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) if _acts(letter) else letter for letter in text)


def _acts(letter: str) -> bool:
    return letter not in _KEPT and (unicodedata.category(letter) in ("Cc", "Cs") or letter in _DIRECTIONS)


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def markdown(text: str) -> str:
    """Return `text` for Markdown, also inside a table: on one line, without tags and columns of its own."""
    line = " ".join(visible(text).split("\n"))
    return line.replace("<", "&lt;").replace("|", "\\|")


def cell(text: str) -> str:
    """Return `text` for a CSV file: a spreadsheet must not take it for a formula."""
    shown = visible(text)
    return f"'{shown}" if shown[:1] in ("=", "+", "-", "@", "\t") else shown


def drawn_text(text: str) -> str:
    """Return `text` for a figure: matplotlib takes what is between two dollars for mathematics."""
    return visible(text).replace("\n", " ").replace("$", r"\$")
