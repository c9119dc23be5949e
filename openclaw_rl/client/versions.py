"""Lineage of a version and the difference of two, put together from several components."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from openclaw_rl.client import playbooks
from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.client.facts import Known, Version, fates, iso, known_versions, version_facts
from openclaw_rl.rpc.errors import MeshError, not_found
from openclaw_rl.runtime.home import Home
from openclaw_rl.v1 import turn_pb2, weights_pb2
from openclaw_rl.v1.environment_pb2 import TurnSummary
from openclaw_rl.weights.playbook import differences

if TYPE_CHECKING:
    from openclaw_rl.v1.trainer_pb2 import PolicyVersion
    from openclaw_rl.v1.weights_pb2 import VersionManifest

_PAGE = 1000


@dataclass(frozen=True)
class TrainedTurn:
    """A turn that trained a version. None is what nobody who answers knows (any more)."""

    turn: str
    session: str | None
    score: int | None  #: +1, 0 or -1
    request: str | None  #: the request's last message, cut to 200 characters
    response: str | None  #: the same of the response


@dataclass(frozen=True)
class VersionStory:
    """One version with what made it."""

    facts: Version
    settings: dict[str, str]  #: of its algorithm
    activated_at: str | None  #: ISO 8601, UTC; None when no policy server has activated it
    detail: str  #: why it is not served; empty when it is, or when the trainer does not answer
    turns: list[TrainedTurn]
    judges: dict[str, int]  #: votes on these turns by judge
    gate: dict[str, Any] | None  #: `verdict`, `failures`, `metrics`, `before`, `answers`; None when it was not tried
    kept: bool  #: its weights are on the trainer's disk
    playbook: list[dict[str, Any]] | None = None  #: instructions of an API model's version; None of any other

    @property
    def pause_ms(self) -> float | None:
        """Milliseconds for which decoding paused at its activation; None when that was not measured."""
        return self.facts.metrics.get("pause_ms")

    def json(self) -> dict[str, Any]:
        """As `openclaw-rl versions show --json` prints it."""
        return {**self.facts.json(), "settings": self.settings, "activated_at": self.activated_at,
                "detail": self.detail, "pause_ms": self.pause_ms, "judges": self.judges, "gate": self.gate,
                "kept": self.kept, **({} if self.playbook is None else {"playbook": self.playbook}),
                "turns": [asdict(turn) for turn in self.turns]}


@dataclass(frozen=True)
class Step:
    """A version that one of two compared versions comes from and the other does not."""

    change: Literal["added", "removed"]
    story: VersionStory


@dataclass(frozen=True)
class VersionDiff:
    """What turns one version into another."""

    old: int
    new: int
    settings: dict[str, tuple[str | None, str | None]]  #: those that differ, in the old and the new version
    metrics: dict[str, tuple[float | None, float | None]]  #: the same of the metrics
    gate: dict[str, tuple[float | None, float | None]]  #: the same of the gate's figures on held-out prompts
    answers: list[dict[str, str | None]]  #: to held-out prompts: `prompt`, the `old` and the `new` version's answer
    steps: list[Step]  #: back from the old one to their common ancestor, then forward to the new one
    playbook: list[tuple[str, str]] | None = None  #: of an API model: "-", "+" or " " of what stays, and an instruction

    def json(self) -> dict[str, Any]:
        """As `openclaw-rl versions diff --json` prints it."""
        return {"old": self.old, "new": self.new, "settings": self.settings, "metrics": self.metrics,
                "gate": self.gate, "answers": self.answers,
                **({} if self.playbook is None else {"playbook": [list(line) for line in self.playbook]}),
                "versions": [{"change": step.change, **step.story.json()} for step in self.steps]}


def show(home: Home, number: int) -> VersionStory:
    """One version with what made it.

    Raises:
        MeshError: there is no such version, or neither trainer nor policy server answers.
    """
    known = known_versions(home)
    _check(known.versions, number)
    story = _stories(home, [number], known)[0]
    manifest = known.versions[number].manifest
    if manifest.algorithm != playbooks.ALGORITHM or (found := playbooks.fetch(home, manifest)) is None:
        return story
    return replace(story, playbook=[
        {"text": entry.text, "id": entry.id, "added_in": entry.added_in, "uses": entry.uses,
         "mean_score": entry.score_sum / entry.uses if entry.uses else None, "turns": list(entry.turn_ids)}
        for entry in found.entries])


def diff(home: Home, old: int, new: int) -> VersionDiff:
    """What turns one version into another; they may come from different branches, as a rollback makes them.

    Raises:
        MeshError: as `show`.
    """
    known = known_versions(home)
    _check(known.versions, old, new)
    back, forward = _lineage(known.versions, old), _lineage(known.versions, new)
    removed = [number for number in back if number not in forward]
    added = [number for number in reversed(forward) if number not in back]
    stories = _stories(home, removed + added, known)
    m, n = known.versions[old].manifest, known.versions[new].manifest
    return VersionDiff(
        old, new, _differences({"algorithm": m.algorithm, **m.settings}, {"algorithm": n.algorithm, **n.settings}),
        _differences(m.metrics, n.metrics), _differences(_figures(m), _figures(n)), _answers(m, n),
        [Step("removed" if story.facts.version in removed else "added", story) for story in stories],
        _playbooks(home, m, n))


def _playbooks(home: Home, old: VersionManifest,
               new: VersionManifest) -> list[tuple[str, str]] | None:
    """What lies between the playbooks of two versions; None when they have none, or one is gone."""
    if playbooks.ALGORITHM not in (old.algorithm, new.algorithm):
        return None
    before, after = (playbooks.fetch(home, manifest) for manifest in (old, new))
    return None if before is None or after is None else list(differences(before, after))


def _check(known: Mapping[int, PolicyVersion], *numbers: int) -> None:
    for number in numbers:
        if number not in known:
            raise not_found("version", str(number), "`openclaw-rl versions` tells those that there are")


def _lineage(known: Mapping[int, PolicyVersion], number: int) -> list[int]:
    """A version and its ancestors as far as they are known, newest first."""
    lineage: list[int] = []
    at: int | None = number
    while at is not None and at in known and at not in lineage:
        lineage.append(at)
        at = known[at].manifest.parent if known[at].manifest.HasField("parent") else None
    return lineage


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


def _figures(m: VersionManifest) -> dict[str, float]:
    return {name: value for name, value in m.gate.metrics.items() if name != "seconds"}


def _answers(old: VersionManifest, new: VersionManifest) -> list[dict[str, str | None]]:
    """Answers to held-out prompts side by side; None of a version that was not asked."""
    before, after = ({answer.prompt: answer.answer for answer in m.gate.answers} for m in (old, new))
    return [{"prompt": prompt, "old": before.get(prompt), "new": after.get(prompt)} for prompt in {**before, **after}]


def _stories(home: Home, numbers: Sequence[int], known: Known) -> list[VersionStory]:
    versions = [known.versions[number] for number in numbers]
    turns = _trained(home, [turn for v in versions for turn in v.manifest.turn_ids])
    return [VersionStory(
        facts=version_facts(v, known), settings=dict(sorted(v.manifest.settings.items())),
        activated_at=iso(v.activated_at) if v.HasField("activated_at") else None, detail=v.detail,
        turns=[turns[turn] for turn in v.manifest.turn_ids], judges=dict(sorted(v.manifest.judges.items())),
        gate=_gate(v.manifest), kept=v.kept) for v in versions]


def _gate(m: VersionManifest) -> dict[str, Any] | None:
    if not m.HasField("gate"):
        return None
    verdict = {weights_pb2.GATE_VERDICT_PASSED: "passed", weights_pb2.GATE_VERDICT_FAILED: "failed"}
    return {"verdict": verdict.get(m.gate.verdict), "failures": list(m.gate.failures),
            "metrics": dict(sorted(m.gate.metrics.items())), "before": dict(sorted(m.gate.before.items())),
            "answers": [{"prompt": a.prompt, "answer": a.answer, "tokens": a.tokens} for a in m.gate.answers]}


def _trained(home: Home, ids: Sequence[str]) -> dict[str, TrainedTurn]:
    found = _summaries(home, ids)
    # What a turn was judged by is known of those, too, that the environment server has forgotten.
    summaries = [found.get(turn) or TurnSummary(turn_id=turn, turn_class=turn_pb2.TURN_CLASS_MAIN) for turn in ids]
    result: dict[str, TrainedTurn] = {}
    for start in range(0, len(summaries), _PAGE):
        for turn in fates(home, summaries[start:start + _PAGE]):
            known = turn.turn in found
            result[turn.turn] = TrainedTurn(turn.turn, turn.session if known else None, turn.score,
                                            turn.request_text if known else None,
                                            turn.response_text if known else None)
    return result


def _summaries(home: Home, ids: Iterable[str]) -> dict[str, TurnSummary]:
    """The turns that the environment server still knows, of those that are wanted."""
    wanted = list(dict.fromkeys(ids))
    found: dict[str, TurnSummary] = {}
    try:
        with EnvironmentServiceClient(home=home) as env:
            for start in range(0, len(wanted), _PAGE):
                page = env.list_turns(page_size=_PAGE, turn_ids=wanted[start:start + _PAGE])
                found.update((turn.turn_id, turn) for turn in page.turns)
    except MeshError:
        pass  # its part of the facts is unknown, not the whole of them
    return found
