"""An SQLite file is a program: what a stranger's export may make this one do."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.analysis.core.notices import UnreadableTraceError
from rankscope.analysis.read.nsys.export import Export
from rankscope.analysis.read.nsys.guard import guard
from rankscope.conf.cli import main

GLOO = Path(__file__).parents[2] / "data" / "nsys" / "gloo_w2" / "rank_0.sqlite"
Make = Callable[[sqlite3.Connection], object]


def export(path: Path, make: Make) -> Export:
    with sqlite3.connect(path) as database:
        make(database)
    database.close()
    return Export(path, path.name)


def strings(found: Export) -> object:
    return found.rows("SELECT id, value FROM StringIds")


PROGRAMS: dict[str, Make] = {
    "a view that never ends": lambda base: base.execute(
        "CREATE VIEW StringIds AS WITH RECURSIVE n(id, value) AS (SELECT 1, 'a' UNION ALL SELECT id + 1, 'a' FROM n) "
        "SELECT id, value FROM n"
    ),
    "a view of another table": lambda base: base.executescript(
        "CREATE TABLE secret(id, value); CREATE VIEW StringIds AS SELECT * FROM secret"
    ),
    "a computed column of a gigabyte": lambda base: base.executescript(
        "CREATE TABLE StringIds(id INTEGER, value TEXT GENERATED ALWAYS AS (hex(zeroblob(450000000)))); "
        "INSERT INTO StringIds(id) VALUES (1)"
    ),
    "a text of a hundred megabytes": lambda base: base.executescript(
        "CREATE TABLE StringIds(id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, zeroblob(100000000))"
    ),
}


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_are_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match=r"a\.sqlite: (the database is damaged|is a database, but not)"):
        strings(export(tmp_path / "a.sqlite", make))


def test_a_join_without_end_is_stopped() -> None:
    """One query over plain tables may take time in proportion to the file, not to the product of its tables."""

    base = sqlite3.connect(":memory:")
    base.execute("CREATE TABLE t(a)")
    base.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(3000)])
    guard(base, 30_000)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        base.execute("SELECT max(x.a + y.a + z.a) FROM t x, t y, t z").fetchall()
    assert base.execute("SELECT max(a) FROM t").fetchall() == [(2999,)]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.sqlite")
    with pytest.raises(OSError, match="not a regular file"):
        Export(tmp_path / "a.sqlite", "a.sqlite")


@pytest.mark.parametrize(
    "make",
    [
        lambda base: base.execute("ALTER TABLE StringIds RENAME TO s"),
        lambda base: base.execute('ALTER TABLE NVTX_EVENTS RENAME COLUMN "text" TO "text""); DROP TABLE x; --"'),
    ],
)
def test_a_stripped_copy_of_odd_tables(make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.sqlite"
    shutil.copy(GLOO, path)
    with sqlite3.connect(path) as database:
        make(database)
    database.close()
    assert main(["nsys-strip", str(path), "--out", str(tmp_path / "out")]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_stripped_copy_has_no_views_and_computed_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    shutil.copy(GLOO, path)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE NVTX_EVENTS RENAME TO n")
        database.execute("CREATE VIEW NVTX_EVENTS AS SELECT *, hex(zeroblob(450000000)) FROM n")
        database.execute("ALTER TABLE StringIds DROP COLUMN value")
        database.execute("ALTER TABLE StringIds ADD COLUMN value GENERATED ALWAYS AS (hex(zeroblob(450000000)))")
    database.close()
    assert main(["nsys-strip", str(path), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "a.sqlite").stat().st_size < path.stat().st_size
