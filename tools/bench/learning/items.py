"""Questions, reference answers and prose of the benchmark."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Item:
    """A question; see data/*.yaml."""

    kind: str  #: facts, how_to, chat, code or chinese
    prompt: str
    terms: tuple[tuple[str, ...], ...]  #: of each term the words, or their beginnings, that count for it
    right: str
    wrong: str = ""  #: of held-out questions only


def read(name: str) -> Any:
    """Return the content of a data file."""
    return yaml.safe_load((DATA / f"{name}.yaml").read_text(encoding="utf-8"))


@functools.cache
def train() -> tuple[Item, ...]:
    """Return the questions that are learned from."""
    return tuple(_item(kind, entry) for kind, entries in read("train").items() for entry in entries)


def held_out(limit: int | None = None) -> list[Item]:
    """Return the questions that are measured on.

    Args:
        limit: so many of them at most, evenly spread over all kinds; None: all.
    """
    items = [_item(kind, entry) for kind, entries in read("held_out").items() for entry in entries]
    if limit is None or limit >= len(items):
        return items
    return [items[index * len(items) // limit] for index in range(limit)]


def _item(kind: str, entry: dict[str, Any]) -> Item:
    terms = tuple(tuple(map(str, term)) if isinstance(term, list) else (str(term),) for term in entry["terms"])
    return Item(kind, entry["prompt"], terms, entry.get("right") or entry["good"], entry.get("wrong", ""))
