"""versions: list, show, compare, export and import; rollback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.pin import activating
from openclaw_rl.cli.terminal import clipped, local_time, out, print_json
from openclaw_rl.cli.turns import SCORES
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client.facts import Version
    from openclaw_rl.client.versions import TrainedTurn, VersionDiff, VersionStory

_METRICS = ("loss", "kl", "entries", "added", "dropped")  #: those that matter first, of weights and of playbooks
_COLOURS = {"active": "green", "pinned": "green", "refused": "red", "taken back": "red", "rejected": "red",
            "rolled back": "yellow"}
_group = typer.Typer(invoke_without_command=True)
app.add_typer(_group, name="versions")

Number = Annotated[int, typer.Argument(help="Version number; 0 is the base model.", min=0, show_default=False)]


@_group.callback(epilog="Example: openclaw-rl versions --json | jq '.[] | select(.active)'")
def versions(ctx: typer.Context, as_json: Json = False) -> None:
    """List policy versions: origin, state and the turns each was trained on."""
    from openclaw_rl.client import facts

    if ctx.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter(f"put it after `{ctx.invoked_subcommand}`", param_hint="--json")
        return
    found = facts.versions(Home.default())
    if as_json:
        print_json([version.json() for version in found])
        return
    table = Table(box=None, pad_edge=False)
    wide = out.width >= 140
    for column in ("version", "state", "parent", *(("algorithm",) if wide else ()), "created", "turns",
                   *(("live", "digest") if wide else ()), "metrics"):
        table.add_column(column, no_wrap=True)
    for v in found:
        table.add_row(_number(v), f"[{_COLOURS.get(v.state, 'default')}]{v.state}[/]",
                      "" if v.parent is None else str(v.parent), *((v.algorithm,) if wide else ()),
                      local_time(v.created_at), str(len(v.turns)), *((_live(v), v.digest[:12]) if wide else ()),
                      clipped(_metrics(v, wide), max(24, out.width - (94 if wide else 60))))
    out.print(table)
    out.print("* active; `openclaw-rl rollback N` activates another", highlight=False, style="dim")


@_group.command(epilog="Example: openclaw-rl versions show 3; openclaw-rl versions show 3 --json | jq '.turns[].turn'")
def show(version: Number, as_json: Json = False) -> None:
    """Show how a version was made: parent, settings, metrics and the turns it was trained on."""
    from openclaw_rl.client import versions as client

    story = client.show(Home.default(), version)
    if as_json:
        print_json(story.json())
        return
    v = story.facts
    table = _grid()
    table.add_row("version", _number(v))
    table.add_row("parent", "" if v.parent is None else str(v.parent))
    table.add_row("digest", v.digest)
    table.add_row("algorithm", Text(v.algorithm))
    table.add_row("settings", Text(", ".join(f"{name} {value}" for name, value in story.settings.items())))
    table.add_row("created", local_time(v.created_at))
    table.add_row("activated", Text(_activation(story)))
    if v.state:
        table.add_row("state", Text(v.state, _COLOURS.get(v.state, "")))
    for delivery in v.deliveries:
        table.add_row("policy server", Text(_delivery(delivery)))
    table.add_row("metrics", _metrics(v, True))
    if changes := before_after(v.metrics):
        table.add_row("before, after", Text(", ".join(changes)))
    for verdict in _verdict(story.gate):
        table.add_row("gate", verdict)
    table.add_row("live turns", _live(v) or "none judged yet")
    if story.judges:
        table.add_row("votes", Text(", ".join(f"{judge} {votes}" for judge, votes in story.judges.items())))
    for entry in story.playbook or ():
        table.add_row("instruction", Text(entry["text"] + _help(entry)))
    table.add_row("turns", str(len(story.turns)))
    out.print(table, highlight=False)
    for turn in story.turns:
        _print_turn(turn, "")
    for answer in story.gate["answers"] if story.gate else ():
        out.print(Text.assemble(("held out", "dim"), "  ", clipped(answer["prompt"], 256)), no_wrap=True,
                  overflow="ellipsis")
        out.print(Text.assemble(("  > ", "dim"), clipped(answer["answer"], 400)), no_wrap=True, overflow="ellipsis")


@_group.command(epilog="Example: openclaw-rl versions diff 2 5; openclaw-rl versions diff 2 5 --json | jq .settings")
def diff(old: Number, new: Number, as_json: Json = False) -> None:
    """Compare two versions: settings and metrics that differ, and the turns trained on in between."""
    from openclaw_rl.client import versions as client

    found = client.diff(Home.default(), old, new)
    if as_json:
        print_json(found.json())
        return
    table = _grid()
    table.add_row("", f"version {old}", f"version {new}")
    for name, settings in found.settings.items():
        table.add_row(Text(name), *(Text("" if value is None else value) for value in settings))
    for name, metrics in found.metrics.items():
        table.add_row(Text(name), *("" if value is None else f"{value:.3g}" for value in metrics))
    for name, figures in found.gate.items():
        table.add_row(Text(f"held out: {name}"), *("" if value is None else f"{value:.3g}" for value in figures))
    out.print(table if table.row_count > 1 else "settings and metrics are the same", highlight=False)
    for sign, text in found.playbook or ():
        out.print(Text(f"{sign} {text}", {"+": "green", "-": "red"}.get(sign, "dim")))
    if found.answers and old != new:
        _print_answers(found)
    for step in found.steps:
        sign, v = "+" if step.change == "added" else "-", step.story.facts
        out.print(Text(f"{sign} version {v.version}: {_metrics(v, True)}", "green" if sign == "+" else "red"),
                  no_wrap=True, overflow="ellipsis")
        for turn in step.story.turns:
            _print_turn(turn, f"{sign} ")


@_group.command("export", epilog="Example: openclaw-rl versions export 3 heron-3")
def export(version: Number, folder: Annotated[Path, typer.Argument(show_default=False, help=(
        "Folder to write; not there yet, or empty."))], as_json: Json = False) -> None:
    """Write a version as a Hugging Face folder: weights, tokenizer, LoRA adapter for peft, and a model card that says
    what it learned from.

    The mesh may run. The version's weights must be on this machine; see `kept` in `versions show N --json`.
    """
    from openclaw_rl.runtime.running_config import running_config
    from openclaw_rl.training.portable.exporting import export_version

    home = Home.default()
    described = export_version(home, running_config(home), version, folder)
    if as_json:
        print_json({"version": version, "folder": str(folder.absolute()), "digest": described.manifest.digest,
                    "lineage": described.lineage, "turns": list(described.manifest.turn_ids)})
    else:
        out.print(f"wrote version {version} to {folder}: {len(described.lineage)} steps on "
                  f"{len(described.manifest.turn_ids)} turns", soft_wrap=True, highlight=False, markup=False)


@_group.command("import", epilog="Example: openclaw-rl stop-all && openclaw-rl versions import heron-3")
def import_(folder: Annotated[Path, typer.Argument(help="Folder that `versions export` wrote.", show_default=False)],
            as_json: Json = False) -> None:
    """Add an exported version as the newest one; the next start serves it and continues training from it.

    It must be of the same base model and training method. The trainer must not run.
    """
    from openclaw_rl.runtime.running_config import running_config
    from openclaw_rl.training.portable.importing import import_version

    home = Home.default()
    manifest = import_version(home, running_config(home), folder)
    if as_json:
        print_json({"version": manifest.version, "digest": manifest.digest,
                    "imported_from": manifest.settings["imported_from"]})
    else:
        out.print(f"imported {folder} as version {manifest.version}; `openclaw-rl local-start` serves it",
                  soft_wrap=True, highlight=False, markup=False)


def before_after(metrics: dict[str, float]) -> list[str]:
    """Return metrics of a step that exist before and after it."""
    pairs = {name.removesuffix("_after"): value for name, value in metrics.items() if name.endswith("_after")}
    return [f"{name} {metrics[key]:.3g} -> {value:.3g}" for name, value in pairs.items()
            if (key := f"{name}_before" if f"{name}_before" in metrics else name) in metrics]


def _verdict(gate: dict[str, Any] | None) -> list[Text]:
    """Return the gate's findings, one line each."""
    if gate is None:
        return []
    figures = ", ".join(f"{name} {value:.3g}" + (f" (base model {gate['before'][name]:.3g})"
                                                  if name in gate["before"] else "")
                        for name, value in gate["metrics"].items())
    failures = [Text(f"refused: {failure}", "red") for failure in gate["failures"]]
    return [*failures, Text(f"{gate['verdict']}: {figures}" if gate["verdict"] else figures)]


def _help(entry: dict[str, Any]) -> str:
    """Return the judgement of turns under an instruction."""
    if entry["mean_score"] is None:
        return f" (since version {entry['added_in']})"
    return f" (since version {entry['added_in']}; {entry['mean_score']:+.2f} of {entry['uses']} turns)"


def _live(v: Version) -> str:
    return "" if v.live is None else f"{v.live['mean']:+.2f} of {v.live['turns']:.0f}"


def _delivery(delivery: dict[str, Any]) -> str:
    parts = ["answers" if delivery["active"] else "", local_time(delivery["activated_at"]), delivery["detail"]]
    return f"{delivery['address']}: {'; '.join(part for part in parts if part)}"


def _print_answers(found: VersionDiff) -> None:
    """Print answers to held-out prompts side by side."""
    table = Table(pad_edge=False, box=None, show_lines=False, expand=True)
    for title in ("held-out prompt", f"version {found.old}", f"version {found.new}"):
        table.add_column(title, ratio=1 if title.startswith("held") else 2)
    for answer in found.answers:
        table.add_row(*(Text("not asked", "dim") if (text := answer[key]) is None else clipped(text, 400)
                        for key in ("prompt", "old", "new")))
    out.print(table)


def _grid() -> Table:
    """Return a table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    return table


def _number(v: Version) -> str:
    return f"[green]{v.version} *[/]" if v.active else str(v.version)


def _metrics(v: Version, every: bool) -> str:
    names = [name for name in _METRICS if name in v.metrics]
    if every:
        names += [name for name in v.metrics if name not in names]
    return ", ".join(f"{name} {v.metrics[name]:.3g}" for name in names)


def _activation(story: VersionStory) -> str:
    """Return activation time, decoding pause, and why the version is not served."""
    parts = [local_time(story.activated_at)]
    if story.pause_ms is not None:
        parts.append(f"decoding paused for {story.pause_ms:.0f} ms")
    return "; ".join(part for part in (*parts, story.detail) if part)


def _print_turn(turn: TrainedTurn, prefix: str) -> None:
    """Print a turn in three lines, clipped to the terminal."""
    session = "unknown session" if turn.session is None else turn.session
    lines = [Text(f"{prefix}{turn.turn}  {SCORES[turn.score] or '?':>2}  ") + clipped(session, 256)]
    for mark, text in (("<", turn.request), (">", turn.response)):
        if text is not None:
            lines.append(Text.assemble(prefix, (f"  {mark} ", "dim"), clipped(text, 256)))
    for line in lines:
        out.print(line, no_wrap=True, overflow="ellipsis")


@app.command(epilog="Example: openclaw-rl rollback 3 --reason 'answers got vague'")
def rollback(
    version: Annotated[int, typer.Argument(help="Version to activate; 0 is the base model.", min=0)],
    reason: Annotated[str, typer.Option("--reason", help="Reason, for the log.", show_default=False)] = "",
    as_json: Json = False,
) -> None:
    """Activate a kept version, older or newer. No request is rejected meanwhile."""
    with activating(f"activating version {version}") as policy:
        done = policy.activate_version(version=version, reason=reason)
    if as_json:
        print_json({"active_version": done.state.active_version, "kept_versions": list(done.state.kept_versions),
                    "withdrawn_versions": list(done.state.withdrawn_versions), "pause_ms": done.pause_ms})
    else:
        out.print(f"version {done.state.active_version} is active (decoding paused for {done.pause_ms:.0f} ms)",
                  highlight=False)
