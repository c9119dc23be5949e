"""turns, versions, rollback."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from ..home import Home
from .app import Json, addresses, app, clipped, out, print_json

_METRICS = ("loss", "kl")  #: those that matter first
_SCORES = {1: "+1", 0: "0", -1: "-1", None: ""}


@app.command(epilog="Example: openclaw-rl turns --session abc123; openclaw-rl turns --json | jq '.[] | .reason'")
def turns(
    session: Annotated[str, typer.Option("--session", "-s", help="Only this session's.", show_default=False)] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", help="Most turns, newest first; 0 means all. Default "
                                              "30, with --json all.", min=0, show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List turns with session, class, version, score and fate, and why a turn was not trained."""
    from ..client import facts

    if limit is None:
        limit = 0 if as_json else 30
    found = list(facts.turns(Home.default(), session=session, limit=limit or None, addresses=addresses()))
    if as_json:
        print_json([turn.json() for turn in found])
        return
    if not found:
        out.print(f"no turns{f' in session {session}' if session else ''} yet; say something with `openclaw-rl chat`")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("turn", "class", "ver.", "score", "fate"):
        table.add_column(column, no_wrap=True)
    wide = out.width >= 140  # the terminal has room for more than the facts
    if wide:
        table.add_column("session", no_wrap=True)
        table.add_column("request", no_wrap=True)
    notes: list[str] = []  # reasons that don't fit into a row; many turns share one
    for turn in found:
        fate = f"trained {turn.trained_version}" if turn.fate == "trained" else turn.fate
        if turn.reason and len(f"{fate}: {turn.reason}") <= (40 if wide else 20):
            fate = f"{fate}: {turn.reason}"
        elif turn.reason:
            if turn.reason not in notes:
                notes.append(turn.reason)
            fate = f"{fate} ({notes.index(turn.reason) + 1})"
        table.add_row(turn.turn, turn.turn_class, str(turn.version), _SCORES[turn.score], clipped(fate, 50),
                      *((clipped(turn.session, 40), clipped(turn.request_text, 40)) if wide else ()))
    out.print(table)
    for number, note in enumerate(notes, 1):
        out.print(clipped(f"({number}) {note}", 1000), highlight=False, soft_wrap=True)


@app.command(epilog="Example: openclaw-rl versions --json | jq '.[] | select(.active)'")
def versions(as_json: Json = False) -> None:
    """List the policy's versions: where each comes from and the turns that it was trained on."""
    from ..client import facts

    found = facts.versions(Home.default(), addresses=addresses())
    if as_json:
        print_json([version.json() for version in found])
        return
    table = Table(box=None, pad_edge=False)
    wide = out.width >= 140
    for column in ("version", "parent", "algorithm", "created", "turns", *(("digest",) if wide else ()), "metrics"):
        table.add_column(column, no_wrap=True)
    for v in found:
        names = [name for name in _METRICS if name in v.metrics]
        if wide:
            names += [name for name in v.metrics if name not in names]
        metrics = ", ".join(f"{name} {v.metrics[name]:.3g}" for name in names)
        created = "" if v.created_at is None else f"{datetime.fromisoformat(v.created_at).astimezone():%F %T}"
        table.add_row(f"[green]{v.version} *[/]" if v.active else str(v.version),
                      "" if v.parent is None else str(v.parent), v.algorithm, created, str(len(v.turns)),
                      *((v.digest[:12],) if wide else ()), clipped(metrics, 90))
    out.print(table)
    out.print("* answers now; `openclaw-rl rollback N` goes to another", highlight=False, style="dim")


@app.command(epilog="Example: openclaw-rl rollback 3 --reason 'answers got vague'")
def rollback(
    version: Annotated[int, typer.Argument(help="The version that is to answer; 0 is the base model.", min=0)],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the log.", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Make a kept version the active one (back, or forward again). No request is refused meanwhile."""
    from ..client import PolicyServiceClient

    with PolicyServiceClient(addresses().get("policy_server"), home=Home.default()) as policy:
        done = policy.activate_version(version=version, reason=reason)
    if as_json:
        print_json({"active_version": done.state.active_version, "kept_versions": list(done.state.kept_versions),
                    "withdrawn_versions": list(done.state.withdrawn_versions), "pause_ms": done.pause_ms})
    else:
        out.print(f"version {done.state.active_version} answers now (decoding paused for {done.pause_ms:.0f} ms)",
                  highlight=False)
