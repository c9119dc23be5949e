"""dashboard: the web panel."""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out
from openclaw_rl.runtime.home import Home


@app.command(epilog="Example: openclaw-rl dashboard")
def dashboard(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: dashboard.host (127.0.0.1). Anything "
                                                  "but loopback requires HTTPS and a key.",
                                             show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port; default: dashboard.port (30080); 0: any free port.", min=0,
                                             max=65535, show_default=False)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    plain: Annotated[bool, typer.Option("--plain-http", help="Serve plain HTTP on a network; only behind an HTTPS "
                                                             "proxy of your own.")] = False,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; default: that of the "
                                                                       "running mesh.", show_default=False)] = None,
) -> None:
    """Serve the web dashboard until interrupted. The mesh may start and stop meanwhile.

    Prints a link that signs in as this machine's operator for as long as the dashboard runs.
    """
    try:
        import nicegui  # noqa: F401
    except ImportError:
        err.print("the dashboard requires NiceGUI: pip install 'openclaw-rl[dashboard]'", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    import logging

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # the page shows which components end, not the terminal
    from openclaw_rl.config import load_config
    from openclaw_rl.dashboard import server
    from openclaw_rl.runtime.running_config import running_config

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    home = Home.default()
    loaded = load_config(config) if config is not None else running_config(home)
    listener = server.listen(loaded, home, host or loaded.dashboard.host,
                             loaded.dashboard.port if port is None else port, plain)

    opener = home.root / "dashboard" / f"open-{os.getpid()}.html"

    def ready(link: str) -> None:
        out.print(f"dashboard of {home.root}: {listener.url}", soft_wrap=True, highlight=False, markup=False)
        out.print(f"sign in, to act: {link}", soft_wrap=True, highlight=False, markup=False)
        err.print("press Ctrl-C to stop", highlight=False)
        if not no_browser and _has_display():
            _open(opener, link)

    try:
        server.serve(loaded, home, listener, ready)
    except KeyboardInterrupt:
        pass
    finally:
        opener.unlink(missing_ok=True)


def _open(file: Path, link: str) -> None:
    """Open the link in a browser through a file that only this user can read: process arguments are visible to all
    users."""
    import threading
    import webbrowser

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write('<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
                      f'<meta http-equiv="refresh" content="0;url={escape(link)}"><title>OpenClaw-RL</title>')
    except OSError as error:
        err.print(f"the browser isn't opened: {file} can't be written: {error.strerror}", markup=False, soft_wrap=True)
        return
    threading.Thread(target=webbrowser.open, args=(file.resolve().as_uri(),), daemon=True).start()


def _has_display() -> bool:
    """Whether a browser can be shown."""
    if os.environ.get("CI") or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
