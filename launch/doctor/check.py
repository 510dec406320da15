"""One check of `rankscope doctor`."""

from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; `needed` means that the main job cannot run without it."""

    name: str
    state: Literal["works", "missing", "fails"]
    detail: str
    fix: str | None = None
    needed: bool = False
