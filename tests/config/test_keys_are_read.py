"""A configuration key does something."""

from __future__ import annotations

import ast
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

import openclaw_rl
from openclaw_rl.config import Config

PACKAGE = Path(openclaw_rl.__file__).parent


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys that hold a value."""
    for name, field in model.model_fields.items():
        inner = [kind for kind in (field.annotation, *typing.get_args(field.annotation))
                 if isinstance(kind, type) and issubclass(kind, BaseModel)]
        yield from keys(inner[0], f"{prefix}{name}.") if inner else [f"{prefix}{name}"]


def test_every_key_is_read_somewhere() -> None:
    """By name only: a key whose name others have too may pass unread."""
    read: Counter[str] = Counter()
    for file in PACKAGE.rglob("*.py"):
        if not {"config", "v1"} & set(file.relative_to(PACKAGE).parts):
            read.update(node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute))
    found = list(keys(Config))
    assert "components.trainer.grpo.groups" in found and len(found) > 100
    assert [key for key in found if not read[key.rpartition(".")[2]]] == []
