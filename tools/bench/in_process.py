"""Engine, rules judge and trainer in one process, for benchmarks that want the learning without the mesh."""

from __future__ import annotations

import asyncio
from pathlib import Path

from learning import TEMPERATURE, Answer

from openclaw_rl.config import EMBEDDED_MODEL, PrmJudgeConfig, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.reward.judges.plugins import load_judge
from openclaw_rl.reward.panel import conclude
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.interface import Finished, Sampling
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.training.buffer.examples import FileCodec
from openclaw_rl.training.learner import Learner, Skipped
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import turn_pb2


class Direct:
    """See learning.World."""

    def __init__(self, folder: Path, root: Path, trainer: TrainerConfig, judge: PrmJudgeConfig) -> None:
        self._engine = EmbeddedEngine(folder)
        self._template = ChatTemplate(folder)
        self._codec = FileCodec(folder)
        self._judge = load_judge(judge)
        self._store = TrainerStore(root / "state.db", "group", trainer)
        self._learner = Learner(trainer, self._store, root, lambda: folder, keep=1)
        self._open: dict[str, turn_pb2.Turn] = {}

    @classmethod
    async def start(cls, home: Home, root: Path, trainer: TrainerConfig, judge: PrmJudgeConfig) -> Direct:
        """Load everything."""
        world = cls(ensure_model(EMBEDDED_MODEL, home), root, trainer, judge)
        await world._engine.start()
        await asyncio.to_thread(world._learner.open)
        return world

    async def stop(self) -> None:
        """End it."""
        await self._engine.stop()
        self._store.close()

    async def ask(self, messages: list[dict[str, str]], *, session: str, side: bool, seed: int,
                  max_tokens: int = 96, done: bool = False) -> Answer:
        chat = [turn_pb2.ChatMessage(role=message["role"], content=message["content"]) for message in messages]
        if done:  # the user's last word: what the first turn is judged by
            await self._submit(self._open.pop(session), chat[-1])
            return Answer("", True)
        prompt = self._template.chat(chat).ids
        record = turn_pb2.TokenRecord(prompt_ids=prompt)
        finish = ""
        async for item in self._engine.generate(prompt, Sampling(TEMPERATURE, max_tokens=max_tokens, seed=seed)):
            if isinstance(item, Finished):
                finish = item.reason
                continue
            record.response_ids.append(item.id)
            record.logprobs.append(item.logprob)
            record.model_logprobs.append(item.model_logprob)
            if not record.spans or record.spans[-1].version != item.version:
                record.spans.add(version=item.version, begin=len(record.response_ids) - 1)
            record.spans[-1].end = len(record.response_ids)
        ids = record.response_ids[:-1] if finish == "stop" else record.response_ids
        text = self._codec.decode(ids)
        if not side:
            self._open[session] = turn_pb2.Turn(
                turn_id=new_id(), session_id=session, turn_class=turn_pb2.TURN_CLASS_MAIN, messages=chat,
                response=turn_pb2.ChatMessage(role="assistant", content=text), tokens=record)
        return Answer(text, finish == "stop")

    async def _submit(self, turn: turn_pb2.Turn, reply: turn_pb2.ChatMessage) -> None:
        transition = turn_pb2.Transition(turn=turn, next_state=turn_pb2.NextState(
            kind=turn_pb2.NEXT_STATE_KIND_CONTINUED, messages=[reply]))
        judgement = conclude(turn.turn_id, [await self._judge.vote(transition)])
        self._store.intake.accept([turn_pb2.Sample(transition=transition, judgement=judgement)])

    async def learned(self, complaints: int) -> None:
        while self._store.samples.pending().signal:
            manifest = await asyncio.to_thread(self._learner.train)
            if manifest is None or isinstance(manifest, Skipped):
                continue
            self._learner.tidy(set())
            await self._engine.stage(manifest.version, self._learner.versions.folder(manifest.version))
            await self._engine.activate(manifest.version)

    async def metrics(self) -> list[dict[str, float]]:
        return [dict(v.manifest.metrics) for v in self._store.versions.all() if v.manifest.version > 0]
