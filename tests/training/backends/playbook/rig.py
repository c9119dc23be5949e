"""A playbook's learner against a real HTTP server, with texts as its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.learner import Learner, Skipped
from openclaw_rl.training.learner_factory import make_learner
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2, weights_pb2
from openclaw_rl.v1.playbook_pb2 import Playbook
from openclaw_rl.weights import playbook
from tests.reward.fake_api import FakeApi, Reply

KEY = "sk-marker-of-the-playbook"


def make_sample(turn_id: str, score: int = -1, hint: str = "", *, asked: str = "What is a heron?",
                answered: str = "A heron is a bird that lives by the water, and so on.", version: int = 0,
                session: str = "s", then: str = "Too long!") -> turn_pb2.Sample:
    """A judged turn of an API model: no token ids."""
    message = turn_pb2.ChatMessage
    return turn_pb2.Sample(
        transition=turn_pb2.Transition(
            turn=turn_pb2.Turn(turn_id=turn_id, session_id=session, turn_class=turn_pb2.TURN_CLASS_MAIN,
                               messages=[message(role="user", content=asked)],
                               response=message(role="assistant", content=answered), policy_version=version),
            next_state=turn_pb2.NextState(messages=[message(role="user", content=then)])),
        judgement=turn_pb2.Judgement(turn_id=turn_id, score=score, hint=hint))


def add(text: str, *evidence: int) -> str:
    """An answer of the writer's with one new instruction."""
    return json.dumps({"edits": [{"op": "add", "text": text, "evidence": list(evidence) or [1]}]})


class Script:
    """Plays the API: as the writer it gives `edits`, as the policy `says` (a function of the system prompt)."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.edits: Reply | str = '{"edits": []}'
        self.says: Any = lambda system: "Herons are birds." if system else "A heron is a bird by the water."
        self.written: list[dict[str, Any]] = []  # what the writer was asked
        self.asked: list[str] = []  # system prompts of the policy
        api.answer = self.answer

    def answer(self, body: dict[str, Any]) -> Reply | str:
        first = body["messages"][0]
        if first["content"].startswith("You keep the playbook"):
            self.written.append(json.loads(body["messages"][1]["content"]))
            return self.edits
        if first["content"] == "Say yes.":
            return "yes"
        self.asked.append(first["content"] if first["role"] == "system" else "")
        return self.says(self.asked[-1])


class Rig:
    """A learner that can be killed: what it had in memory is gone, what it had on disk isn't."""

    def __init__(self, root: Path, api: FakeApi, **settings: Any) -> None:
        self.home = Home(root).create()
        self.script = Script(api)
        playbook_settings = settings.pop("playbook", {})
        self.config = Config.model_validate({"components": {
            "policy_server": {"model": "glm-4-flash", "base_url": api.url},
            "trainer": {"min_samples": 1, "playbook": playbook_settings, **settings}}})
        self.start()

    def start(self) -> None:
        folder = self.home.component("trainer")
        self.store = TrainerStore(folder / "state.db", "group", self.config.components.trainer, tokens=False)
        self.learner: Learner = make_learner(self.config, self.store, folder, self.home, 3)
        self.learner.open()

    def restart(self) -> None:
        self.store.close()
        self.start()

    def step(self, *samples: turn_pb2.Sample) -> weights_pb2.VersionManifest | Skipped | None:
        self.store.intake.accept(samples)
        return self.learner.train()

    def version(self, *samples: turn_pb2.Sample) -> weights_pb2.VersionManifest:
        manifest = self.step(*samples)
        assert isinstance(manifest, weights_pb2.VersionManifest), manifest
        self.learner.tidy(set())
        return manifest

    def playbook(self, version: int | None = None) -> Playbook:
        return playbook.read(self.learner.versions.folder(self.store.versions.head if version is None else version))

    @property
    def texts(self) -> list[str]:
        return [entry.text for entry in self.playbook().entries]

    @property
    def pending(self) -> list[str]:
        return [status.turn_id for status in self.store.samples.statuses([])]
