"""Turns with their fates, filtered and paged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from openclaw_rl.client.facts import TurnFate, fate
from openclaw_rl.dashboard.data import environments
from openclaw_rl.dashboard.data.parts import WAIT, part
from openclaw_rl.v1 import turn_pb2

if TYPE_CHECKING:
    from openclaw_rl.monitoring.mesh import MeshData
    from openclaw_rl.v1.environment_pb2 import TurnSummary
    from openclaw_rl.v1.trainer_pb2 import SampleStatus
    from openclaw_rl.v1.turn_pb2 import Judgement

#: Turns of a page.
SIZE = 50
#: Turns that are asked for at once when judge and trainer decide which are shown, and how often for one page.
_CHUNK, _CALLS = 200, 20
#: Turns that a list of sessions looks at.
_RECENT = 500

CLASSES = {"main": turn_pb2.TURN_CLASS_MAIN, "side": turn_pb2.TURN_CLASS_SIDE, "unknown": turn_pb2.TURN_CLASS_UNKNOWN}
SCORES = {"good": 1, "neutral": 0, "bad": -1}  #: and "none": not judged, or in vain
FATES = ("pending", "trained", "dropped", "not_trainable")


@dataclass(frozen=True)
class Filters:
    """Which turns; empty means all. Made of and written as the query of an address, so that one can be handed on."""

    text: str = ""
    turn_class: str = ""  #: of CLASSES
    score: str = ""  #: of SCORES, or "none"
    fate: str = ""  #: of FATES
    version: str = ""  #: decimal digits
    session: str = ""
    episode: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """Those of an address; what is none is left out."""
        version = query.get("version", "").strip()
        return cls(
            text=query.get("text", "").replace("\0", "")[:200].strip(),
            turn_class=_one_of(query.get("class", ""), CLASSES), score=_one_of(query.get("score", ""),
                                                                              (*SCORES, "none")),
            fate=_one_of(query.get("fate", ""), FATES),
            version=str(int(version)) if version.isascii() and version.isdecimal() and len(version) <= 18 else "",
            session=query.get("session", "").strip()[:500], episode=query.get("episode", "").strip()[:500])

    def query(self, **more: str) -> str:
        """As the query of an address, without the question mark."""
        named = {"text": self.text, "class": self.turn_class, "score": self.score, "fate": self.fate,
                 "version": self.version, "session": self.session, "episode": self.episode, **more}
        return urlencode({name: value for name, value in named.items() if value}, errors="replace")

    @property
    def joined(self) -> bool:
        """More than the environment server is needed to tell which turns they mean."""
        return bool(self.score or self.fate or self.episode)

    def fit(self, row: TurnRow) -> bool:
        """The parts that the environment server doesn't filter by."""
        if self.score and row.fate.score != SCORES.get(self.score):
            return False
        if self.episode and row.summary.episode.episode_id != self.episode:
            return False
        return not self.fate or row.fate.fate == self.fate


@dataclass(frozen=True)
class TurnRow:
    """One turn of a list."""

    summary: TurnSummary
    fate: TurnFate
    judgement: Judgement | None = None
    sample: SampleStatus | None = None

    @property
    def id(self) -> str:
        return self.summary.turn_id

    @property
    def at(self) -> float:
        """When it was complete, seconds since the epoch."""
        return self.summary.finished_at.seconds + self.summary.finished_at.nanos / 1e9


@dataclass
class TurnsPage:
    """A page of turns, newest first."""

    rows: list[TurnRow] = field(default_factory=list)
    next: str = ""  #: token of the next page; empty: there is none
    looked_at: int = 0  #: turns that were gone through for it
    down: list[str] = field(default_factory=list)  #: components whose part is missing


@dataclass
class SessionRow:
    """A session by its newest turns."""

    id: str
    turns: int
    first: float
    last: float
    mean: float | None  #: of the scores of its judged turns
    text: str  #: its newest request
    versions: list[int]
    background: bool  #: it is an episode


async def page(mesh: MeshData, filters: Filters, token: str = "", size: int = SIZE, calls: int = _CALLS) -> TurnsPage:
    """A page of the turns that `filters` mean, newest first. It has more than `size` of them at times, for where judge
    and trainer decide turns are asked for in lots; and fewer, though there are more, when few of many fit.

    Args:
        calls: most lots that are gone through.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer, or refuses the token.
    """
    result = TurnsPage()
    fields: dict[str, Any] = {"text": filters.text, "session_id": filters.session}
    if filters.turn_class:
        fields["turn_classes"] = [CLASSES[filters.turn_class]]
    if filters.version:
        fields["policy_version"] = int(filters.version)
    if filters.episode and not filters.session:
        episode = await environments.episode(mesh, filters.episode)
        fields["session_id"] = episode.session_id if episode is not None else ""
    for _ in range(calls):
        wanted = _CHUNK if filters.joined else size - len(result.rows)
        answer = await mesh.environment().list_turns(page_size=wanted, page_token=token, timeout=WAIT, **fields)
        rows, result.down = await join(mesh, answer.turns)
        result.rows += [row for row in rows if filters.fit(row)]
        result.looked_at += len(rows)
        result.next = token = answer.next_page_token
        if not token or len(result.rows) >= size:
            break
    return result


async def again(mesh: MeshData, ids: Sequence[str]) -> list[TurnRow]:
    """Turns by their ids (at most 1000), newest first, as they are now; those that are gone are left out.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    if not ids:
        return []
    answer = await mesh.environment().list_turns(turn_ids=ids, page_size=len(ids), timeout=WAIT)
    return (await join(mesh, answer.turns))[0]


async def join(mesh: MeshData, summaries: Sequence[TurnSummary]) -> tuple[list[TurnRow], list[str]]:
    """What became of turns (at most 1000), and the components that didn't tell their part."""
    main = [summary.turn_id for summary in summaries if summary.turn_class == turn_pb2.TURN_CLASS_MAIN]
    judgements: dict[str, Judgement] = {}
    samples: dict[str, SampleStatus] = {}
    down: list[str] = []
    if main:
        (judged, no_judge), (trained, no_trainer) = await asyncio.gather(
            part(lambda: mesh.judge().list_judgements(turn_ids=main, timeout=WAIT)),
            part(lambda: mesh.trainer().list_samples(turn_ids=main, timeout=WAIT)))
        judgements = {} if judged is None else {found.turn_id: found for found in judged.judgements}
        samples = {} if trained is None else {found.turn_id: found for found in trained.samples}
        down = [name for name, why in (("the judge", no_judge), ("the trainer", no_trainer)) if why]
    trainer = mesh.status("trainer")
    needs = trainer.status.detail if trainer.live and trainer.status is not None else ""
    return [TurnRow(summary, fate(summary, judgements.get(summary.turn_id), samples.get(summary.turn_id), down, needs),
                    judgements.get(summary.turn_id), samples.get(summary.turn_id)) for summary in summaries], down


async def sessions(mesh: MeshData, size: int = _RECENT) -> tuple[list[SessionRow], list[str]]:
    """The sessions of the newest turns, the one in which something happened last first.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    answer = await mesh.environment().list_turns(page_size=size, timeout=WAIT)
    rows, down = await join(mesh, answer.turns)
    grouped: dict[str, list[TurnRow]] = {}
    for row in rows:
        grouped.setdefault(row.summary.session_id, []).append(row)
    found = []
    for session, turns in grouped.items():
        scores = [turn.fate.score for turn in turns if turn.fate.score is not None]
        found.append(SessionRow(
            session, len(turns), turns[-1].at, turns[0].at, sum(scores) / len(scores) if scores else None,
            turns[0].summary.request_text, sorted({turn.summary.policy_version for turn in turns}),
            any(turn.summary.HasField("episode") for turn in turns)))
    return found, down


async def newest(mesh: MeshData) -> object:
    """What changes when there is something new: the newest turn, the scores and the steps that were made, the states
    of who tells them, and the half minute.

    Raises:
        MeshError, ConfigError: the environment server doesn't answer.
    """
    answer = await mesh.environment().list_turns(page_size=1, timeout=WAIT)
    judge, trainer = mesh.status("prm_judge"), mesh.status("trainer")
    return ([turn.turn_id for turn in answer.turns], int(time.time() // 30), judge.live, trainer.live,
            judge.counter("votes"), trainer.counter("updates"))


def without(filters: Filters, name: str) -> Filters:
    """The filters but one."""
    return replace(filters, **{name: ""})


def _one_of(value: str, allowed: Any) -> str:
    return value if value in allowed else ""
