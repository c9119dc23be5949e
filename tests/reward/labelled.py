"""Labelled next states from YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True, slots=True)
class State:
    """A next state with the answer before it; `scores`: the right score first, then other defensible ones."""

    kind: str
    request: str
    answer: str
    said: str
    scores: tuple[int, ...]


def load(name: str) -> list[State]:
    """Read development.yaml, or one of the unseen*.yaml, of this folder."""
    rows = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return [State(row["kind"], row["request"], row["answer"], row["next"], (row["score"], *row.get("also", ())))
            for row in rows]
