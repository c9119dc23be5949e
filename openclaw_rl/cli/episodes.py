"""episodes: run the policy in sandboxes, and inspect episodes."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from openclaw_rl.cli import episode_tasks
from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import clipped, err, out, print_json
from openclaw_rl.cli.turns import SCORES
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.client import EnvironmentServiceClient
    from openclaw_rl.client.episodes import Progress
    from openclaw_rl.v1 import environment_pb2 as pb

_group = typer.Typer(no_args_is_help=True, help="Run the policy in sandboxes and inspect the results.",
                     epilog="Example: openclaw-rl episodes run --type terminal --groups 8 --parallel 32")
app.add_typer(_group, name="episodes")

#: Seconds between two lines of a run whose output is no terminal.
_LINE_SECONDS = 10.0


@_group.command(epilog="Example: openclaw-rl episodes run --type terminal --groups 8 --parallel 32; "
                       "openclaw-rl episodes run --type all --split held_out --json > result.json")
def run(
    types: Annotated[list[str], typer.Option("--type", "-t", help="Environment to run in; repeatable; `all` for every "
                                                                  "usable one.", show_default=False)],
    groups: Annotated[int, typer.Option("--groups", "-g", min=0, help="Groups per environment; 0: one per task.")] = 0,
    group_size: Annotated[int, typer.Option("--group-size", min=0, help="Episodes per group, which are compared with "
                                                                        "one another; 0: 8.")] = 0,
    parallel: Annotated[int, typer.Option("--parallel", "-p", min=0, help="Maximum concurrent episodes per "
                                                                          "environment; 0: one per sandbox.")] = 0,
    max_steps: Annotated[int, typer.Option("--max-steps", min=0, help="Maximum steps of an episode; 0: the task's own "
                                                                      "limit.")] = 0,
    split: Annotated[Literal["train", "held_out", "all"] | None, typer.Option(
        "--split", help="Tasks to draw from; default: train, or all with --no-train.", show_default=False)] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help="Run only this task; repeatable.",
                                                   show_default=False)] = None,
    no_train: Annotated[bool, typer.Option("--no-train", help="Do not train on these episodes. Held-out tasks are "
                                                              "never trained on.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed for task selection and sampling.",
                                             show_default=False)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="Sampling temperature; default: the "
                                                                            "server's.",
                                                      show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Run episodes and show their progress. Ctrl-C cancels those still running."""
    import asyncio

    from openclaw_rl.client import EnvironmentServiceClient, episodes
    from openclaw_rl.v1 import environment_pb2 as pb

    home = Home.default()
    if split == "all" and not no_train:
        raise typer.BadParameter("held-out tasks are not trained on: add --no-train", param_hint="--split")
    if "all" in types:
        if task:
            raise typer.BadParameter("tasks belong to one environment: name it with --type", param_hint="--task")
        with EnvironmentServiceClient(home=home) as env:
            types = episodes.usable_types(env)
    splits = {"train": pb.TASK_SPLIT_TRAIN, "held_out": pb.TASK_SPLIT_HELD_OUT}
    requests = [pb.RunEpisodesRequest(
        type=type, task_ids=task or (), groups=groups, group_size=group_size, parallel=parallel, max_steps=max_steps,
        split=splits.get(split or "", pb.TASK_SPLIT_UNSPECIFIED), no_train=no_train, seed=seed)
        for type in dict.fromkeys(types)]
    if temperature is not None:
        for request in requests:
            request.sampling.temperature = temperature
    show = _Live() if sys.stdout.isatty() and not as_json else _Lines()
    interrupted = False
    with show:
        try:
            asyncio.run(episodes.run(home, requests, show.tell))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        except KeyboardInterrupt:
            interrupted = True
    found = show.seen
    if as_json:
        print_json({"runs": [progress.json() for progress in found], "cancelled": interrupted})
    elif found:
        _summary(found)
    for progress in found:
        if progress.error:
            err.print(f"[red]error:[/] {progress.type}: ", Text(progress.error), soft_wrap=True, highlight=False)
    if interrupted:
        err.print("cancelled: running episodes were aborted and their sandboxes released", highlight=False)
        raise typer.Exit(130)
    if any(progress.error for progress in found) or not any(progress.outcomes for progress in found):
        raise typer.Exit(1)


@_group.command("list", epilog="Example: openclaw-rl episodes list --type terminal --json | jq '.[] | .outcome'")
def list_(
    type: Annotated[str, typer.Option("--type", "-t", help="Only episodes of this environment.",
                                      show_default=False)] = "",
    run: Annotated[str, typer.Option("--run", "-r", help="Only episodes of this run.", show_default=False)] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number of episodes, newest "
                                                                              "first.")] = 30,
    as_json: Json = False,
) -> None:
    """List episodes with task, steps and outcome, newest first."""
    from openclaw_rl.client.episodes import as_json as plain

    with _env() as env:
        found = env.list_episodes(type=type, run_id=run, page_size=limit).episodes
    if as_json:
        print_json([plain(episode) for episode in found])
        return
    if not found:
        out.print("no episodes yet; `openclaw-rl episodes run --type all --groups 1` runs some", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("episode", "type", "task", "steps", "ver.", "outcome"):
        table.add_column(column, no_wrap=True)
    for episode in found:
        table.add_row(episode.episode_id, clipped(episode.type, 16), clipped(episode.task_id, 30), str(episode.steps),
                      str(episode.policy_version) if episode.HasField("policy_version") else "",
                      clipped(_outcome(episode), max(20, out.width - 100)))
    out.print(table)


@_group.command(epilog="Example: openclaw-rl episodes show ep_01a2b3 (a prefix of the id is enough)")
def show(episode: Annotated[str, typer.Argument(help="Episode id.", show_default=False)],
         as_json: Json = False) -> None:
    """Show an episode: its outcome, and its turns with score and fate."""
    from openclaw_rl.client import episodes

    with _env() as env:
        found = episodes.find(env, episode)
    steps = episodes.steps(Home.default(), found)
    if as_json:
        print_json(episodes.as_json(found) | {"turns": [{"step": step.number, **step.fate.json()} for step in steps]})
        return
    facts = Table.grid(padding=(0, 2))
    for name, value in (("episode", found.episode_id), ("run", found.run_id), ("group", found.group_id),
                        ("task", f"{found.task_id} ({found.type})"), ("session", found.session_id),
                        ("outcome", _outcome(found)), ("check", found.detail),
                        ("learned from", "no" if found.no_train else "yes")):
        if value:
            facts.add_row(name, clipped(value, 1000))
    out.print(facts)
    table = Table(box=None, pad_edge=False)
    for column in ("step", "turn", "score", "fate", "said"):
        table.add_column(column, no_wrap=True)
    for step in steps:
        fate = step.fate
        what = f"trained {fate.trained_version}" if fate.fate == "trained" else fate.fate
        table.add_row(str(step.number or "-"), fate.turn, SCORES[fate.score],
                      clipped(f"{what}: {fate.reason}" if fate.reason else what, 40),
                      clipped(fate.response_text, max(20, out.width - 100)))
    out.print(table)


_group.command(epilog="Example: openclaw-rl episodes check ~/my-tasks; openclaw-rl episodes check ~/my-code --kind swe "
                      "--json")(episode_tasks.check)


class _Lines:
    """Progress without a terminal: a line at intervals."""

    def __init__(self) -> None:
        self._by_type: dict[str, Progress] = {}
        self._told = time.monotonic()

    @property
    def seen(self) -> list[Progress]:
        return list(self._by_type.values())

    def tell(self, progress: Progress) -> None:
        self._by_type[progress.type] = progress
        if time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            for each in self.seen:
                err.print(_line(each), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Live(_Lines):
    """Progress in a terminal: a live table."""

    def __init__(self) -> None:
        super().__init__()
        self._live = Live(console=out, refresh_per_second=4, transient=True, get_renderable=self._draw)

    def tell(self, progress: Progress) -> None:
        self._by_type[progress.type] = progress

    def _draw(self) -> Group:
        last = [Text.assemble((f"{each.type}: ", "dim"), clipped(each.action, max(20, out.width - 20)))
                for each in self.seen if each.action]
        return Group(_table(self.seen), *last, Text("Ctrl-C cancels", style="dim"))

    def __enter__(self) -> _Live:
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)


def _table(found: list[Progress]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("type", "groups", "running", "over", "broken off", "steps", "alike", "success", "per minute"):
        table.add_column(column, no_wrap=True, justify="left" if column == "type" else "right")
    for each in found:
        done, groups = each.groups
        table.add_row(clipped(each.type, 20), f"{done}/{groups}", str(len(each.running)),
                      f"{len(each.over)}/{each.total}", str(each.broken), str(each.steps), str(each.alike),
                      "" if each.success is None else f"{each.success:.2f}", f"{each.rate:.1f}")
    return table


def _line(each: Progress) -> str:
    done, groups = each.groups
    success = "" if each.success is None else f", success {each.success:.2f}"
    return (f"{each.type}: {len(each.over)} of {each.total} episodes over ({done} of {groups} groups), "
            f"{len(each.running)} running, {each.broken} broken off, {each.steps} steps{success}")


def _summary(found: list[Progress]) -> None:
    out.print(_table(found))
    for each in found:
        reasons: dict[str, int] = {}
        for episode in each.over:
            if episode.error:
                reasons[episode.error] = reasons.get(episode.error, 0) + 1
        for reason, count in sorted(reasons.items(), key=lambda item: -item[1])[:5]:
            out.print(clipped(f"{each.type}: {count} broken off: {reason}", 1000), style="yellow", highlight=False)
    out.print(f"`openclaw-rl episodes list --run {found[0].run}` lists each of them", style="dim", highlight=False,
              soft_wrap=True)


def _outcome(episode: pb.Episode) -> str:
    if not episode.done:
        return "running"
    return f"broken off: {episode.error}" if episode.error else f"{episode.outcome:.2f}"


def _env() -> EnvironmentServiceClient:
    from openclaw_rl.client import EnvironmentServiceClient

    return EnvironmentServiceClient(home=Home.default())
