"""trace: the spans of a turn, from the request to the version it trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client.traces import Node

#: How the facts of a span are shown, by how they are meant.
_STYLES = {"good": "green", "bad": "red", "warn": "yellow", "version": "cyan", "trained": "bold green", "dim": "dim"}


@app.command(epilog="Example: openclaw-rl trace turn_01a2...; openclaw-rl trace --version 3 --json | "
                    "jq '.resourceSpans[].scopeSpans[].spans[].name'")
def trace(
    turn: Annotated[str, typer.Argument(help="Turn id, as listed by `turns`.", show_default=False)] = "",
    session: Annotated[str, typer.Option("--session", "-s", help="Show all turns of a session instead.",
                                         show_default=False)] = "",
    version: Annotated[int | None, typer.Option("--version", "-v", help="Show the training step of a version, its "
                                                                        "delivery, and the turns it was trained on "
                                                                        "instead.", min=0,
                                                max=2**63 - 1, show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the spans of a turn as a tree: request, generation, record, next state, votes, and the version it trained.

    Spans are read from the files of the components in the home folder; no collector is needed. --json prints OTLP JSON.
    """
    from openclaw_rl.client import traces
    from openclaw_rl.runtime.running_config import running_config

    if (bool(turn) + bool(session) + (version is not None)) != 1:
        raise typer.BadParameter("give exactly one of: TURN, --session, --version")
    home = Home.default()
    try:
        found = traces.find(home, running_config(home), turn=turn, session=session, version=version)
    except traces.NoTrace as error:
        err.print(f"[red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise typer.Exit(1) from None
    for problem in found.problems:
        err.print(f"[yellow]{problem}[/]", soft_wrap=True, highlight=False)
    if as_json:
        print_json(found.json())
        return
    if version is not None:
        _print(f"version {version}", found.step)
    for turn_id, nodes in found.turns.items():
        _print(f"turn {turn_id}", nodes)


def _print(title: str, nodes: list[Node]) -> None:
    if not nodes:
        out.print(f"{title}: no spans left", highlight=False)
        return
    root = Tree(Text(f"{title}  trace {nodes[0].span['trace']}", "bold"))
    first = min(node.span["start"] for node in nodes)
    for node in nodes:
        _add(root, node, first)
    out.print(root, soft_wrap=True, highlight=False)


def _add(tree: Tree, node: Node, first: int) -> None:
    from openclaw_rl.client.span_facts import duration, facts

    span = node.span
    line = Text(span["name"], "red" if span["status"] == "error" else "")
    line.append(f"  {duration(span['end'] - span['start'])}", "dim")
    line.append(f"  at +{duration(span['start'] - first)}" if span["start"] > first else "", "dim")
    for text, tone in facts(span):
        line.append("  ").append(text, _STYLES.get(tone, ""))
    branch = tree.add(line)
    for child in node.children:
        _add(branch, child, first)
