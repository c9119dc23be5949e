"""The judgement over a run: what the users' log and the stores say, held against what the design promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.chaos.books import Books, VersionFiles


@dataclass
class Damage:
    """A file of ours that was damaged on purpose.

    Attributes:
        at_risk: turns whose state the damage took away, found by comparing what the store gave before and after.
        file: relative to the home.
    """

    component: str
    file: str
    how: str
    at: float
    at_risk: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.file} of {self.component} ({self.how}, {len(self.at_risk)} turns at risk)"


@dataclass
class Account:
    """What became of all turns.

    Attributes:
        fates: turn -> its fate, in words.
        lost_by_damage: turns that are gone since a file was damaged, with the damage.
    """

    fates: dict[str, str] = field(default_factory=dict)
    lost_by_damage: dict[str, str] = field(default_factory=dict)

    def totals(self) -> dict[str, int]:
        """Turns by kind of fate."""
        kinds = Counter(fate.partition(":")[0] for fate in self.fates.values())
        return {**kinds, "lost by a damaged file": len(self.lost_by_damage)}


@dataclass(frozen=True)
class Violation:
    """A promise that was not kept, with what is needed to look into it."""

    rule: str
    text: str
    turns: tuple[str, ...] = ()

    def __str__(self) -> str:
        turns = f" [{', '.join(self.turns[:20])}{', ...' * (len(self.turns) > 20)}]" if self.turns else ""
        return f"{self.rule}: {self.text}{turns}"


def check_all(entries: Sequence[dict[str, Any]], books: Books, damages: Sequence[Damage] = ()
              ) -> tuple[Account, list[Violation]]:
    """All checks; `entries`: the users' log (see load.py)."""
    account, violations = accounting(entries, books, damages)
    violations += trained_once(books, damages)
    violations += digests(books, damages)
    violations += both_sides(books)
    violations += refusals(entries)
    violations += same_text(entries, books)
    return account, violations


def fate(turn: str, books: Books) -> str:
    """A turn's fate, from the end of the ring to its begin; "" when no store knows what became of it."""
    if sample := books.samples.get(turn):
        match sample.fate:
            case "trained":
                return f"trained: version {sample.version}"
            case "dropped":
                return f"dropped: {sample.reason}"
            case other:
                return f"{other}: waits for the trainer's next step"
    if turn in books.outboxes["samples"]:
        return "pending: waits for the trainer to take it"
    if reason := books.rejected["samples"].get(turn):
        return f"dropped: the trainer refused it: {reason}"
    if turn in books.queue:
        return "pending: waits for the judge"
    if turn in books.outboxes["transitions"]:
        return "pending: waits for the judge to take it"
    row = books.turns.get(turn)
    if row is not None:
        match row.state:
            case "open":
                return "pending: open, waits for its next state"
            case "not trainable" | "superseded":
                return f"not trainable: {row.state}, {row.reason}"
            case "rejected":
                return f"dropped: {row.reason}"
            case _:
                return ""  # sent, and nobody behind it has it
    if turn in books.outboxes["turns"]:
        return "pending: waits for the environment server"
    if reason := books.rejected["turns"].get(turn):
        return f"dropped: the environment server refused it: {reason}"
    return ""


def accounting(entries: Iterable[dict[str, Any]], books: Books, damages: Sequence[Damage] = ()
               ) -> tuple[Account, list[Violation]]:
    """Each turn that a user has wholly received, and each that a store knows, has exactly one fate."""
    sent: Counter[str] = Counter(entry["turn_id"] for entry in entries
                                 if entry.get("outcome") == "complete" and entry.get("turn_id"))
    violations = [Violation("turn id given twice", f"{count} responses", (turn,))
                  for turn, count in sent.items() if count > 1]
    events = {id for id in books.outboxes["turns"] if id.startswith("turn_")}  # not feedback and ends of sessions
    known = (sent.keys() | books.turns.keys() | books.samples.keys() | events | books.outboxes["transitions"]
             | books.outboxes["samples"] | books.queue)
    account = Account()
    lost: list[str] = []
    for turn in sorted(known):
        found = fate(turn, books)
        if found:
            account.fates[turn] = found
        elif by := next((str(damage) for damage in damages if turn in damage.at_risk), None):
            account.lost_by_damage[turn] = by
        else:
            lost.append(turn)
    if lost:
        where = Counter("sent by the environment server, and gone" if turn in books.turns else "in no store"
                        for turn in lost)
        violations.append(Violation("lost", "; ".join(f"{count} {text}" for text, count in where.items()),
                                    tuple(lost)))
    for turn, row in books.turns.items():
        sample = books.samples.get(turn)
        if sample and row.state in ("not trainable", "superseded", "rejected") and sample.fate != "pending" \
                and not any(turn in damage.at_risk for damage in damages):
            violations.append(Violation(
                "two fates", f"the environment server says {row.state} ({row.reason}), the trainer {sample.fate}",
                (turn,)))
    return account, violations


def trained_once(books: Books, damages: Sequence[Damage] = ()) -> list[Violation]:
    """No turn is in two manifests, and the manifests agree with the samples' fates, both ways."""
    violations = []
    versions: dict[str, list[int]] = {}
    for number, version in sorted(books.versions.items()):
        for turn, count in Counter(version.turns).items():
            versions.setdefault(turn, []).append(number)
            if count > 1:
                violations.append(Violation("trained twice", f"{count} times in version {number}", (turn,)))
    history = _history(books)
    for turn, numbers in versions.items():
        if len(numbers) > 1:
            active = [number for number in numbers if number in history]
            where = f"{len(active)} of them in the history of the active version" if active else "none of them active"
            violations.append(Violation("trained twice", f"by versions {numbers}, {where}", (turn,)))
    spared = {turn for damage in damages if damage.component == "trainer" for turn in damage.at_risk}
    for turn, numbers in versions.items():
        sample = books.samples.get(turn)
        if (sample is None or sample.fate != "trained" or sample.version not in numbers) and turn not in spared:
            says = f"{sample.fate} {sample.version or ''}".strip() if sample else "nothing"
            violations.append(Violation("manifest and fate differ", f"in the manifest of version {numbers[0]}, its "
                                        f"fate is {says}", (turn,)))
    for turn, sample in books.samples.items():
        if sample.fate == "trained" and turn not in versions and turn not in spared:
            violations.append(Violation("manifest and fate differ",
                                        f"trained({sample.version}), and that manifest does not name it", (turn,)))
    return violations


def _history(books: Books) -> set[int]:
    """The active version and what it was made from."""
    history: set[int] = set()
    number: int | None = books.active
    while number is not None and number in books.versions and number not in history:
        history.add(number)
        number = books.versions[number].parent
    return history


def digests(books: Books, damages: Sequence[Damage] = ()) -> list[Violation]:
    """Each version on disk is what its manifest says, the damage of ours aside where nobody has read it since."""
    violations = []
    for component, files, used in (("policy_server", books.policy_files, books.active),
                                   ("trainer", books.trainer_files, None)):
        for number, version in files.items():
            ours = any(damage.component == component and damage.file.endswith(f"/versions/{number}/model.safetensors")
                       for damage in damages)
            if version.problem and (not ours or number == used):
                violations.append(Violation("wrong digest", f"{component}, version {number}: {version.problem}"))
            known = books.versions.get(number)
            if known and not version.problem and known.digest != version.digest:
                violations.append(Violation("wrong digest", f"{component}, version {number}: its manifest says "
                                            f"{version.digest}, the trainer's store {known.digest}"))
    if books.checkpoint_problem:
        violations.append(Violation("wrong digest", books.checkpoint_problem))
    return violations


def both_sides(books: Books) -> list[Violation]:
    """The active version is the same one on both sides."""
    if books.active == 0:
        return []
    here: VersionFiles | None = books.policy_files.get(books.active)
    if here is None:
        return [Violation("active version", f"version {books.active} is active, and not on the policy server's disk")]
    known = books.versions.get(books.active)
    if known is None:
        return [Violation("active version", f"version {books.active} is active, and the trainer does not know it")]
    there = books.trainer_files.get(books.active)
    if known.digest != here.digest or (there is not None and there.digest != here.digest and not there.problem):
        return [Violation("active version", f"version {books.active}: the policy server has {here.digest}, the trainer "
                          f"{known.digest}")]
    return []


def refusals(entries: Iterable[dict[str, Any]]) -> list[Violation]:
    """No request failed whose own policy process was not killed. Feedback may be refused, with that reason, while the
    disk is full: it is acknowledged only once it is written."""
    violations = []
    for entry in entries:
        outcome, error = entry.get("outcome"), str(entry.get("error", ""))
        if outcome == "user failed":
            violations.append(Violation("the load failed", f"{entry.get('user')}: {error}"))
        elif outcome in ("refused", "unreachable", "broken") and not entry.get("excused"):
            if entry.get("what") == "feedback" and ("disk is full" in error or "DISK_FULL" in error):
                continue
            violations.append(Violation(
                "refused", f"{entry.get('user')}, {entry.get('what')} at {entry.get('at', 0):.1f}: {outcome} "
                f"{entry.get('status', '')} {error}".rstrip(), tuple(filter(None, [entry.get("turn_id", "")]))))
    return violations


def same_text(entries: Iterable[dict[str, Any]], books: Books, excerpt: int = 200) -> list[Violation]:
    """What is recorded of a response is what the user received."""
    violations = []
    for entry in entries:
        row = books.turns.get(entry.get("turn_id", ""))
        if row is None or entry.get("outcome") != "complete" or entry.get("tool_calls") or "text" not in entry:
            continue
        if row.text.strip() != entry["text"][:excerpt].strip() and row.text.strip() != entry["text"].strip()[:excerpt]:
            violations.append(Violation("other text", f"received {entry['text']!r}, recorded {row.text!r}",
                                        (entry["turn_id"],)))
    return violations
