"""The application that the commands register with, and what they share."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

_ORDER = ("init", "certs", "keys", "local-start", "distributed-start", "mesh", "status", "dashboard", "metrics", "chat",
          "turns", "trace", "episodes", "environments", "versions", "rollback", "pin", "unpin", "pause", "resume",
          "train-now", "forget", "logs", "set-aside", "conformance", "docs",
          "stop-all")


class _Commands(TyperGroup):
    """Lists commands in order of use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="openclaw-rl", cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    rich_markup_mode="rich", context_settings={"help_option_names": ["-h", "--help"]},
    help="Run an agent that learns from use: start the mesh, chat with it, see what it has learned.",
    epilog="To get started: openclaw-rl local-start, then openclaw-rl chat. Documentation: openclaw-rl docs. Files are "
           "stored in ~/.openclaw-rl, or in the folder named by OPENCLAW_RL_HOME.")
#: Facts and answers. In a pipe lines are as long as they need to be, rather than cut for a terminal of 80.
out = Console(width=None if sys.stdout.isatty() else 200)
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]


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


def harmless(text: str) -> str:
    """Replace control characters: a sandbox or a user may have written escape sequences."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
