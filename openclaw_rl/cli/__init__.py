"""The command line, `openclaw-rl`: one file per group of commands."""

from __future__ import annotations

import logging
import os
import sys


def main() -> None:
    """Run a command. A failure that is expected is one line that says what to do, with exit code 1 (2 for wrong
    usage); OPENCLAW_RL_DEBUG=1 shows its traceback."""
    from ..api import PolicyError
    from ..config import ConfigError
    from ..launch.checks import StartError
    from ..launch.supervisor import SupervisorError
    from ..mesh.errors import MeshError
    from .app import app, err

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        app()
    except (ConfigError, StartError, SupervisorError, MeshError, PolicyError) as error:
        if os.environ.get("OPENCLAW_RL_DEBUG"):
            raise
        text = error.message if isinstance(error, MeshError) else str(error)
        err.print(f"[red]error:[/] {_plain(text)}", soft_wrap=True, highlight=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `openclaw-rl turns | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
