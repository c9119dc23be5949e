"""Files of held-out prompts, on which a version is tried before it is offered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.training.backends.interface import HeldOut

DEFAULT = Path(__file__).with_name("held_out.jsonl")
#: Most prompts of a file: each one costs time at every step.
MAX_PROMPTS = 200
_MAX_CHARACTERS = 4000


class HeldOutError(Exception):
    """A file of held-out prompts can't be used; the text names the file, the line and what is allowed."""


def read(path: Path) -> list[HeldOut]:
    """Read a file of JSON lines, {"prompt": ..., "answer": ...} each; "wrong" may have a wrong answer.

    Raises:
        HeldOutError: it can't be read, or a line is not of this form.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise HeldOutError(f"{path}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError as error:
        raise HeldOutError(f"{path}: not UTF-8 text: {error}") from None
    found = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not 0 < len(found) <= MAX_PROMPTS:
        raise HeldOutError(f"{path}: has {len(found)} prompts; 1 to {MAX_PROMPTS} are allowed")
    return found


def digest(prompts: Sequence[HeldOut]) -> str:
    """Return the lower-case hexadecimal SHA-256 of the prompts and their answers."""
    return hashlib.sha256(json.dumps([[p.prompt, p.answer, p.wrong] for p in prompts]).encode()).hexdigest()


def _line(path: Path, number: int, line: str) -> HeldOut:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise HeldOutError(f"{path}, line {number}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise HeldOutError(f'{path}, line {number}: must be {{"prompt": ..., "answer": ...}}, not {line.strip()[:80]}')
    for key in ("prompt", "answer", *(["wrong"] if "wrong" in data else [])):
        value = data.get(key)
        if not isinstance(value, str) or not value.strip() or len(value) > _MAX_CHARACTERS:
            raise HeldOutError(f"{path}, line {number}: {key}: {str(value)[:80]!r} is not allowed: a text of 1 to "
                               f"{_MAX_CHARACTERS} characters is needed")
    return HeldOut(data["prompt"], data["answer"], data.get("wrong", ""))
