"""The configuration file written by `init`, generated from the models."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel

from openclaw_rl.config import Config

_HEAD = """\
# OpenClaw-RL: every key at its default. Change what you like; what you delete keeps its default.
"""


def commented_config() -> str:
    """Return YAML of all keys with their descriptions."""
    return _HEAD + "\n".join(_lines(Config(), 0)) + "\n"


def _lines(section: BaseModel, depth: int) -> list[str]:
    pad = "  " * depth
    lines: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            doc = field.description or type(value).__doc__ or ""
            lines += ["", *_comment(doc, pad), f"{pad}{name}:", *_lines(value, depth + 1)]
        else:
            lines += [*_comment(field.description or "", pad), f"{pad}{name}: {_inline(value)}"]
    return lines


def _comment(text: str, pad: str) -> list[str]:
    import textwrap

    return [f"{pad}# {line}" for line in textwrap.wrap(" ".join(text.split()), 100)]


def _inline(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
