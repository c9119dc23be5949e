"""trace: what happened to a turn, from the request to the version that it trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from ..home import Home
from .app import Json, app, err, out, print_json

if TYPE_CHECKING:
    from ..client.traces import Node

_SCORE_STYLES = {1.0: "green", 0.0: "", -1.0: "red"}


@app.command(epilog="Example: openclaw-rl trace turn_01a2...; openclaw-rl trace --version 3 --json | "
                    "jq '.resourceSpans[].scopeSpans[].spans[].name'")
def trace(
    turn: Annotated[str, typer.Argument(help="Id of a turn, as `turns` lists it.", show_default=False)] = "",
    session: Annotated[str, typer.Option("--session", "-s", help="All turns of a session instead.",
                                         show_default=False)] = "",
    version: Annotated[int | None, typer.Option("--version", "-v", help="The step that made a version, its way to the "
                                                "policy server, and the turns that it was trained on, instead.", min=0,
                                                max=2**63 - 1, show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the spans of a turn as a tree: request, generation, record, next state, votes, and the version it trained.

    They come from the files that the components keep in the mesh's folder; no collector is needed. --json prints
    OTLP's JSON.
    """
    from ..client import traces
    from ..mesh.running import running_config

    if (bool(turn) + bool(session) + (version is not None)) != 1:
        raise typer.BadParameter("name one of: a turn, --session S, --version N")
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
        out.print(f"{title}: no spans of it are left", highlight=False)
        return
    root = Tree(Text(f"{title}  trace {nodes[0].span['trace']}", "bold"))
    first = min(node.span["start"] for node in nodes)
    for node in nodes:
        _add(root, node, first)
    out.print(root, soft_wrap=True, highlight=False)


def _add(tree: Tree, node: Node, first: int) -> None:
    span = node.span
    line = Text(span["name"], "red" if span["status"] == "error" else "")
    line.append(f"  {_time(span['end'] - span['start'])}", "dim")
    line.append(f"  at +{_time(span['start'] - first)}" if span["start"] > first else "", "dim")
    for text, style in _facts(span):
        line.append("  ").append(text, style)
    branch = tree.add(line)
    for child in node.children:
        _add(branch, child, first)


def _time(nanoseconds: int) -> str:
    seconds = max(0, nanoseconds) / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _facts(span: dict[str, Any]) -> list[tuple[str, str]]:
    """What a person wants to know of a span, and how it is shown."""
    from ..telemetry import names

    values = span["attributes"]
    facts: list[tuple[str, str]] = []
    if (status := values.get("http.response.status_code", values.get("rpc.response.status_code"))) is not None:
        facts.append((str(status), ""))
    if names.OUTPUT_TOKENS in values:
        facts.append((f"{values[names.INPUT_TOKENS]} + {values[names.OUTPUT_TOKENS]} tokens", ""))
    if values.get(names.FINISH_REASONS):
        facts.append((values[names.FINISH_REASONS][0], ""))
    if span["name"] == names.RECORD:
        facts.append((f"{values.get(names.TURN_CLASS, '')}: {values.get('openclaw.turn.class.reason', '')}", ""))
    if "openclaw.next_state.kind" in values:
        facts.append((values["openclaw.next_state.kind"], ""))
    if (score := values.get(names.SCORE)) is not None:
        facts.append((f"score {score:+.0f}" if score else "score 0", _SCORE_STYLES.get(score, "")))
    if values.get("openclaw.vote.certain"):
        facts.append(("certain", ""))
    if values.get(names.FATE) == "dropped":
        facts.append((values.get(names.REASON, ""), "yellow"))
    spans = values.get(names.SPANS, [])
    if len(spans) > 1:
        facts.append((f"versions {', '.join(spans)}", "cyan"))
    elif names.TRAINED in values:
        facts.append((f"trained version {values[names.TRAINED]}", "bold green"))
    elif names.VERSION in values and (span["kind"] != 2 or names.TURN not in values):
        facts.append((f"version {values[names.VERSION]}", "cyan"))
    if "openclaw.activation.pause_ms" in values and span["name"] == names.ACTIVATE:
        facts.append((f"decoding paused {values['openclaw.activation.pause_ms']:.1f} ms", ""))
    if "openclaw.transfer.bytes" in values:
        facts.append((f"{values['openclaw.transfer.bytes'] / 1e6:.1f} MB to {values.get('server.address', '?')}", ""))
    if values.get("openclaw.gate.failures"):
        facts.append((f"not served: {'; '.join(values['openclaw.gate.failures'])}", "red"))
    if "openclaw.activation.reason" in values:
        facts.append((values["openclaw.activation.reason"], ""))
    if span["links"]:
        facts.append((f"{len(span['links'])} links", "dim"))
    if span["status"] == "error":
        facts.append((span["message"], "red"))
    return facts
