"""forget: delete a session, and what was learned from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client.forget import Forgotten

_OUTCOMES = {"nothing_trained": "forgotten", "rebuilt": "forgotten, versions rebuilt",
             "rebuilding": "forgotten, versions are being rebuilt", "rolled_back": "forgotten, versions rolled back"}


@app.command(epilog="Example: openclaw-rl forget --session 7f3a; openclaw-rl forget --session 7f3a --yes --json")
def forget(
    session: Annotated[str, typer.Option("--session", "-s", help="Session id.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until versions are rebuilt.")] = False,
    as_json: Json = False,
) -> None:
    """Permanently delete a session's turns from all stores and the journal, and rebuild the versions trained on them
    without them. Versions that cannot be rebuilt are rolled back; the output says which."""
    from openclaw_rl.client import forget as client
    from openclaw_rl.runtime.running_config import running_config

    if not session:
        raise typer.BadParameter("a session id is required; `openclaw-rl turns` lists them", param_hint="--session")
    if not yes:
        typer.confirm(f"Forget session {session!r} for good? Its turns leave every store, damaged files that were set "
                      "aside go too, and versions that were trained on it are taken back.", abort=True, err=True)
    further = running_config(Home.default()).components.trainer.policy_servers
    done = client.forget(Home.default(), session, further, wait=not no_wait,
                         say=lambda text: err.print(text, highlight=False, markup=False, soft_wrap=True))
    if as_json:
        print_json(done.json())
    else:
        _print(done)


def _print(done: Forgotten) -> None:
    out.print(f"{_OUTCOMES[done.outcome]}: {len(done.turns)} turns of session {done.session}", highlight=False,
              markup=False)
    if done.void:
        out.print(f"void versions: {', '.join(map(str, done.void))}", highlight=False)
    out.print(done.message, highlight=False, markup=False)
    if done.active is not None:
        out.print(f"version {done.active} is active", highlight=False)
