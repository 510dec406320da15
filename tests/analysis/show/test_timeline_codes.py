"""The codes that the figure, the page and the Perfetto trace share."""

import numpy as np

from rankscope.analysis.core.table import Table
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.show.colours import COLOURS
from rankscope.analysis.show.timeline.codes import NAMES, STRIP, TRANSFER, UNSPLIT, WAIT, strip_codes


def test_each_name_has_a_colour() -> None:
    assert NAMES[: len(PARTS)] == PARTS
    assert set(NAMES) | set(STRIP) <= set(COLOURS)


def test_the_strip_shows_what_communication_is_and_whether_compute_hides_it() -> None:
    comm = Table({"part": np.array([TRANSFER, TRANSFER, WAIT, WAIT, UNSPLIT]), "hidden": np.array([0, 1, 0, 1, 1])})
    found = [STRIP[code] for code in strip_codes(comm)]
    assert found == ["exposed_transfer", "hidden_transfer", "exposed_wait", "hidden_wait", "communication"]
