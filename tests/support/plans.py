"""Watches every statement that the package runs on SQLite, in every test, for those that read more the more is stored.

`install` makes each connection of the process a watched one. The first time that a statement comes, SQLite is asked
how it will answer it (EXPLAIN QUERY PLAN). A table that is read from end to end, or through an index whose columns tell
few rows apart, is a problem unless `ALLOWED` says why it isn't one.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable
from typing import Any

#: Indexes that give many rows for the values of so many of their first columns, and why there are such;
#: `tests/storage/test_fills.py` finds them by counting.
WIDE = {("turns_class", 1): "for listings by class, page by page",
        ("turns_version", 1): "its first column alone", ("turns_version", 2): "for listings by version, page by page",
        ("pending", 1): "all that waits is read, and nothing else", ("pending", 2): "the same",
        ("pending", 3): "the same",
        ("pending_of", 1): "all that waits of a version is dropped together", ("content", 1): "all of a version"}
#: Beginnings of statements, as patterns, that may read many rows, by the reason.
_ALLOWED: dict[str, list[str]] = {
    "a page of the newest or oldest rows: along the rows, up to its LIMIT": [
        r"SELECT (created|received|seq, received|id, reason) FROM \w+ ORDER BY seq( DESC)? LIMIT",
        r"SELECT .* FROM (turns|episodes|versions) WHERE .*ORDER BY (seq|version) DESC LIMIT \?",
        r"SELECT (version|\*|version, detail) FROM versions .*ORDER BY version DESC LIMIT",
        r"SELECT fate, reason, .* FROM samples ORDER BY seq DESC LIMIT", r"SELECT t, kind, .* FROM events ORDER BY id",
        r"SELECT seq, id, (crc, )?payload FROM outbox_\w+ WHERE seq > \? ORDER BY seq LIMIT"],
    "what is too old goes, and nothing else is read": [
        r"DELETE FROM (\w+) WHERE (seq|id) <= \(SELECT (MAX|max)\((seq|id)\)( - \?)? FROM \1\)",
        r"DELETE FROM live_scores WHERE version > 0",
        r"DELETE FROM turns WHERE seq <=", r"DELETE FROM episodes WHERE (closed = 1|group_id IN)",
        r"DELETE FROM episode_groups WHERE rowid <=", r"DELETE FROM (seconds|minutes) WHERE t [<>]"],
    "what is asked for, by time": [r"SELECT t, figures FROM (seconds|minutes) WHERE t >= \? AND t <="],
    "a quarantine: it has an upper bound": [
        r"SELECT (COUNT\(\*\), MAX\(\w+\)|TOTAL\(LENGTH\(payload\)\)|seq, id, payload) FROM \w+_(aside|rejected)"],
    "a few rows in all": [
        r"SELECT .* FROM (counters|live_scores|voided|sqlite_sequence)\b", r"DELETE FROM episode_rewards"],
    "once, when the file is opened": [
        r"SELECT COUNT\(\*\)(, COALESCE\(SUM\(LENGTH\(payload\)\), 0\)| AS n) FROM (outbox_\w+|transitions)$",
        r"SELECT (digest, before|session, before_ns) FROM forgotten",
        r"SELECT key, session, turn, instructions FROM conversations WHERE session IS NOT NULL ORDER BY seq",
        r"SELECT id, active FROM sessions WHERE ended = 0",
        r"SELECT (session, ended|id) FROM episodes WHERE closed = 0",
        r"SELECT version, manifest(, checkpoint, crc, detail)? FROM versions",
        r"UPDATE samples INDEXED BY pending SET (session|branch) = turn_id"],
    "once, of a damaged file": [
        r'(SELECT (rowid|\*|COUNT\(\*\)) FROM|DELETE FROM) "\w+"( |$)', r"INSERT OR IGNORE INTO \w+ \(id\) SELECT"],
    "forgetting, which is rare and looks for what has no index": [
        r"(SELECT turn_id, payload|DELETE) FROM (judgements|conversations|awaited) WHERE (session|turn) =",
        r"SELECT id, payload FROM (feedback WHERE instr|outbox_\w+ WHERE seq >)",
        r"SELECT seq, (turn_id, )?payload FROM (transitions|spans)",
        r"SELECT turn_id, accepted_at, payload FROM samples WHERE session",
        r"DELETE FROM forgotten WHERE session NOT IN", r"SELECT \* FROM versions ORDER BY version$",
        r"SELECT COUNT\(payload\), .* FROM samples WHERE fate = 'trained'", r"UPDATE samples SET fate = 'pending'"],
    "what waits for a step, along an index of that; the training loop spends a tenth of its time on it at most": [
        r".* FROM samples INDEXED BY (pending|pending_of) WHERE fate = 'pending'"],
    "samples whose content is kept, along an index of these, once a step": [
        r"UPDATE samples SET payload = NULL WHERE fate = 'trained' AND payload NOT NULL",
        r"SELECT DISTINCT group_id FROM samples INDEXED BY content",
        r"SELECT turn_id, payload, crc FROM samples INDEXED BY content"],
    "versions that were made since a sample": [r"SELECT COUNT\(\*\) AS age FROM versions WHERE version >"],
    "groups that are not closed, along an index of these": [
        r"SELECT .* FROM episode_groups WHERE state = '\w+' AND state <> 'closed'"],
    "sessions without turns go, every hundred seconds": [r"DELETE FROM sessions WHERE ended = 1 AND NOT EXISTS"],
    "for a person who asks, beside what is written": [
        r"SELECT COUNT\(\*\) FROM spans", r"SELECT payload FROM spans WHERE version IN",
        r"SELECT id, (at|rejected), reason, payload FROM \w+_(aside|rejected) WHERE"],
}
ALLOWED = [re.compile(pattern) for patterns in _ALLOWED.values() for pattern in patterns]

_SPACE, _MARKS = re.compile(r"\s+"), re.compile(r"\?(?:, ?\?)+")
_STATEMENT = re.compile(r"\s*(?:SELECT|WITH|INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_LAST_ROW = re.compile(r"\b(?:MAX|MIN)\((?:seq|id|rowid|version)\)", re.IGNORECASE)
_ACCESS = re.compile(r"(?P<how>SCAN|SEARCH) (?P<table>\w+)(?P<using> USING (?:AUTOMATIC )?(?:PARTIAL )?(?:COVERING )?"
                     r"(?:INDEX (?P<index>\w+)|INTEGER PRIMARY KEY|PRIMARY KEY))?(?: \((?P<terms>.*)\))?")

seen: dict[str, Any] = {}  #: parameters of the first run of each statement, by its text
problems: list[str] = []  #: that nobody has taken yet


class WatchedConnection(sqlite3.Connection):
    """Looks at the plan of each new statement of the package."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if sql not in seen and _of_the_package():
            watch(self, sql, parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        parameters = list(parameters)
        if parameters and sql not in seen and _of_the_package():
            watch(self, sql, parameters[0])
        return super().executemany(sql, parameters)


def _of_the_package() -> bool:
    """Whether the statement is the package's, and not a test's by a `Database` or a connection of it."""
    frame = sys._getframe(2)
    if frame.f_globals["__name__"] == "openclaw_rl.storage.database" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals["__name__"]).startswith("openclaw_rl.")


def install() -> None:
    """Watch the connections that are opened from now on."""
    if getattr(sqlite3.connect, "watched", False):
        return
    real = sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        return real(*args, **{"factory": WatchedConnection, **options})

    connect.watched = True  # type: ignore[attr-defined]
    sqlite3.connect = connect


def watch(db: sqlite3.Connection, sql: str, parameters: Any) -> None:
    """Note a statement, and what is wrong with its plan."""
    if not _STATEMENT.match(sql):
        return
    try:
        lines = plan(db, sql, parameters)
    except sqlite3.Error:  # the statement will say so itself
        return
    seen[sql] = _small(parameters)
    if (wide := costly(db, sql, lines)) and not allowed(sql):
        problems.append(f"{normal(sql)}\n    {'; '.join(wide)}")


def plan(db: sqlite3.Connection, sql: str, parameters: Any = ()) -> list[str]:
    """SQLite's plan of a statement, a line each."""
    return [str(row[3]) for row in sqlite3.Connection.execute(db, f"EXPLAIN QUERY PLAN {sql}", parameters)]


def costly(db: sqlite3.Connection, sql: str, lines: Iterable[str]) -> list[str]:
    """The lines of a statement's plan that read a table from end to end, or through too wide an index."""
    tables = {row[0] for row in sqlite3.Connection.execute(
        db, "SELECT name FROM main.sqlite_master WHERE type = 'table'")}
    return [line for line in lines if (found := _ACCESS.match(line)) and found["table"] in tables
            and _wide(found, sql)]


def _wide(found: re.Match[str], sql: str) -> bool:
    if found["how"] == "SCAN":
        return True
    if not found["using"]:  # the least or greatest of a column: of all rows, or the first or last of them
        return _LAST_ROW.search(sql) is None
    if found["terms"] is None:  # the first or last of an index
        return False
    equal = found["terms"].count("=?")
    return not equal or (found["index"], equal) in WIDE


def allowed(sql: str) -> bool:
    """Whether somebody has said why the statement may read much."""
    return any(pattern.match(normal(sql)) for pattern in ALLOWED)


def normal(sql: str) -> str:
    """A statement with single spaces, and with one parameter for each list of them."""
    return _MARKS.sub("?", _SPACE.sub(" ", sql)).strip()


def _small(parameters: Any) -> Any:
    if isinstance(parameters, dict):
        return {name: _small([value])[0] for name, value in parameters.items()}
    return [value[:64] if isinstance(value, (str, bytes)) else value for value in parameters]


def taken() -> list[str]:
    """The problems since the last call."""
    found, problems[:] = problems[:], []
    return found
