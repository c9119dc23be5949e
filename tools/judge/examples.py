"""The training examples of the judge `classifier`: read from `examples/`, and made from them by grammar.

Nothing here comes from the labelled next states in tests/reward.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from grammar import Example, from_facts, joined

FOLDER = Path(__file__).parent / "examples"
SEED = 14


@dataclass(slots=True)
class Dialogue:
    """A request with a good and a bad answer, and what may come next, by its mark."""

    request: str
    kind: str
    good: str = ""
    bad: str = ""
    after: dict[str, list[str]] = field(default_factory=lambda: {mark: [] for mark in "-+0~"})


def read_dialogues(path: Path) -> list[Dialogue]:
    """Read a file of dialogues; its head says how it is written."""
    found: list[Dialogue] = []
    for line in _lines(path):
        mark, text = line[0], line[1:].strip().replace("\\n", "\n")
        if mark == "?":
            head, _, kind = text.rpartition(" ")
            plain = kind not in ("code", "text", "plan")
            found.append(Dialogue(text if plain else head, "any" if plain else kind))
        elif mark == "=":
            found[-1].good = text
        elif mark == "x":
            found[-1].bad = text
        else:
            found[-1].after[mark].append(text)
    return found


def read_remarks(path: Path) -> list[tuple[int, str, str]]:
    """Read a file of remarks: score, kind of the answers that they can follow, text."""
    found: list[tuple[int, str, str]] = []
    score, kind = 0, "any"
    for line in _lines(path):
        if line.startswith("[") and line.endswith("]"):
            first, kind = line[1:-1].split()
            score = int(first)
        else:
            found.append((score, kind, line))
    return found


def examples(seed: int = SEED) -> list[Example]:
    """All examples, in an order that depends on the seed alone."""
    random_ = random.Random(seed)
    found: list[Example] = []
    for language in ("en", "zh"):
        dialogues = read_dialogues(FOLDER / f"dialogues_{language}.txt")
        remarks = [remark for name in ("complaints", "praise", "neutral")
                   for remark in read_remarks(FOLDER / f"{name}_{language}.txt")]
        remarks += [remark for name in ("more", "further") for remark in read_remarks(FOLDER / f"{name}.txt")
                    if any("\u4e00" <= character <= "\u9fff" for character in remark[2]) == (language == "zh")]
        found += _dialogues(dialogues, random_)
        praise = [text for score, kind, text in remarks if score == 1 and kind == "any" and len(text) < 40]
        found += _continued(dialogues, praise, language == "en", random_)
        by_score = {score: [text for other, kind, text in remarks if other == score and kind == "any"]
                    for score in (-1, 0, 1)}
        whole = [(score, kind, text, text) for score, kind, text in remarks]
        whole += [(score, "any", text, f"joined {text}") for text, score in joined(by_score, language == "zh", random_)]
        for score, kind, text, group in whole:
            for dialogue in random_.sample([d for d in dialogues if kind in ("any", d.kind)], 2):
                answer = random_.choice((dialogue.good, dialogue.bad))
                found.append(Example(dialogue.request, answer, _varied(text, random_), score, group))
    for name in ("asked.txt", "asked_zh.txt"):
        found += _replies(_lines(FOLDER / name), random_)
    found += from_facts(_lines(FOLDER / "facts.txt"), random_)
    return found


def _dialogues(dialogues: list[Dialogue], random_: random.Random) -> list[Example]:
    found: list[Example] = []
    for dialogue in dialogues:
        group = dialogue.request

        def add(answer: str, said: str, score: int, dialogue: Dialogue = dialogue, group: str = group) -> None:
            found.append(Example(dialogue.request, answer, _varied(said, random_), score, group))

        for said in dialogue.after["-"]:
            add(dialogue.bad, said, -1)
        for said in dialogue.after["+"]:
            add(dialogue.good, said, 1)
        for said in dialogue.after["0"]:
            add(dialogue.good, said, 0)
            add(dialogue.bad, said, 0)
        for said in dialogue.after["~"]:
            add(dialogue.bad, said, -1)
        for other in random_.sample([d for d in dialogues if d is not dialogue], 4):
            said = random_.choice([other.request, *other.after["~"]])
            add(random_.choice((dialogue.good, dialogue.bad)), said, 0)
    return found


#: Forms of praise and what comes after it, by whether that is in the Latin script and by the score of the whole.
_CONTINUED = {(True, 1): ("{a}. {b}", "{a}! {b}", "{a}, {b}"), (True, -1): ("{a}, but {b}", "{a}. But {b}"),
              (False, 1): ("{a}。{b}", "{a}，{b}"), (False, -1): ("{a}，但是{b}", "{a}，不过{b}")}


def _continued(dialogues: list[Dialogue], praise: list[str], latin: bool, random_: random.Random) -> list[Example]:
    """Praise before a follow-up or another request, which stays praise; before a complaint, which outweighs it; and a
    complaint before the request in other words."""
    found: list[Example] = []
    for dialogue in dialogues:
        other = random_.choice([d for d in dialogues if d is not dialogue])
        for said, score in ((random_.choice(dialogue.after["0"]), 1), (other.request, 1),
                            (random_.choice(dialogue.after["-"]), -1)):
            form = random_.choice(_CONTINUED[latin, score])
            text = form.format(a=random_.choice(praise).rstrip(".!。！"), b=said)
            found.append(Example(dialogue.request, dialogue.good if score > 0 else dialogue.bad, _varied(text, random_),
                                 score, dialogue.request))
        if dialogue.after["~"]:
            text = random_.choice(dialogue.after["-"]) + (". " if latin else "，") + random_.choice(dialogue.after["~"])
            found.append(Example(dialogue.request, dialogue.bad, _varied(text, random_), -1, dialogue.request))
    return found


def _replies(lines: list[str], random_: random.Random) -> list[Example]:
    """What users reply to answers that ask back, each to three of them."""
    asked = [line[2:] for line in lines if line.startswith("? ")]
    request = "帮我弄一下" if not asked[0].isascii() else "Please do it for me."
    return [Example(request, answer, _varied(line[2:], random_), 0 if line[0] == "0" else -1, f"asked {line}")
            for line in lines if line[0] in "0-" for answer in random_.sample(asked, 3)]


def _varied(text: str, random_: random.Random) -> str:
    """A remark as another user would type it: without capitals or its last stop."""
    if random_.random() < 0.3:
        text = text.lower()
    if random_.random() < 0.3:
        text = text.rstrip(".!。！")
    elif text[-1:].isalnum() and random_.random() < 0.25:
        text += random_.choice((".", "!", "...")) if text.isascii() else random_.choice(("。", "！", "……"))
    return text


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and not line.startswith("#")]
