"""What the stores of a mesh say, read from the files themselves.

The files are opened read-only and no code of the components takes part: a fault in how they read their stores must not
hide a fault in what is in them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.v1 import environment_pb2, turn_pb2, weights_pb2

_STATES = {environment_pb2.TURN_STATE_OPEN: "open", environment_pb2.TURN_STATE_SENT: "sent",
           environment_pb2.TURN_STATE_NOT_TRAINABLE: "not trainable",
           environment_pb2.TURN_STATE_SUPERSEDED: "superseded",
           environment_pb2.TURN_STATE_REJECTED: "rejected"}
_PIECE = 1 << 20  # bytes


@dataclass
class TurnRow:
    """A turn in the environment server's store."""

    state: str
    reason: str
    text: str  #: of the response, its first 200 characters
    payload: bytes | None = None  #: the serialized Turn, while it may still be judged


@dataclass
class SampleRow:
    """A sample in the trainer's store."""

    fate: str
    version: int | None
    reason: str


@dataclass
class VersionRow:
    """A version in the trainer's store."""

    parent: int | None
    digest: str
    turns: list[str]
    detail: str
    lost: bool
    checkpoint: dict[str, str]  #: name of each of its files, and its SHA-256


@dataclass
class VersionFiles:
    """A version's folder. `problem` says how its files are not what its manifest says; empty when all is well."""

    folder: Path
    digest: str  #: that the manifest states
    problem: str


@dataclass
class Books:
    """All stores of a mesh. Sets and keys are turn ids, unless said otherwise."""

    outboxes: dict[str, set[str]] = field(default_factory=dict)  #: by "turns", "transitions", "samples"
    rejected: dict[str, dict[str, str]] = field(default_factory=dict)  #: the same; the reasons
    turns: dict[str, TurnRow] = field(default_factory=dict)
    queue: set[str] = field(default_factory=set)  #: transitions that wait for the judge
    samples: dict[str, SampleRow] = field(default_factory=dict)
    versions: dict[int, VersionRow] = field(default_factory=dict)
    head: int = 0  #: of the trainer
    active: int = 0  #: of the policy server
    policy_files: dict[int, VersionFiles] = field(default_factory=dict)
    trainer_files: dict[int, VersionFiles] = field(default_factory=dict)
    checkpoint_problem: str = ""  #: of the head's
    open_sessions: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)  #: files and folders that were set aside as damaged

    @property
    def waiting(self) -> dict[str, int]:
        """What is still under way, by place; empty when the ring is quiet."""
        counts = {f"outbox {name}": len(ids) for name, ids in self.outboxes.items()}
        counts["judge's queue"] = len(self.queue)
        counts["trainer's pending samples"] = sum(sample.fate == "pending" for sample in self.samples.values())
        counts["open turns"] = sum(turn.state == "open" for turn in self.turns.values())
        return {name: count for name, count in counts.items() if count}


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A store, read-only."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as db:
        db.row_factory = sqlite3.Row
        yield db


def read_books(home: Home, files: bool = True) -> Books:
    """Read all stores; `files`: also the versions' files, which takes seconds.

    Raises:
        OSError, sqlite3.Error: a store is missing or can't be read.
    """
    books = Books()
    with opened(home.component("policy_server") / "state.db") as db:
        _outbox(db, "turns", books)
    with opened(home.component("env_server") / "state.db") as db:
        _outbox(db, "transitions", books)
        for row in db.execute("SELECT id, state, reason, response_text, payload FROM turns"):
            books.turns[row["id"]] = TurnRow(_STATES[row["state"]], row["reason"], row["response_text"],
                                             row["payload"])
        books.open_sessions = [row["id"] for row in db.execute("SELECT id FROM sessions WHERE ended = 0")]
    with opened(home.component("prm_judge") / "state.db") as db:
        _outbox(db, "samples", books)
        books.queue = {row["turn_id"] for row in db.execute("SELECT turn_id FROM transitions")}
    with opened(home.component("trainer") / "state.db") as db:
        for row in db.execute("SELECT turn_id, fate, version, reason FROM samples"):
            books.samples[row["turn_id"]] = SampleRow(row["fate"], row["version"], row["reason"])
        for row in db.execute("SELECT version, manifest, checkpoint, detail, lost FROM versions"):
            manifest = weights_pb2.VersionManifest.FromString(row["manifest"])
            books.versions[row["version"]] = VersionRow(
                manifest.parent if manifest.HasField("parent") else None, manifest.digest, list(manifest.turn_ids),
                row["detail"], bool(row["lost"]), json.loads(row["checkpoint"]))
        head = db.execute("SELECT value FROM state WHERE name = 'head'").fetchone()
        books.head = int(head["value"]) if head else 0
    try:
        books.active = int(json.loads((home.component("policy_server") / "policy.json").read_bytes())["active"])
    except FileNotFoundError:
        pass  # nothing was ever activated
    books.aside = sorted(str(path.relative_to(home.root)) for name in COMPONENTS
                         for path in home.component(name).rglob("*corrupt-*"))
    if files:
        books.policy_files = version_files(home.component("policy_server") / "versions")
        books.trainer_files = version_files(home.component("trainer") / "versions")
        books.checkpoint_problem = _checkpoint_problem(home, books)
    return books


def _outbox(db: sqlite3.Connection, name: str, books: Books) -> None:
    books.outboxes[name] = {row["id"] for row in db.execute(f"SELECT id FROM outbox_{name}")}
    books.rejected[name] = {row["id"]: row["reason"]
                            for row in db.execute(f"SELECT id, reason FROM outbox_{name}_rejected")}


def version_files(root: Path) -> dict[int, VersionFiles]:
    """The versions below a folder, each read to its last byte."""
    found = {}
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if folder.name.isdecimal() and int(folder.name) > 0:
            found[int(folder.name)] = _version(folder)
    return found


def _version(folder: Path) -> VersionFiles:
    try:
        data = json.loads((folder / "manifest.json").read_bytes())
        stated = str(data["manifest"]["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return VersionFiles(folder, "", f"manifest.json: {error!r}")
    try:
        tensors = list(_tensors(folder / "model.safetensors"))
        there = {name: (dtype, shape, sha) for name, dtype, shape, sha in tensors}
        for name, dtype, shape, sha in data["tensors"]:
            if there.pop(name, None) != (dtype, tuple(shape), sha):
                return VersionFiles(folder, stated, f"tensor {name} is not what the manifest says")
        if there:
            return VersionFiles(folder, stated, f"tensors that the manifest does not name: {', '.join(there)}")
        if (digest := _digest(tensors)) != stated:
            return VersionFiles(folder, stated, f"the tensors' digest is {digest}, the manifest says {stated}")
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        return VersionFiles(folder, stated, f"model.safetensors: {error!r}")
    return VersionFiles(folder, stated, "")


def _tensors(file: Path) -> Iterator[tuple[str, str, tuple[int, ...], str]]:
    """Name, type, shape and SHA-256 of each tensor of a safetensors file."""
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        head = json.loads(stream.read(length))
        for name, entry in head.items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            stream.seek(8 + length + start)
            sha, left = hashlib.sha256(), stop - start
            while left:
                piece = stream.read(min(left, _PIECE))
                if not piece:
                    raise ValueError(f"{name} is cut off")
                sha.update(piece)
                left -= len(piece)
            yield name, entry["dtype"], tuple(entry["shape"]), sha.hexdigest()


def _digest(tensors: list[tuple[str, str, tuple[int, ...], str]]) -> str:
    """A version's digest, by the formula of protos/openclaw_rl/v1/weights.proto (VersionManifest.digest)."""
    sha = hashlib.sha256()
    for name, dtype, shape, digest in sorted(tensors, key=lambda tensor: tensor[0].encode()):
        sha.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0".encode() + bytes.fromhex(digest))
    return sha.hexdigest()


def _checkpoint_problem(home: Home, books: Books) -> str:
    version = books.versions.get(books.head)
    if books.head == 0 or version is None or version.lost:
        return ""
    for name, stated in version.checkpoint.items():
        file = home.component("trainer") / "checkpoints" / str(books.head) / name
        if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() != stated:
            return f"{file} is not what was written"
    return ""


#: Where a message stands in a `snapshot` that was taken and has left the store since.
TAKEN = "|taken"


def snapshot(file: Path, component: str) -> dict[str, Any]:
    """What a store would give after a restart now: id -> where it stands. Works on a copy, also while the component is
    stopped. A store that would be set aside as damaged gives nothing."""
    queries = {"policy_server": ["SELECT id, 'waits' FROM outbox_turns"],
               "env_server": ["SELECT id, 'taken' FROM inbox_events", "SELECT id, state FROM turns"],
               "prm_judge": ["SELECT id, 'taken' FROM inbox_transitions", "SELECT turn_id, 'waits' FROM transitions",
                             "SELECT id, 'judged' FROM outbox_samples"],
               "trainer": ["SELECT turn_id, fate || ' ' || IFNULL(version, '') FROM samples"]}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        copy = Path(folder) / file.name
        for suffix in ("", "-wal"):
            if Path(f"{file}{suffix}").exists():
                shutil.copyfile(f"{file}{suffix}", f"{copy}{suffix}")
        try:
            with closing(sqlite3.connect(copy)) as db:
                if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                    return {}
                for query in queries[component]:
                    for id, state in db.execute(query):
                        found[id] = f"{found.get(id, '')}|{state}"
        except sqlite3.DatabaseError:
            return {}
    return found


def record_problem(payload: bytes, decode: Any) -> str:
    """How a recorded turn does not fit together; empty when it does.

    Args:
        payload: the serialized Turn.
        decode: token ids to text, special tokens left out.
    """
    turn = turn_pb2.Turn.FromString(payload)
    record, text = turn.tokens, turn.response.content
    if len(record.logprobs) != len(record.response_ids) or len(record.model_logprobs) != len(record.response_ids):
        return f"{len(record.response_ids)} tokens, {len(record.logprobs)} and {len(record.model_logprobs)} logprobs"
    if sum(span.end - span.begin for span in record.spans) != len(record.response_ids):
        return "its version spans do not cover its tokens"
    if turn.response.tool_calls:
        return ""
    decoded = decode(list(record.response_ids))
    # The last character of a response that was cut may be half there.
    if decoded.strip().rstrip("\ufffd") != text.strip().rstrip("\ufffd"):
        return f"its tokens say {decoded!r}, its text is {text!r}"
    return ""
