"""Made-up stores of a mesh: real files, made by the components' own schemas, with whatever rows a test wants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openclaw_rl.config import TrainerConfig
from openclaw_rl.reward.queue import SCHEMA as JUDGE_SCHEMA
from openclaw_rl.reward.queue import JudgeQueue
from openclaw_rl.rollouts.tracking import tables
from openclaw_rl.rollouts.tracking.tables import OPEN, SENT, SUPERSEDED
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.event_recorder import SCHEMA as POLICY_SCHEMA
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.weights.store import VersionStore

STATES = {"open": OPEN, "sent": SENT, "superseded": SUPERSEDED}


class MadeUp:
    """The stores below a folder. Each method adds what a component would have, and closes the file again."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder).create()
        for name in ("policy_server", "env_server", "prm_judge", "trainer"):
            self.home.component(name).mkdir()
        self._insert("policy_server", POLICY_SCHEMA, [])
        self._insert("env_server", tables.SCHEMA, [])
        self._insert("prm_judge", JUDGE_SCHEMA, [])
        TrainerStore(self.home.component("trainer") / "state.db", "group", TrainerConfig()).close()

    def turn(self, id: str, state: str = "sent", text: str = "An answer.", reason: str = "") -> str:
        """The environment server knows a turn."""
        self._insert("env_server", tables.SCHEMA, [(
            "INSERT INTO turns (id, session, class, rule, version, state, reason, flaw, finished, requested, choice,"
            " request_text, response_text, parent, request, response) VALUES (?, 's', 1, '', 0, ?, ?, '', 0, 0, 0, '',"
            " ?, '', x'', x'')", (id, STATES[state], reason, text))])
        return id

    def waits(self, component: str, outbox: str, id: str) -> None:
        """A message waits in an outbox."""
        schema = {"policy_server": POLICY_SCHEMA, "env_server": tables.SCHEMA, "prm_judge": JUDGE_SCHEMA}[component]
        store = Database(self.home.component(component) / "state.db", schema=schema)
        Outbox(store, outbox).put(id, b"x")
        store.close()

    def sample(self, id: str, fate: str, version: int | None = None, reason: str = "") -> None:
        """The trainer knows a sample."""
        self._trainer("INSERT INTO samples (turn_id, fate, version, reason, hinted, accepted_at) "
                      "VALUES (?, ?, ?, ?, 0, 0)", (id, fate, version, reason))

    def version(self, number: int, turns: list[str], parent: int = 0, policy: bool = True) -> Path:
        """The trainer made a version of these turns, which is the head and the active one; its folder there."""
        manifest = weights_pb2.VersionManifest(version=number, parent=parent, turn_ids=turns)
        data = bytes(range(8)) * number
        for component in ["trainer", *(["policy_server"] * policy)]:
            versions = VersionStore(self.home.component(component) / "versions")
            manifest = versions.write(manifest, [("w", "U8", (len(data),), data)])
        self._trainer("INSERT INTO versions (version, manifest) VALUES (?, ?)", (number, manifest.SerializeToString()))
        self._trainer("INSERT OR REPLACE INTO state VALUES ('head', ?)", (str(number),))
        if policy:
            (self.home.component("policy_server") / "policy.json").write_text(json.dumps({"active": number}))
        return self.home.component("trainer") / "versions" / str(number)

    def _trainer(self, sql: str, params: tuple[Any, ...]) -> None:
        self._insert("trainer", "", [(sql, params)])

    def _insert(self, component: str, schema: str, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        store = Database(self.home.component(component) / "state.db", schema=schema)
        match component:
            case "policy_server":
                Outbox(store, "turns")
            case "env_server":
                Outbox(store, "transitions")
            case "prm_judge":
                JudgeQueue(store, Outbox(store, "samples"))
        with store.transaction() as db:
            for sql, params in statements:
                db.execute(sql, params)
        store.close()


def received(turn: str, text: str = "An answer.", **fields: Any) -> dict[str, Any]:
    """A line of the users' log: a response that arrived whole."""
    return {"user": "u", "what": "chat", "outcome": "complete", "turn_id": turn, "text": text, "tool_calls": 0,
            **fields}
