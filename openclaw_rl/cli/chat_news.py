"""News of the mesh for a conversation: how its answers are judged, what training waits for, which version answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

from openclaw_rl.cli.turns import SCORES
from openclaw_rl.client import (
    AsyncComponentServiceClient,
    AsyncJudgeServiceClient,
    AsyncPolicyServiceClient,
    AsyncTrainerServiceClient,
)
from openclaw_rl.client.watches import follow_async
from openclaw_rl.config import ConfigError
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import trainer_pb2

if TYPE_CHECKING:
    from openclaw_rl.v1.component_pb2 import ComponentStatus
    from openclaw_rl.v1.policy_pb2 import PolicyState
    from openclaw_rl.v1.trainer_pb2 import WatchTrainingResponse
    from openclaw_rl.v1.turn_pb2 import Judgement

#: Seconds for a question that a note can do without.
_PATIENCE = 5.0
_STYLES = {1: "green", -1: "red"}  #: of judgements
_E = trainer_pb2
#: Events of training that are told; which version answers is the policy server's word.
_EVENTS = {_E.TRAINING_EVENT_KIND_STEP_STARTED: "training begins",
           _E.TRAINING_EVENT_KIND_STEP_SKIPPED: "no new version",
           _E.TRAINING_EVENT_KIND_VERSION_REFUSED: "the gate refused version {}",
           _E.TRAINING_EVENT_KIND_VERSION_REJECTED: "version {} was rejected",
           _E.TRAINING_EVENT_KIND_WATCH_WENT_BACK: "back to version {}"}


class News:
    """Follows judge, trainer and policy server in a thread of its own, and tells what concerns the conversation.

    Args:
        home: the mesh's folder.
        tell: is given each note and how it is to look, from that thread.

    Attributes:
        active: the version that answers; None before it is known.
        judged: number of the answer that was judged last; None before one was.
    """

    def __init__(self, home: Home, tell: Callable[[str, str], None]) -> None:
        self._home, self._note = home, tell
        self.active: int | None = None
        self.judged: int | None = None
        self._answers: dict[str, int] = {}  # number by turn
        self._told: set[str] = set()  # turns whose judgement was told
        self._expected: set[str] = set()  # judged turns of whose sample nothing was told
        self._seen: set[str] = set()  # those that waited there at its last status
        self._silent: set[str] = set()  # components whose silence was told
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="news", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(_PATIENCE)

    def answered(self, number: int, turn_id: str) -> None:
        """Note an answer of the conversation; judgements of others are not told."""
        self._answers[turn_id] = number

    def _tell(self, text: str, style: str = "dim") -> None:
        self._note(text, style)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._until_the_end())

    async def _until_the_end(self) -> None:
        following = asyncio.create_task(self._follow_all())
        await self._end.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    async def _follow_all(self) -> None:
        await asyncio.gather(
            self._each("the judge", self._judgements, self._judged),
            self._each("the trainer", lambda: self._open(AsyncComponentServiceClient, "watch_stats", "trainer"),
                       lambda message: self._waits(message.status)),
            self._each("the trainer", lambda: self._open(AsyncTrainerServiceClient, "watch_training"), self._trained),
            self._each("the policy server", lambda: self._open(AsyncPolicyServiceClient, "watch_policy"),
                       lambda message: self._serves(message.state)))

    async def _judgements(self) -> AsyncIterator[Judgement]:
        """Judgements as they are made, and before them those that were made while nobody followed."""
        async with AsyncJudgeServiceClient(home=self._home) as judge:
            if missed := [turn for turn in self._answers if turn not in self._told]:
                for judgement in (await judge.list_judgements(turn_ids=missed[-1000:])).judgements:
                    yield judgement
            async for message in judge.watch_judgements():
                yield message.judgement

    async def _open(self, kind: type[Any], watch: str, component: str | None = None) -> AsyncIterator[Any]:
        """One stream of a component, looked up each time anew: it may come back elsewhere."""
        async with kind(component=component, home=self._home) as client:
            async for message in getattr(client, watch)():
                yield message

    async def _each(self, name: str, open_stream: Callable[[], AsyncIterator[Any]],
                    take: Callable[[Any], Any]) -> None:
        """Take each message; tell once when the component falls silent."""
        def silent(error: MeshError) -> None:
            if name not in self._silent:
                self._silent.add(name)
                self._tell(f"no news of {name}: {error.message}")

        try:
            async for message in follow_async(open_stream, lambda message: message, silent):
                self._silent.discard(name)
                if (rest := take(message)) is not None:
                    await rest
        except MeshError as error:
            silent(error)  # it does not go away by itself
        except ConfigError as error:
            self._tell(f"no news of {name}: {error}")

    def _judged(self, judgement: Judgement) -> None:
        number = self._answers.get(judgement.turn_id)
        if number is not None:
            self.judged = number
            self._told.add(judgement.turn_id)
            self._expected.add(judgement.turn_id)
            self._tell(judged(number, judgement), _STYLES.get(judgement.score, "dim"))

    async def _waits(self, status: ComponentStatus) -> None:
        """Tell what becomes of turns that were judged, and what the next step waits for."""
        if not self._expected or status.gauges.get("training"):
            return
        try:
            async with AsyncTrainerServiceClient(home=self._home) as trainer:
                found = await trainer.list_samples(turn_ids=list(self._expected), timeout=_PATIENCE)
        except MeshError:
            return  # it is asked again with the next status
        waiting = {sample.turn_id for sample in found.samples if sample.fate == trainer_pb2.SAMPLE_FATE_PENDING}
        for sample in found.samples:
            if sample.fate == trainer_pb2.SAMPLE_FATE_DROPPED:
                self._tell(f"answer {self._answers[sample.turn_id]} is not trained on: {sample.reason}")
        # This status may be older than a sample that is here now; one that was here at the last status is in it.
        if waiting & self._seen:
            self._tell(f"training {status.detail.partition(';')[0]}")
        self._expected -= {sample.turn_id for sample in found.samples} - (waiting - self._seen)
        self._seen = waiting - self._seen

    def _trained(self, event: WatchTrainingResponse) -> None:
        if said := _EVENTS.get(event.kind):
            self._tell(said.format(event.version) + ("" if event.kind == _E.TRAINING_EVENT_KIND_STEP_STARTED
                                                     else f": {event.message}"))

    async def _serves(self, state: PolicyState) -> None:
        before, self.active = self.active, state.active_version
        if before is None or before == self.active:
            return
        turns = 0
        try:
            async with AsyncPolicyServiceClient(home=self._home) as policy:
                manifests = (await policy.get_policy(timeout=_PATIENCE)).manifests
            turns = next((len(m.turn_ids) for m in manifests if m.version == state.active_version), 0)
        except MeshError:
            pass  # the note is right without it
        self._tell(serves(before, state.active_version, turns), "bold cyan")


def judged(number: int, judgement: Judgement) -> str:
    """Say how an answer was judged, and what was taken as a hint."""
    if judgement.failed:
        reason = next((vote.error for vote in judgement.votes if vote.error), "no vote")
        return f"answer {number} could not be judged: {reason}"
    hint = f", hint: {' '.join(judgement.hint.split())}" if judgement.hint else ""
    return f"answer {number} judged {SCORES[judgement.score]}{hint}"


def serves(before: int, version: int, turns: int) -> str:
    """Say that another version answers than before."""
    made = f", made of {turns} turn{'s' if turns != 1 else ''}" if turns else ""
    return f"version {version} answers {'now' if version > before else 'again'}{made}"
