"""The terminal of the commands: text from files is shown as it is, and can neither colour, link nor control."""

from collections.abc import Iterable
from typing import Any

from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rankscope.conf.plain_text import visible
from rankscope.conf.terminal import Terminal


class Console(Terminal):
    """rich's console without markup, emoji and guessed colours in strings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options | {"markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, with the control characters of `Text` made visible too. rich's own controls stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
