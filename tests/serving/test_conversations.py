"""Conversations without a session id stay in their session over a restart of the policy server."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_rl.serving import conversations
from openclaw_rl.serving.conversations import Conversations
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.storage.database import Database, StorageError
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1.environment_pb2 import PolicyEvent
from openclaw_rl.v1.turn_pb2 import ChatMessage, SessionEnd, Turn


class Rig:
    def __init__(self, folder: Path, limit: int = 100) -> None:
        self.store = Database(folder / "state.db", "group", SCHEMA + conversations.SCHEMA)
        self.outbox = Outbox(self.store, "turns")
        self.known = Conversations(self.store, limit)
        self.recorder = TurnRecorder(self.store, self.outbox, also=self.known.save)

    def say(self, session: str, *texts: str) -> None:
        *messages, response = chat(*texts)
        self.known.index.remember("ann", session, messages, response)
        with contextlib.suppress(StorageError):  # it is held
            self.recorder.turn_now(Turn(turn_id="-".join(texts), session_id=session)).result()

    def match(self, *texts: str) -> str | None:
        return self.known.index.match("ann", chat(*texts))


def chat(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]


def test_what_is_known_survives_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.say("s1", "hi", "hello")
    rig.say("s2", "good day", "hello")
    rig.say("s3", "yo", "hello")
    rig.say("s4", "yo", "hello")
    rig.store.close()
    rig = Rig(tmp_path)
    assert rig.match("hi", "hello", "bye") == "s1"
    assert rig.match("good day", "hello", "bye") == "s2"
    assert rig.match("yo", "hello", "bye") == "s4", "the newest of two"
    rig.store.close()


def test_the_table_of_an_older_release_is_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.say("s1", "hi", "hello")
    rig.say("s2", "yo", "hello")
    with rig.store.transaction() as db:
        db.execute("CREATE TABLE old (seq INTEGER PRIMARY KEY, key BLOB NOT NULL, session TEXT)")
        db.execute("INSERT INTO old SELECT seq, key, iif(session = 's2', NULL, session) FROM conversations")
        db.execute("DROP TABLE conversations")
        db.execute("ALTER TABLE old RENAME TO conversations")
    rig.store.close()
    rig = Rig(tmp_path)
    assert rig.match("hi", "hello", "bye") == "s1"
    assert rig.match("yo", "hello", "bye") is None, "it was of more than one"
    rig.say("s3", "hi", "hello")
    rig.store.close()
    rig = Rig(tmp_path)
    assert rig.match("hi", "hello", "bye") == "s3"
    rig.store.close()


CHILD = """
import sys, time
from pathlib import Path
from tests.serving.test_conversations import Rig
rig = Rig(Path(sys.argv[1]))
for i in range(10**6):
    rig.say(f"s{i}", f"hi {i}", "hello")
    print(i, flush=True)
"""


def test_a_killed_process_keeps_every_conversation_whose_turn_it_recorded(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    said = 0
    for line in child.stdout:
        said = int(line)
        if said == 50:
            break
    child.kill()
    child.wait()
    rig = Rig(tmp_path)
    events = [PolicyEvent.FromString(row.payload) for row in rig.outbox.window(0, 10_000, 2**24)]
    assert len(events) > 50
    for event in events[-50:]:
        number = event.turn.session_id.removeprefix("s")
        assert rig.match(f"hi {number}", "hello", "bye") == event.turn.session_id
    rig.store.close()


async def test_a_session_can_be_forgotten(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.say("s1", "hi", "hello")
    rig.say("s2", "good day", "hello")
    assert await rig.known.forget("s1") == 2
    assert await rig.known.forget("s1") == 0
    assert rig.match("hi", "hello", "bye") is None
    rig.store.close()
    rig = Rig(tmp_path)
    assert rig.match("hi", "hello", "bye") is None
    assert rig.match("good day", "hello", "bye") == "s2"
    assert rig.store.query("SELECT * FROM conversations WHERE session = 's1'") == []
    rig.store.close()


def test_disk_and_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "_PRUNE_EVERY", 10)
    rig = Rig(tmp_path, limit=20)
    for i in range(200):
        rig.say(f"s{i}", f"hi {i}", "hello")
    assert len(rig.known.index) == 20
    assert rig.store.query("SELECT count(*) AS n FROM conversations")[0]["n"] <= 2 * 20 + 10
    rig.store.close()
    rig = Rig(tmp_path, limit=20)
    assert [rig.match(f"hi {i}", "hello", "bye") for i in (189, 190, 199)] == [None, "s190", "s199"]
    rig.store.close()


def test_what_a_full_disk_refused_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    save = Conversations.save

    def fails(known: Conversations, db: object) -> None:
        save(known, db)  # type: ignore[arg-type]
        raise StorageError.of(rig.store.path, OSError("full"))

    rig.recorder._also = lambda db: fails(rig.known, db)
    rig.say("s1", "hi", "hello")
    rig.recorder._also = rig.known.save
    rig.recorder.retry()
    rig.recorder.session_end(SessionEnd(event_id="e", session_id="s1"))
    rig.store.close()
    rig = Rig(tmp_path)
    assert rig.match("hi", "hello", "bye") == "s1"
    rig.store.close()
