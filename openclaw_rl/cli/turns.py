"""turns: list turns and their fates."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import clipped, local_time, out, print_json
from openclaw_rl.runtime.home import Home

SCORES = {1: "+1", 0: "0", -1: "-1", None: ""}


@app.command(epilog="Example: openclaw-rl turns --session abc123; openclaw-rl turns --json | jq '.[] | .reason'")
def turns(
    session: Annotated[str, typer.Option("--session", "-s", help="Only turns of this session.",
                                         show_default=False)] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Maximum number of turns, newest first; 0: all. "
                                                                    "Default: 30, or all with --json.",
                                              min=0, show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List turns with session, class, version, score and fate, why a turn was not trained on, defects of its response
    (cut off, empty, stopped at the limit), and whether the client had changed the conversation before it."""
    from openclaw_rl.client import facts

    if limit is None:
        limit = 0 if as_json else 30
    found = list(facts.turns(Home.default(), session=session, limit=limit or None))
    if as_json:
        print_json([turn.json() for turn in found])
        return
    if not found:
        out.print(f"no turns{f' in session {session}' if session else ''} yet; start with `openclaw-rl chat`")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("turn", "class", "ver.", "score", "fate"):
        table.add_column(column, no_wrap=True)
    wide = out.width >= 140  # the terminal has room for more than the facts
    if timed := out.width >= 100:
        table.add_column("time", no_wrap=True)
    if wide:
        table.add_column("session", no_wrap=True)
        table.add_column("request", no_wrap=True)
    notes: list[str] = []  # reasons that don't fit into a row; many turns share one
    for turn in found:
        fate = f"trained {turn.trained_version}" if turn.fate == "trained" else turn.fate
        reason = "; ".join(filter(None, (turn.reason, turn.flaw, turn.context_change)))
        if reason and len(f"{fate}: {reason}") <= (40 if wide else 20):
            fate = f"{fate}: {reason}"
        elif reason:
            if reason not in notes:
                notes.append(reason)
            fate = f"{fate} ({notes.index(reason) + 1})"
        table.add_row(turn.turn, turn.turn_class, str(turn.version), SCORES[turn.score], clipped(fate, 50),
                      *((local_time(turn.finished_at),) if timed else ()),
                      *((clipped(turn.session, 40), clipped(turn.request_text, 40)) if wide else ()))
    out.print(table)
    for number, note in enumerate(notes, 1):
        out.print(clipped(f"({number}) {note}", 1000), highlight=False, soft_wrap=True)
