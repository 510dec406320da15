"""Names from files as text that does nothing: no control of the terminal, no formula of a spreadsheet, no mathematics.

A recording may come from anybody. Hosts, groups, kernels, files and messages can hold any character.
"""

import os
import unicodedata
from pathlib import Path

_KEPT = "\n\t"
# Controls, directions and invisible letters, halves of surrogates, ends of lines and of paragraphs.
_ACTING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    """Return `text` with controls and invisible letters as escapes, such as `\\x1b`; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) if _acts(letter) else letter for letter in text)


def _acts(letter: str) -> bool:
    return letter not in _KEPT and unicodedata.category(letter) in _ACTING


def _escaped(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def path_text(path: str | Path) -> str:
    """Return a path, or a name from it, as text: bytes that are not UTF-8 are unknown letters in it."""
    return os.fsencode(path).decode("utf-8", "replace")


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
