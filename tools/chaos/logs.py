"""Tracebacks in the components' logs that no fault explains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

#: Tracebacks that a fault explains: searched in the line before the traceback and in its last line.
ALLOWED = tuple(re.compile(pattern) for pattern in (
    r"No space left on device", r"database or disk is full", r"the disk is full", r"File too large",
    r"disk I/O error",
))
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def unexpected(logs: Path) -> list[str]:
    """Tracebacks of all components' logs that are not allowed, each with the line before it; equal ones once."""
    found: dict[str, str] = {}
    for file in sorted(logs.glob("*.log*")):
        if file.name.startswith("rl_trace"):
            continue
        for block in tracebacks(file.read_text(errors="replace").splitlines()):
            text = "\n".join(block)
            if not any(pattern.search(text) for pattern in ALLOWED):
                found.setdefault(re.sub(r"\d+|0x[0-9a-f]+", "", block[-1]), f"{file.name}:\n{text}")
    return list(found.values())


def tracebacks(lines: Iterable[str]) -> Iterable[list[str]]:
    """Each traceback from the record that brought it to its last line."""
    block: list[str] = []
    before, inside = "", False
    for line in lines:
        if _RECORD.match(line):
            if inside:
                yield block
            before, block, inside = line, [], False
        elif line.startswith("Traceback (most recent call last)") and not inside:
            block, inside = [before, line], True
        elif inside:
            block.append(line)
    if inside:
        yield block
