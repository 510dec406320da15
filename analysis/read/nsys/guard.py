"""Keeps an SQLite database from a stranger to what an export of nsys is: plain tables that are read.

A database can hold views, triggers and computed columns, which are programs: a file of 8 KB can ask for gigabytes, or
for a query that never ends. SQLite asks the authorizer for every table, view and function that a query would use.
"""

import sqlite3

_FUNCTIONS = {"coalesce", "glob", "like", "max", "min"}  # those that the queries of this package use
_MOST_VALUE = 64 << 20  # bytes of one text or blob
_EVERY = 1_000_000  # instructions of SQLite's machine between two looks at the limit
_PER_BYTE, _AT_LEAST = 200, 200_000_000  # instructions of a query: a row of 30 bytes needs about 50


def guard(database: sqlite3.Connection, size: int) -> None:
    """Let `database`, a file of `size` bytes, only answer queries of plain tables, in a time that follows its size."""
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
    left = [0]

    def authorize(action: int, first: str | None, second: str | None, _: str | None, inside: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            left[0] = max(_AT_LEAST, _PER_BYTE * size) // _EVERY  # a new query begins
        reads = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA)
        calls = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FUNCTIONS
        return sqlite3.SQLITE_OK if (reads or calls) and inside is None else sqlite3.SQLITE_DENY

    def spent() -> int:
        left[0] -= 1
        return int(left[0] < 0)

    database.set_authorizer(authorize)
    database.set_progress_handler(spent, _EVERY)
