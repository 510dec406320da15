"""What a terminal shows while work goes on: nothing within a second, nothing elsewhere, nothing left behind."""

import io
import sys

import pytest

from rankscope.analysis.core import progress
from rankscope.analysis.core.progress import Steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown", "after", "said"),
    [
        (Terminal(), True, 0.0, True),
        (Terminal(), True, 60.0, False),
        (Terminal(), False, 0.0, False),  # --quiet
        (io.StringIO(), True, 0.0, False),
    ],
)
def test_steps(stream: io.StringIO, shown: bool, after: float, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_AFTER", after)
    with Steps(shown=shown) as steps:
        steps.next("drawing the picture")
        steps.next("writing")
    text = stream.getvalue()
    assert ("drawing the picture ..." in text) == said
    assert text.rpartition("\r")[0].rpartition("\r")[2].strip() == ""  # the line was cleared
    assert "\n" not in text and "\x1b" not in text
