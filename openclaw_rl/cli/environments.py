"""environments: list environments, tasks and leases; watch a lease."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import clipped, harmless, json_text, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client import EnvironmentServiceClient
    from openclaw_rl.v1 import environment_pb2 as pb

_group = typer.Typer(invoke_without_command=True)
app.add_typer(_group, name="environments")


@_group.callback(epilog="Example: openclaw-rl environments --json | jq '.[] | select(.problem != \"\")'")
def environments(ctx: typer.Context, as_json: Json = False) -> None:
    """List environments: kind, capacity, use, and why one is unusable."""
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise typer.BadParameter(f"put it after `{ctx.invoked_subcommand}`", param_hint="--json")
        return
    with _env() as env:
        found = env.list_environments().environments
    if as_json:
        print_json([{"type": info.type, "kind": info.kind, "backend": info.backend, "image": info.image,
                     "capacity": info.capacity, "leased": info.leased, "warm": info.warm, "starting": info.starting,
                     "waiting": info.waiting, "problem": info.problem, "tasks": info.tasks} for info in found])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("type", "made by", "leased", "warm", "waiting", "tasks", "state"):
        table.add_column(column, no_wrap=column != "state")
    for info in found:
        state = Text(info.problem, "red", overflow="fold") if info.problem else Text("ready", "green")
        made = info.backend if info.kind == info.type else f"{info.kind}, {info.backend}"
        table.add_row(clipped(info.type, 20), clipped(made, 24), f"{info.leased}/{info.capacity}", str(info.warm),
                      str(info.waiting), str(info.tasks), state)
    out.print(table)


@_group.command(epilog="Example: openclaw-rl environments tasks terminal --json | jq '.[].goal'")
def tasks(type: Annotated[str, typer.Argument(help="Environment name.", show_default=False)],
          as_json: Json = False) -> None:
    """List the tasks of an environment, and why one is unusable."""
    from openclaw_rl.v1 import environment_pb2 as pb

    with _env() as env:
        found = env.list_tasks(type=type).tasks
    splits = {pb.TASK_SPLIT_TRAIN: "train", pb.TASK_SPLIT_HELD_OUT: "held_out"}
    if as_json:
        print_json([{"task": task.task_id, "goal": task.goal, "split": splits.get(task.split, ""),
                     "max_steps": task.max_steps or None, "tags": list(task.tags), "problem": task.problem}
                    for task in found])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("task", "split", "steps", "goal"):
        table.add_column(column, no_wrap=True)
    for task in found:
        goal = clipped(task.problem or task.goal, max(30, out.width - 60))
        if task.problem:
            goal.stylize("red")
        table.add_row(clipped(task.task_id, 40), splits.get(task.split, ""), str(task.max_steps or ""), goal)
    out.print(table)


@_group.command(epilog="Example: openclaw-rl environments leases; openclaw-rl environments leases --json")
def leases(as_json: Json = False) -> None:
    """List active leases: holder, environment, task and progress."""
    with _env() as env:
        found = env.list_leases().leases
    if as_json:
        print_json([_lease(lease) for lease in found])
        return
    if not found:
        out.print("no sandbox is leased; `openclaw-rl episodes run --type all` leases some", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("lease", "type", "holder", "task", "steps", "problem"):
        table.add_column(column, no_wrap=True)
    for lease in found:
        table.add_row(lease.lease_id, clipped(lease.type, 20), clipped(lease.holder, 40), clipped(lease.task_id, 30),
                      str(lease.steps), clipped(lease.problem, 40))
    out.print(table)


@_group.command(epilog="Example: openclaw-rl environments watch LEASE (`environments leases` lists the ids)")
def watch(lease: Annotated[str, typer.Argument(help="Lease id.", show_default=False)],
          as_json: Json = False) -> None:
    """Follow a leased sandbox until its lease ends. With --json, print one line per change."""
    with _env() as env:
        for seen in env.watch_lease(lease_id=lease):
            if as_json:
                print(json_text({"lease": _lease(seen.lease), "action": _loaded(seen.action_json),
                                 "view": _loaded(seen.view.json), "ended": seen.ended}), flush=True)
                continue
            view = _loaded(seen.view.json)
            out.rule(Text(f"step {seen.lease.steps}"))
            if seen.action_json:
                out.print(clipped(seen.action_json, 1000), style="bold")
            text = str(view.get("text", "")) if isinstance(view, dict) else ""
            out.print(Text(harmless(text)), highlight=False)
    if not as_json:
        out.print("the lease has ended", style="dim")


def _lease(lease: pb.Lease) -> dict[str, Any]:
    return {"lease": lease.lease_id, "type": lease.type, "holder": lease.holder, "task": lease.task_id,
            "steps": lease.steps, "acquired_at": lease.acquired_at.ToJsonString(),
            "expires_at": lease.expires_at.ToJsonString(), "problem": lease.problem}


def _loaded(text: str) -> Any:
    return json.loads(text) if text else None


def _env() -> EnvironmentServiceClient:
    from openclaw_rl.client import EnvironmentServiceClient

    return EnvironmentServiceClient(home=Home.default())
