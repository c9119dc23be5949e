"""List what a mesh on this machine has quarantined: refused messages, damaged records, damaged and foreign files."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.storage.quarantine_files import quarantined, size
from openclaw_rl.v1 import environment_pb2, turn_pb2, weights_pb2

#: What a table's payloads may be, the likeliest first.
_KINDS: dict[str, list[type[Message]]] = {
    "outbox_turns_rejected": [environment_pb2.PolicyEvent],
    "outbox_transitions_rejected": [turn_pb2.Transition],
    "outbox_samples_rejected": [turn_pb2.Sample],
    "events_aside": [environment_pb2.PolicyEvent, turn_pb2.Turn],
    "transitions_aside": [turn_pb2.Transition],
    "samples_aside": [turn_pb2.Sample],
    "manifests_aside": [weights_pb2.VersionManifest],
}


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A quarantined message."""

    component: str  #: whose file it is in
    table: str
    id: str
    at: float  #: when, in seconds since the epoch
    reason: str
    payload: bytes

    def content(self) -> dict[str, Any] | None:
        """The message as JSON has it; None when it can't be read."""
        for kind in _KINDS.get(self.table, []):
            message = kind()
            try:
                message.ParseFromString(self.payload)
            except DecodeError:
                continue
            if message.ListFields():
                return dict(MessageToDict(message, preserving_proto_field_name=True))
        return None


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """A quarantined file or folder."""

    component: str  #: or the folder of the home that it is in
    path: Path
    size: int  #: bytes


def messages(home: Home, limit: int = 100, id: str | None = None) -> list[QuarantinedMessage]:
    """The newest quarantined messages, at most `limit` of each table; only those of `id` when it is given. A
    file that can't be read is left out: its component says so in its status."""
    found: list[QuarantinedMessage] = []
    for component in COMPONENTS:
        path = home.component(component) / "state.db"
        if path.is_file():
            with contextlib.suppress(sqlite3.Error):
                found += _of_file(component, path, limit, id)
    return sorted(found, key=lambda message: message.at, reverse=True)


def _of_file(component: str, path: Path, limit: int, id: str | None) -> list[QuarantinedMessage]:
    found: list[QuarantinedMessage] = []
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table not in _KINDS:
                continue
            at = "rejected" if table.endswith("_rejected") else "at"
            rows = db.execute(f"SELECT id, {at}, reason, payload FROM {table} WHERE ?1 IS NULL OR id = ?1 "
                              "ORDER BY seq DESC LIMIT ?2", (id, limit))
            found += [QuarantinedMessage(component, table, *row) for row in rows]
    return found


def files(home: Home) -> list[QuarantinedFile]:
    """Quarantined files and folders: those of the components, and those in the other folders of the home."""
    folders = [*(home.component(component) for component in COMPONENTS), home.root / "telemetry", home.models]
    folders += sorted({path for path in home.root.glob("*") if path.is_dir()}.difference(folders))
    return [QuarantinedFile(folder.name, path, size(path)) for folder in folders for path in quarantined(folder)]
