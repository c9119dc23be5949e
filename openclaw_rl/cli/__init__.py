"""The command line, `openclaw-rl`: one file per group of commands."""

from __future__ import annotations

import io
import logging
import os
import sys


def main() -> None:
    """Run a command. A failure that is expected is one line that says what to do, with exit code 1 (2 for wrong
    usage); OPENCLAW_RL_DEBUG=1 shows its traceback."""
    from openclaw_rl.cli.app import app
    from openclaw_rl.cli.overview import load

    load(sys.argv[1:])
    os.umask(0o077)  # what a command writes is its user's alone
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")  # rather a question mark than no answer at all
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `openclaw-rl turns | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        text = _expected(error)
        if text is None or os.environ.get("OPENCLAW_RL_DEBUG"):
            raise
        if not getattr(error, "shown", False):
            from openclaw_rl.cli.terminal import err

            err.print(f"[red]error:[/] {_plain(text)}", soft_wrap=True, highlight=False)
        sys.exit(1)


def _expected(error: Exception) -> str | None:
    """Return the text of an expected error, else None."""
    # Imported only when something failed: the commands load no more than they need.
    from openclaw_rl.api.facade import PolicyError
    from openclaw_rl.config import ConfigError
    from openclaw_rl.launch.backup import BackupError
    from openclaw_rl.launch.checks import StartError
    from openclaw_rl.launch.jaeger import NoJaeger
    from openclaw_rl.launch.supervisor import SupervisorError
    from openclaw_rl.rpc.errors import MeshError
    from openclaw_rl.training.portable.folder import PortableError

    if isinstance(error, MeshError):
        return error.message
    expected = (BackupError, ConfigError, StartError, NoJaeger, SupervisorError, PolicyError, PortableError)
    return str(error) if isinstance(error, expected) else None


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
