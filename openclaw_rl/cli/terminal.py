"""What commands show, and how. Commands import this, the overview of them doesn't: rich takes longer than all else."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

#: Facts and answers. In a pipe lines are as long as they need to be, rather than cut for a terminal of 80.
out = Console(width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True)


def print_json(data: Any) -> None:
    """Print plain JSON, independent of the terminal's width and encoding."""
    print(json_text(data, indent=2))


def json_text(data: Any, indent: int | None = None) -> str:
    """Return JSON for standard output, with escapes if its encoding lacks characters."""
    return json.dumps(data, indent=indent, ensure_ascii=(sys.stdout.encoding or "").lower() != "utf-8")


def clipped(text: str, width: int) -> Text:
    """Return one line of at most `width` characters, without markup or control characters."""
    line = harmless(" ".join(text.split()))
    return Text(line if len(line) <= width else line[: width - 1] + "…")


def local_time(at: str | None) -> str:
    """Return a moment in ISO 8601 as date and time of this machine's time zone; of None, nothing."""
    return "" if at is None else f"{datetime.fromisoformat(at).astimezone():%F %T}"


def harmless(text: str) -> str:
    """Replace control characters: a sandbox or a user may have written escape sequences."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
