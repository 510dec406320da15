"""One line of what `rankscope doctor` found."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; `needed` when the main job cannot run without it."""

    name: str
    state: Literal["works", "missing", "fails"]
    detail: str
    fix: str | None = None
    needed: bool = False
