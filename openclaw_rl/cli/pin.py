"""pin, unpin: keep one version active."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client import PolicyServiceClient
    from openclaw_rl.v1.policy_pb2 import ActivateVersionResponse


@app.command(epilog="Example: openclaw-rl pin --reason 'a demonstration'; openclaw-rl pin 3")
def pin(
    version: Annotated[int | None, typer.Argument(help="Version to pin, among those kept; default: the active one.",
                                                  min=0, show_default=False)] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown with the pin.", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Keep serving a version, also across restarts. Training continues; its newest version is activated after
    `unpin`."""
    why = ", ".join(filter(None, [reason, f"by {getpass.getuser()} on {socket.gethostname()}"]))
    with activating("activating the version") as policy:
        _tell(policy.activate_version(version=version, reason=why, pin=True), as_json,
              "version {} is pinned; `openclaw-rl unpin` removes the pin")


@app.command(epilog="Example: openclaw-rl unpin")
def unpin(as_json: Json = False) -> None:
    """Remove the pin and activate the newest version."""
    with activating("activating the newest version") as policy:
        _tell(policy.activate_version(pin=False, reason=f"by {getpass.getuser()}"), as_json,
              "no version is pinned; version {} is active, newer ones follow")


@contextmanager
def activating(text: str) -> Iterator[PolicyServiceClient]:
    """Yield a client that waits until a version's weights are loaded, which takes minutes for a large model; `text`
    tells what for."""
    from openclaw_rl.client import PolicyServiceClient
    from openclaw_rl.launch.narration import Narration

    with PolicyServiceClient(home=Home.default(), timeout=900) as policy, Narration(err, text):
        yield policy


def _tell(done: ActivateVersionResponse, as_json: bool, text: str) -> None:
    if as_json:
        print_json({"active_version": done.state.active_version, "pinned": done.state.pinned,
                    "pause_ms": done.pause_ms})
    else:
        out.print(text.format(done.state.active_version), highlight=False)
