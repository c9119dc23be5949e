"""Edits of a playbook, from an answer of the writer's or from hints alone, and their application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.training.backends.playbook import rules
from openclaw_rl.training.backends.playbook.evidence import Evidence
from openclaw_rl.v1.playbook_pb2 import Playbook, PlaybookEntry

#: Changes in one answer, and characters of it.
MOST_EDITS, LONGEST_ANSWER = 12, 20_000
#: Turns that an instruction remembers, the newest.
KEEP_TURNS = 64


class BadAnswer(ValueError):
    """The writer's answer can't be used; the text says why, in words for the writer."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change."""

    op: Literal["add", "reword", "drop"]
    id: str = ""  #: of the instruction that is changed; empty of a new one
    text: str = ""  #: empty when it is dropped
    turn_ids: list[str] = field(default_factory=list)  #: that it follows from


def read(answer: str, playbook: Playbook, evidence: Sequence[Evidence]) -> list[Edit]:
    """Parse an answer {"edits": [...]}; see writer.PROMPT for its form.

    Raises:
        BadAnswer: it is of another form, names what is not there, or has a text that can't be an instruction.
    """
    data = _json(answer)
    edits = data.get("edits") if isinstance(data, dict) else None
    if not isinstance(edits, list) or set(data) != {"edits"}:
        raise BadAnswer('it must be one JSON object {"edits": [...]} and nothing else')
    if len(edits) > MOST_EDITS:
        raise BadAnswer(f"it has {len(edits)} edits; at most {MOST_EDITS} are allowed")
    ids = {entry.id for entry in playbook.entries}
    return [_edit(i, edit, ids, evidence) for i, edit in enumerate(edits)]


def from_hints(evidence: Sequence[Evidence]) -> list[Edit]:
    """Make an instruction of each hint that can be one."""
    edits = []
    for item in evidence:
        if not item.hint:
            continue
        try:
            edits.append(Edit("add", text=rules.clean(item.hint), turn_ids=[item.turn_id]))
        except rules.Refused:
            continue
    return edits


def apply(playbook: Playbook, edits: Sequence[Edit], version: int) -> tuple[Playbook, set[str], Counter[str]]:
    """Return the playbook after the edits. An instruction that says what another one says already is merged with that
    one.

    Args:
        playbook: stays as it is.
        edits: from `read` or `from_hints`.
        version: that it is to be.

    Returns:
        The new playbook; ids of new instructions and of those that were confirmed; how many were `added`, `reworded`,
        `dropped` and `merged`.
    """
    new = Playbook()
    new.CopyFrom(playbook)
    fresh: set[str] = set()
    done: Counter[str] = Counter()
    for edit in edits:
        entries = {entry.id: entry for entry in new.entries}
        if edit.op == "drop":
            _remove(new, edit.id)
            done["dropped"] += edit.id in entries
            continue
        entry = entries.get(edit.id)
        others = (other for other in new.entries if other.id != edit.id)
        same = next((other for other in others if rules.alike(other.text, edit.text)), None)
        if same is not None:
            _remember(same, edit.turn_ids + (list(entry.turn_ids) if entry is not None else []))
            if entry is not None:
                _remove(new, entry.id)
            fresh.add(same.id)
            done["merged"] += 1
        elif edit.op == "reword":
            if entry is not None and entry.text != edit.text:
                entry.text, entry.uses, entry.score_sum = edit.text, 0, 0.0  # of other words nothing is known yet
                entry.added_in = version
                _remember(entry, edit.turn_ids)
                fresh.add(entry.id)
                done["reworded"] += 1
        else:
            done["added"] += 1
            entry = new.entries.add(id=f"i{version}.{done['added']}", text=edit.text, added_in=version)
            _remember(entry, edit.turn_ids)
            fresh.add(entry.id)
    return new, fresh, done


def _json(answer: str) -> Any:
    text = answer.strip()[:LONGEST_ANSWER]
    if text.startswith("```"):  # many models fence what they were told not to
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadAnswer(f"it is not JSON: {error}") from None


def _edit(at: int, edit: Any, ids: set[str], evidence: Sequence[Evidence]) -> Edit:
    where = f"edits[{at}]"
    op = edit.get("op") if isinstance(edit, dict) else None
    wanted = {"add": {"op", "text", "evidence"}, "reword": {"op", "id", "text", "evidence"}, "drop": {"op", "id"}}
    if not isinstance(op, str) or op not in wanted:
        raise BadAnswer(f'{where}: "op" must be one of "add", "reword", "drop"')
    if set(edit) != wanted[op]:
        raise BadAnswer(f"{where}: {op!r} has the keys {sorted(wanted[op])}")
    if op != "add" and (not isinstance(edit["id"], str) or edit["id"] not in ids):
        raise BadAnswer(f"{where}: there is no instruction {str(edit['id'])[:40]!r}")
    if op == "drop":
        return Edit("drop", edit["id"])
    cited = edit["evidence"]
    if (not isinstance(cited, list) or not cited
            or not all(isinstance(n, int) and 1 <= n <= len(evidence) for n in cited)):
        raise BadAnswer(f'{where}: "evidence" must list numbers of the turns that it follows from, 1 to '
                        f'{len(evidence)}')
    if not isinstance(edit["text"], str):
        raise BadAnswer(f'{where}: "text" must be a text')
    try:
        text = rules.clean(edit["text"])
    except rules.Refused as error:
        raise BadAnswer(f'{where}: "text" can\'t be an instruction: {error}') from None
    turn_ids = [evidence[n - 1].turn_id for n in dict.fromkeys(cited)]
    return Edit("add", "", text, turn_ids) if op == "add" else Edit("reword", edit["id"], text, turn_ids)


def _remember(entry: PlaybookEntry, turn_ids: Sequence[str]) -> None:
    kept = list(dict.fromkeys([*entry.turn_ids, *turn_ids]))[-KEEP_TURNS:]
    del entry.turn_ids[:]
    entry.turn_ids.extend(kept)


def _remove(playbook: Playbook, id: str) -> None:
    kept = [entry for entry in playbook.entries if entry.id != id]
    del playbook.entries[:]
    playbook.entries.extend(kept)
