"""What a mesh says about its turns and versions over its public interfaces, held against what its users received.

It shares nothing with `tools/chaos`, which reads the stores' files: here only what any client can ask for counts.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.client.environment import EnvironmentServiceClient
from openclaw_rl.client.policy import PolicyServiceClient
from openclaw_rl.client.trainer import TrainerServiceClient
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home, read_record
from openclaw_rl.v1 import environment_pb2, trainer_pb2

_STATES = environment_pb2.TurnState.Name
#: States of a turn at the environment server that are its end.
_FINAL = {"TURN_STATE_NOT_TRAINABLE", "TURN_STATE_SUPERSEDED", "TURN_STATE_REJECTED"}
_IDS = 200  #: ids of a request


@dataclass
class Table:
    """The result: what was asked, how often, and how often it was lost, doubled or wrong."""

    rows: dict[str, Counter[str]] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def count(self, what: str, kind: str = "checked", number: int = 1, example: str = "") -> None:
        """Add to a row; `kind`: checked, lost, twice or wrong."""
        self.rows.setdefault(what, Counter())[kind] += number
        if kind != "checked" and example:
            self.examples.append(f"{what}, {kind}: {example}")

    @property
    def failed(self) -> bool:
        """Whether anything is lost, doubled or wrong."""
        return any(row[kind] for row in self.rows.values() for kind in ("lost", "twice", "wrong"))

    def text(self) -> str:
        """For a person."""
        width = max(map(len, self.rows), default=4)
        lines = [f"{'what':{width}} {'how often':>9} {'lost':>6} {'twice':>6} {'wrong':>6}"]
        lines += [f"{what:{width}} {row['checked']:9} {row['lost']:6} {row['twice']:6} {row['wrong']:6}"
                  for what, row in self.rows.items()]
        return "\n".join([*lines, *(f"  {example}" for example in self.examples[:40])])


@dataclass
class Facts:
    """What the components say."""

    turns: Mapping[str, str]  #: turn -> its state at the environment server
    samples: Mapping[str, tuple[str, int]]  #: turn -> fate and version
    versions: Mapping[int, Any]  #: the trainer's
    active: int
    active_digest: str
    kept: Sequence[int]
    open: Collection[str] = ()  #: sessions with turns that wait for a next one


def ask(home: Home, answered: Iterable[str]) -> Facts:
    """Ask the components what became of these turns, and of all versions.

    Raises:
        MeshError: one of them does not answer.
    """
    ids = sorted(answered)
    turns: dict[str, str] = {}
    samples: dict[str, tuple[str, int]] = {}
    sessions: set[str] = set()
    with EnvironmentServiceClient(_address(home, "env_server")) as environment, \
            TrainerServiceClient(_address(home, "trainer")) as trainer, \
            PolicyServiceClient(_address(home, "policy_server")) as policy:
        for at in range(0, len(ids), _IDS):
            part = ids[at:at + _IDS]
            for turn in environment.list_turns(turn_ids=part, page_size=_IDS, include_superseded=True).turns:
                turns[turn.turn_id] = _STATES(turn.state)
                if turn.state == environment_pb2.TURN_STATE_OPEN:
                    sessions.add(turn.session_id)
            for sample in trainer.list_samples(turn_ids=part).samples:
                samples[sample.turn_id] = trainer_pb2.SampleFate.Name(sample.fate), sample.version
        versions = {version.manifest.version: version for version in trainer.every_version()}
        state = policy.get_policy().state
    return Facts(turns, samples, versions, state.active_version, state.active_digest, list(state.kept_versions),
                 sessions)


def unsettled(facts: Facts, answered: Iterable[str]) -> list[str]:
    """Turns whose fate is not final yet; those that nobody knows may still wait where nobody is asked."""
    return [turn for turn in answered if fate(facts, turn) in ("waits", "lost")]


def answered_turns(log: Iterable[Mapping[str, Any]], forgotten: Collection[str]) -> Counter[str]:
    """Turns that users have wholly received, but for those of forgotten sessions, and how often each."""
    return Counter(str(entry["turn_id"]) for entry in log if entry.get("outcome") == "complete" and "turn_id" in entry
                   and entry.get("session") not in forgotten)


def check(table: Table, facts: Facts, log: Sequence[Mapping[str, Any]], forgotten: Collection[str] = (),
          at_risk: Collection[str] = (), versions_at_risk: Collection[int] = ()) -> None:
    """Hold the answers of `log` (see tools/chaos/load.py) against the facts.

    Args:
        forgotten: sessions, of which nothing may be left.
        at_risk: turns whose state a damaged file took away: they may be lost, or come a second time.
        versions_at_risk: versions that a damaged file of the trainer may have taken away with all that it knew of them.
    """
    for turn, count in answered_turns(log, forgotten).items():
        if turn in at_risk:
            table.count("turns in damaged files")
            continue
        table.count("answered turns")
        if count > 1:
            table.count("answered turns", "twice", example=f"{turn} was the id of {count} responses")
        match fate(facts, turn):
            case "lost":
                table.count("answered turns", "lost", example=f"{turn}: {facts.turns.get(turn, 'unknown')}")
            case "waits":
                table.count("answered turns", "wrong", example=f"{turn} has no final fate: {facts.turns.get(turn)}, "
                            f"{facts.samples.get(turn)}")
            case "twice":
                table.count("answered turns", "twice", example=f"{turn}: {facts.turns[turn]} and {facts.samples[turn]}")
    _check_versions(table, facts, at_risk, versions_at_risk)
    for entry in log:
        if entry.get("session") in forgotten and "turn_id" in entry:
            table.count("turns of forgotten sessions")
            if entry["turn_id"] in facts.turns:
                table.count("turns of forgotten sessions", "wrong", example=f"{entry['turn_id']} is still there")
        if (version := entry.get("version")) is not None:
            if version in versions_at_risk and version not in facts.versions:
                table.count("answers of versions in damaged files")
                continue
            table.count("answers of a version that exists")
            if version and version not in facts.versions:
                table.count("answers of a version that exists", "wrong", example=f"{entry['turn_id']}: {version}")
    for entry in log:
        table.count("requests")
        if entry.get("outcome") in ("refused", "unreachable", "broken") and not (
                entry.get("excused") or _feedback_without_disk(entry)):
            table.count("requests", "wrong", example=json.dumps({key: entry.get(key) for key in (
                "what", "outcome", "status", "error")}))


def _feedback_without_disk(entry: Mapping[str, Any]) -> bool:
    """Feedback is acknowledged once it is written, so it is refused, with the reason, while the disk can't be."""
    return entry.get("what") == "feedback" and any(code in str(entry.get("error"))
                                                   for code in ("disk_full", "store_unusable"))


def _check_versions(table: Table, facts: Facts, at_risk: Collection[str], versions_at_risk: Collection[int]) -> None:
    trained: dict[str, list[int]] = {}
    # What is void since a session was forgotten is taken back, and made anew from those of the other sessions' turns
    # whose content is still there; the rest stay turns of the void version.
    void = {number for number, version in facts.versions.items() if version.detail.startswith("void")}
    table.count("versions void by forgetting", number=len(void))
    if facts.active in void:
        table.count("versions void by forgetting", "wrong", example=f"version {facts.active} answers")
    for number in facts.versions.keys() - void:
        version = facts.versions[number]
        for turn in version.manifest.turn_ids:
            trained.setdefault(turn, []).append(number)
    for turn, numbers in trained.items():
        table.count("turns in versions")
        if len(numbers) > 1:
            table.count("turns in versions", "twice", example=f"{turn} is in {numbers}")
        sample = facts.samples.get(turn)
        if turn not in at_risk and sample is not None and (
                sample[0] != "SAMPLE_FATE_TRAINED" or sample[1] not in numbers):
            table.count("turns in versions", "wrong", example=f"{turn} is in {numbers}, and {sample}")
    for turn, (fate_name, number) in facts.samples.items():
        if (fate_name == "SAMPLE_FATE_TRAINED" and number in facts.versions and turn not in at_risk
                and turn not in facts.versions[number].manifest.turn_ids):
            table.count("turns in versions", "lost", example=f"{turn} is said to be in version {number}")
    for number in facts.kept:
        table.count("versions on both sides")
        if number and number not in facts.versions and number not in versions_at_risk:
            table.count("versions on both sides", "lost", example=f"the trainer does not know version {number}")
    active = facts.versions.get(facts.active)
    if active is not None and facts.active_digest not in ("", active.manifest.digest):
        table.count("versions on both sides", "wrong", example=f"version {facts.active}: the policy server has "
                    f"{facts.active_digest}, the trainer {active.manifest.digest}")


def fate(facts: Facts, turn: str) -> str:
    """`one` final fate, `lost`, `waits` or `twice`."""
    state, sample = facts.turns.get(turn, ""), facts.samples.get(turn)
    if sample is not None:
        if state in _FINAL:
            return "twice"
        return "one" if sample[0] in ("SAMPLE_FATE_TRAINED", "SAMPLE_FATE_DROPPED") else "waits"
    if state in _FINAL:
        return "one"
    return "lost" if not state else "waits"


def settled(home: Home, log: Sequence[Mapping[str, Any]], forgotten: Collection[str], seconds: float,
            tell: Callable[[str], None], at_risk: Collection[str] = ()) -> Facts:
    """End all sessions, and wait until every answered turn has its fate, for at most `seconds` without any progress.

    Raises:
        MeshError: a component has not answered for as long.
    """
    answered = answered_turns(log, forgotten)
    asked = {*answered, *(str(entry["turn_id"]) for entry in log if "turn_id" in entry)}
    last, changed, told = "", time.monotonic(), 0.0
    while True:
        facts, now = None, time.monotonic()
        try:
            facts = ask(home, asked)
            _end(home, facts.open)
            left = len(unsettled(facts, answered.keys() - set(at_risk)))
            waiting = f"{left} of {len(answered)} turns have no final fate yet"
        except MeshError as error:
            waiting = error.message
            if now - changed > seconds:
                raise
        if facts is not None and (waiting.startswith("0 ") or (waiting == last and now - changed > seconds)):
            return facts
        if waiting != last:
            last, changed = waiting, now
        if now - told > 15:
            told = now
            tell(waiting)
        time.sleep(1.0)


def _end(home: Home, sessions: Iterable[str]) -> None:
    with EnvironmentServiceClient(_address(home, "env_server")) as environment:
        for session in sessions:
            with contextlib.suppress(MeshError):  # it has ended
                environment.end_session(session_id=session)


def _address(home: Home, name: str) -> str:
    record = read_record(home, name)
    return record.address if record is not None else ""
