"""Turns and versions of the mesh, put together from several components.

A component that does not answer makes its part of the facts unknown, not the whole of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.client.judge import JudgeServiceClient
from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.client.trainer import TrainerServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import environment_pb2, trainer_pb2, turn_pb2, weights_pb2

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

    from openclaw_rl.v1.environment_pb2 import TurnSummary
    from openclaw_rl.v1.trainer_pb2 import PolicyVersion, SampleStatus
    from openclaw_rl.v1.turn_pb2 import Judgement

Fate = Literal["pending", "trained", "dropped", "not_trainable"]

_PAGE = 500
#: States of versions that begin the trainer's detail of them.
_STATES = ("taken back", "rolled back", "rejected", "void")
_CLASSES = {turn_pb2.TURN_CLASS_MAIN: "main", turn_pb2.TURN_CLASS_SIDE: "side"}


@dataclass(frozen=True)
class TurnFate:
    """One turn and what became of it. A main turn has one final fate, `trained` or `dropped`, at some time."""

    turn: str
    session: str
    turn_class: str  #: "main", "side" or "unknown"
    version: int
    score: int | None  #: +1, 0 or -1; None when it was not judged
    fate: Fate
    trained_version: int | None
    reason: str
    request_text: str = ""
    response_text: str = ""
    branch: str = ""  #: the turn that opened the branch of its session
    flaw: str = ""  #: what is wrong with the response: cut off, empty, stopped at the limit
    context_change: str = ""  #: what the client did to the conversation before it: compacted, edited
    class_reason: str = ""  #: the rule that decided the class
    finished_at: str | None = None  #: ISO 8601, UTC

    def json(self) -> dict[str, Any]:
        """As `openclaw-rl turns --json` prints it."""
        return {"turn": self.turn, "session": self.session, "class": self.turn_class, "version": self.version,
                "score": self.score, "fate": self.fate, "trained_version": self.trained_version,
                "reason": self.reason, "branch": self.branch, "flaw": self.flaw,
                "context_change": self.context_change, "class_reason": self.class_reason,
                "finished_at": self.finished_at, "request": self.request_text, "response": self.response_text}


@dataclass(frozen=True)
class Version:
    """One policy version, as `openclaw-rl versions --json` prints it."""

    version: int
    parent: int | None
    digest: str
    algorithm: str
    created_at: str | None  #: ISO 8601, UTC
    active: bool
    turns: list[str]
    metrics: dict[str, float]
    state: str = ""  #: "active", "pinned", "refused", or one of _STATES; empty: none of these
    live: dict[str, float] | None = None  #: `turns` that it answered and that were judged, `mean` score of them
    deliveries: list[dict[str, Any]] = field(default_factory=list)
    """Each policy server that the trainer feeds: `address`, `active`, `activated_at`, and in `detail` why it does not
    answer with the version."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def turns(home: Home, *, session: str = "", limit: int | None = None) -> Iterator[TurnFate]:
    """All turns with their fates, newest first, a page at a time.

    Args:
        limit: most turns; None means all.

    Raises:
        MeshError: the environment server does not answer.
    """
    token = ""
    with EnvironmentServiceClient(home=home) as env:
        while limit is None or limit > 0:
            size = _PAGE if limit is None else min(_PAGE, limit)
            page = env.list_turns(session_id=session, page_size=size, page_token=token)
            yield from fates(home, page.turns)
            limit = None if limit is None else limit - len(page.turns)
            token = page.next_page_token
            if not token:
                return


def fates(home: Home, summaries: Sequence[TurnSummary]) -> Iterator[TurnFate]:
    """What became of turns, at most 1000 of them; the judge and the trainer are asked once."""
    main = [s.turn_id for s in summaries if s.turn_class == turn_pb2.TURN_CLASS_MAIN]
    judgements: dict[str, Judgement] = {}
    samples: dict[str, SampleStatus] = {}
    down = []
    needs = ""
    if main:
        try:
            with JudgeServiceClient(home=home) as judge:
                judgements = {j.turn_id: j for j in judge.list_judgements(turn_ids=main).judgements}
        except MeshError:
            down.append("the judge")
        try:
            with TrainerServiceClient(home=home) as trainer:
                samples = {s.turn_id: s for s in trainer.list_samples(turn_ids=main).samples}
            with ComponentServiceClient(trainer.address, component="trainer", home=home) as component:
                needs = component.get_status().status.detail
        except MeshError:
            down.append("the trainer")
    for summary in summaries:
        yield fate(summary, judgements.get(summary.turn_id), samples.get(summary.turn_id), down, needs)


def fate(summary: TurnSummary, judgement: Judgement | None, sample: SampleStatus | None,
         down: list[str] | None = None, needs: str = "") -> TurnFate:
    """Put together what the three components know of a turn.

    Args:
        down: components that did not answer, for the reason of turns whose fate is not known for that.
        needs: what the trainer says it waits for, for the reason of samples that it has.
    """
    score: int | None = None
    if judgement is not None:
        score = None if judgement.failed else judgement.score
    elif sample is not None and sample.HasField("score"):
        score = sample.score
    result, trained, reason = _outcome(summary, judgement, sample, down or [], needs)
    return TurnFate(summary.turn_id, summary.session_id, _CLASSES.get(summary.turn_class, "unknown"),
                    summary.policy_version, score, result, trained, reason, summary.request_text,
                    summary.response_text, summary.branch_id, summary.flaw, summary.context_change,
                    summary.class_reason, iso(summary.finished_at) if summary.HasField("finished_at") else None)


def _outcome(summary: TurnSummary, judgement: Judgement | None, sample: SampleStatus | None,
             down: list[str], needs: str) -> tuple[Fate, int | None, str]:
    pb = environment_pb2
    if summary.turn_class != turn_pb2.TURN_CLASS_MAIN:
        return "not_trainable", None, summary.class_reason
    if sample is not None:
        if sample.fate == trainer_pb2.SAMPLE_FATE_TRAINED:
            return "trained", sample.version, ""
        if sample.fate == trainer_pb2.SAMPLE_FATE_DROPPED:
            return "dropped", None, sample.reason
        return "pending", None, "waits for the trainer's next step" + (f": {needs}" if needs else "")
    if summary.state in (pb.TURN_STATE_SUPERSEDED, pb.TURN_STATE_NOT_TRAINABLE):
        return "not_trainable", None, summary.reason
    if summary.state == pb.TURN_STATE_REJECTED:
        return "dropped", None, summary.reason or "the judge refused it"
    if summary.state == pb.TURN_STATE_OPEN:
        return "pending", None, "open: waits for the next message" + (f" ({summary.reason})" if summary.reason else "")
    if down:
        return "pending", None, f"{' and '.join(down)} did not answer"
    return "pending", None, "waits for the judge" if judgement is None else "waits for the trainer to take it"


def versions(home: Home) -> list[Version]:
    """All versions, ascending; which is active is the policy server's word.

    Raises:
        MeshError: neither trainer nor policy server answers.
    """
    known = known_versions(home)
    return [version_facts(v, known) for _, v in sorted(known.versions.items())]


@dataclass(frozen=True)
class Known:
    """All versions by number; what only the trainer knows of them is unset without it."""

    versions: dict[int, PolicyVersion]
    active: int | None  #: the one that answers
    pinned: bool = False  #: an operator pinned it


def known_versions(home: Home) -> Known:
    """Ask policy server and trainer.

    Raises:
        MeshError: neither trainer nor policy server answers.
    """
    known: dict[int, PolicyVersion] = {}
    failures: list[MeshError] = []
    active: int | None = None
    pinned = False
    try:
        with PolicyServiceClient(home=home) as policy:
            state = policy.get_policy()
            active, pinned = state.state.active_version, state.state.pinned
            known.update((m.version, trainer_pb2.PolicyVersion(manifest=m)) for m in state.manifests)
    except MeshError as error:
        failures.append(error)
    try:
        with TrainerServiceClient(home=home) as trainer:
            for version in trainer.every_version():
                known[version.manifest.version] = version
                if active is None and version.active:
                    active = version.manifest.version
    except MeshError as error:
        failures.append(error)
    if len(failures) == 2:
        raise failures[0]
    return Known(known, active, pinned)


def version_facts(v: PolicyVersion, known: Known) -> Version:
    """A version's facts, given which one is active."""
    m, active = v.manifest, v.manifest.version == known.active
    return Version(
        version=m.version, parent=m.parent if m.HasField("parent") else None, digest=m.digest, algorithm=m.algorithm,
        created_at=iso(m.created_at) if m.HasField("created_at") else None, active=active,
        turns=list(m.turn_ids), metrics=dict(sorted(m.metrics.items())), state=_state(v, active, known.pinned),
        live={"turns": v.live.turns, "mean": v.live.mean} if v.HasField("live") else None,
        deliveries=[{"address": d.address, "active": d.active, "detail": d.detail,
                     "activated_at": iso(d.activated_at) if d.HasField("activated_at") else None}
                    for d in v.deliveries])


def _state(v: PolicyVersion, active: bool, pinned: bool) -> str:
    if active:
        return "pinned" if pinned else "active"
    if v.manifest.gate.verdict == weights_pb2.GATE_VERDICT_FAILED:
        return "refused"
    return next((state for state in _STATES if v.detail.startswith(state)), "")


def iso(timestamp: Timestamp) -> str:
    """ISO 8601, UTC."""
    return datetime.fromtimestamp(timestamp.seconds + timestamp.nanos / 1e9, UTC).isoformat(timespec="milliseconds")
