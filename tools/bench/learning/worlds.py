"""Whatever can be talked to, and learns: a mesh over HTTP, or engine, judge and trainer in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from openclaw_rl.config import EMBEDDED_MODEL, PrmJudgeConfig, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.reward.judges.plugins import load_judge
from openclaw_rl.reward.panel import conclude
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.interface import Finished, Sampling
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.buffer.examples import FileCodec
from openclaw_rl.training.learner import Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.versions import refused
from openclaw_rl.v1 import turn_pb2, weights_pb2
from tools.bench.learning.evaluation import SERVING, Asked
from tools.bench.learning.scorers import Answer

#: Seconds within which the version that was trained on what was said is active.
STEP_TIMEOUT = 600


class World(Asked, Protocol):
    """Answers, and learns from what is said about the answers."""

    async def learned(self) -> None:
        """Wait until all that was said is in the active version."""

    def weights(self) -> Path:
        """Return the folder of the active version."""

    async def versions(self) -> list[weights_pb2.VersionManifest]:
        """Return the manifests of all versions but the base model."""


class EngineWorld:
    """An engine alone, which learns nothing."""

    def __init__(self, engine: EmbeddedEngine, folder: Path) -> None:
        self._engine, self._template, self._codec = engine, ChatTemplate(folder), FileCodec(folder)

    async def start(self) -> None:
        """Load the weights."""
        await self._engine.start()

    async def stop(self) -> None:
        """End it."""
        await self._engine.stop()

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int, max_tokens: int,
                  temperature: float = SERVING, done: bool = False) -> Answer:
        _turn, answer = await self._turn(messages, seed, max_tokens, temperature)
        return answer

    async def _turn(self, messages: list[dict[str, str]], seed: int, max_tokens: int,
                    temperature: float) -> tuple[turn_pb2.Turn, Answer]:
        chat = [turn_pb2.ChatMessage(role=message["role"], content=message["content"]) for message in messages]
        prompt = self._template.chat(chat).ids
        record = turn_pb2.TokenRecord(prompt_ids=prompt)
        finish = ""
        async for item in self._engine.generate(prompt, Sampling(temperature, max_tokens=max_tokens, seed=seed)):
            if isinstance(item, Finished):
                finish = item.reason
                continue
            record.response_ids.append(item.id)
            record.logprobs.append(item.logprob)
            record.model_logprobs.append(item.model_logprob)
            if not record.spans or record.spans[-1].version != item.version:
                record.spans.add(version=item.version, begin=len(record.response_ids) - 1)
            record.spans[-1].end = len(record.response_ids)
        text = self._codec.decode(record.response_ids[:-1] if finish == "stop" else record.response_ids)
        turn = turn_pb2.Turn(turn_id=new_id(), turn_class=turn_pb2.TURN_CLASS_MAIN, messages=chat, tokens=record,
                             response=turn_pb2.ChatMessage(role="assistant", content=text))
        return turn, Answer(text, finish == "stop")


class InProcess(EngineWorld):
    """Engine, default judge and trainer in this process.

    Args:
        root: folder of the trainer, made when it is missing.
        heard: told each sample as it is accepted.
    """

    def __init__(self, folder: Path, root: Path, trainer: TrainerConfig, judge: PrmJudgeConfig,
                 heard: Callable[[turn_pb2.Sample], None] = lambda sample: None) -> None:
        super().__init__(EmbeddedEngine(folder), folder)
        self._judge, self._heard = load_judge(judge), heard
        self._store = TrainerStore(root / "state.db", "group", trainer)
        self.learner = Learner(trainer, self._store, root, lambda: folder, keep=1)
        self._open: dict[str, turn_pb2.Turn] = {}

    @classmethod
    async def create(cls, root: Path, trainer: TrainerConfig,
                     heard: Callable[[turn_pb2.Sample], None] = lambda sample: None) -> InProcess:
        """Load everything, of the embedded model."""
        world = cls(ensure_model(EMBEDDED_MODEL, Home.default()), root, trainer, PrmJudgeConfig(), heard)
        await world.start()
        return world

    async def start(self) -> None:
        await super().start()
        await asyncio.to_thread(self.learner.open)

    async def stop(self) -> None:
        await super().stop()
        self._store.close()

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int, max_tokens: int,
                  temperature: float = SERVING, done: bool = False) -> Answer:
        if done:  # the user's last word: what the first turn is judged by
            await self._submit(self._open.pop(session), messages[-1]["content"])
            return Answer("", True)
        turn, answer = await self._turn(messages, seed, max_tokens, temperature)
        if not side:
            turn.session_id = session
            self._open[session] = turn
        return answer

    async def _submit(self, turn: turn_pb2.Turn, reply: str) -> None:
        transition = turn_pb2.Transition(turn=turn, next_state=turn_pb2.NextState(
            kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=[turn_pb2.ChatMessage(role="user", content=reply)]))
        judgement = conclude(turn.turn_id, [await self._judge.vote(transition)])
        sample = turn_pb2.Sample(transition=transition, judgement=judgement)
        self._heard(sample)
        self._store.intake.accept([sample])

    async def learned(self) -> None:
        while self._store.samples.pending().signal:
            manifest = await asyncio.to_thread(self.learner.train)
            if manifest is None or isinstance(manifest, Skipped):
                continue
            self.learner.tidy(set())
            if refused(manifest):
                continue
            await self._engine.stage(manifest.version, self.learner.versions.folder(manifest.version))
            await self._engine.activate(manifest.version)

    def weights(self) -> Path:
        return self.learner.versions.folder(self._store.versions.head)

    async def versions(self) -> list[weights_pb2.VersionManifest]:
        return [version.manifest for version in self._store.versions.all() if version.manifest.version > 0]


class Mesh:
    """A running mesh, over HTTP."""

    def __init__(self, home: Home, base: Path) -> None:
        from openclaw_rl.client import AsyncTrainerServiceClient

        policy, trainer = read_record(home, "policy_server"), read_record(home, "trainer")
        assert policy and trainer
        self._http = httpx.AsyncClient(base_url=policy.http_address, timeout=STEP_TIMEOUT)
        self._trainer = AsyncTrainerServiceClient(trainer.address)
        self._turns: list[str] = []
        self._active, self._base, self._home = 0, base, home

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int, max_tokens: int,
                  temperature: float = SERVING, done: bool = False) -> Answer:
        headers = {"X-Turn-Type": "side" if side else "main"}
        if session:
            headers["X-Session-Id"] = session
        if done:
            headers["X-Session-Done"] = "1"
        response = await self._http.post("/v1/chat/completions", headers=headers, json={
            "model": "default", "messages": messages, "max_tokens": max_tokens, "temperature": temperature,
            "seed": seed})
        response.raise_for_status()
        if not side and not done:
            self._turns.append(response.headers["X-OpenClaw-Turn-Id"])
        choice = response.json()["choices"][0]
        return Answer(choice["message"]["content"] or "", choice["finish_reason"] == "stop")

    async def learned(self) -> None:
        deadline = time.monotonic() + STEP_TIMEOUT
        turns = self._turns[-200:]
        while time.monotonic() < deadline:
            samples = (await self._trainer.list_samples(turn_ids=turns)).samples
            trained = {sample.version for sample in samples if sample.HasField("version")}
            # What was judged neutral waits for others to ride along with.
            settled = [sample for sample in samples if sample.HasField("version") or sample.reason
                       or (sample.HasField("score") and not sample.score)]
            if len(settled) == len(turns):
                listed = (await self._trainer.list_versions()).versions
                refusals = {v.manifest.version for v in listed if refused(v.manifest)}
                self._active = max((v.manifest.version for v in listed if v.active), default=0)
                if self._active >= max(trained - refusals, default=0):
                    return
            await asyncio.sleep(0.25)
        raise TimeoutError(f"no version with all of {len(self._turns)} interactions within {STEP_TIMEOUT} s; "
                           "`openclaw-rl status` says what is missing")

    def weights(self) -> Path:
        return self._home.component("trainer") / "versions" / str(self._active) if self._active else self._base

    async def versions(self) -> list[weights_pb2.VersionManifest]:
        return [v.manifest for v in (await self._trainer.list_versions()).versions if v.manifest.version > 0]
