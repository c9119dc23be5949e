"""episodes check: try a folder of tasks before anything is trained on it."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from openclaw_rl.cli.app import Json
from openclaw_rl.cli.terminal import err, harmless, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.config import EnvironmentConfig
    from openclaw_rl.rollouts.episodes.task_check import Trial

#: Seconds between two lines of progress.
_LINE_SECONDS = 10.0

Folder = Annotated[Path, typer.Argument(help="Folder of task files: *.yaml, *.jsonl, *.parquet.", show_default=False)]
Kind = Annotated[str, typer.Option("--kind", "-k", help="Kind of environment; default: that of the environment whose "
                                                        "`tasks` is the folder, else terminal.", show_default=False)]


def check(
    folder: Folder, kind: Kind = "",
    task: Annotated[list[str] | None, typer.Option("--task", help="Check only this task; repeatable.",
                                                   show_default=False)] = None,
    parallel: Annotated[int, typer.Option("--parallel", "-p", min=0, help="Maximum concurrent sandboxes; 0: one per "
                                                                          "core, at most 8.")] = 0,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for a set-up, an action or a "
                                                                    "check.")] = 60,
    as_json: Json = False,
) -> None:
    """Check tasks: the set-up works, the check fails before and passes after the solution, twice alike."""
    import asyncio

    name, config = _configured(folder, kind)
    found: list[Trial] = []
    at_once = parallel or min(os.cpu_count() or 1, 8)
    asyncio.run(_check(folder, name, config, task or [], at_once, timeout, found))
    counts = Counter(trial.verdict.value for trial in found)
    splits = Counter(trial.task.split for trial in found if trial.verdict.usable)
    if as_json:
        print_json({"kind": name, "tasks": len(found), "verdicts": dict(counts), "train": splits["train"],
                    "held_out": splits["held_out"],
                    "trials": [{"task": trial.task.id, "source": trial.task.source, "split": trial.task.split,
                                "verdict": trial.verdict.value, "detail": trial.detail} for trial in found]})
    else:
        for trial in found:
            if not trial.verdict.usable:
                out.print(Text(f"{trial.verdict.value}: ", "red"), Text(_told(trial)), sep="", soft_wrap=True)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        out.print(f"{len(found)} tasks: {verdicts}; to use: {splits['train']} to train on, {splits['held_out']} held "
                  "out", highlight=False)
    if any(not trial.verdict.usable for trial in found):
        raise typer.Exit(1)


def _told(trial: Trial) -> str:
    where = f"{trial.task.source}, task {trial.task.id}: "
    return harmless(trial.detail if trial.detail.startswith(trial.task.source) else where + trial.detail)


async def _check(folder: Path, kind: str, config: EnvironmentConfig, names: list[str], parallel: int, seconds: float,
                 found: list[Trial]) -> None:
    import asyncio

    from openclaw_rl.rollouts.environments.factory import ConfiguredEnvironment
    from openclaw_rl.rollouts.environments.interface import Context
    from openclaw_rl.rollouts.environments.plugins import load_type
    from openclaw_rl.rollouts.episodes.task_check import try_tasks
    from openclaw_rl.rollouts.leases.task_catalog import TaskCatalog
    from openclaw_rl.rollouts.sandboxes.factory import backend, label

    home = Home.default().root
    with tempfile.TemporaryDirectory() as own:
        sandboxes = backend(config, home)
        made = load_type(kind, "--kind")(config, Context(kind, Path(own), sandboxes, label=label(home)))
        environment = ConfiguredEnvironment(kind, config, kind, made, True, backend=sandboxes)
        tasks = await asyncio.to_thread(TaskCatalog({kind: environment}, bundled=False).tasks, kind)
        if unknown := set(names) - {task.id for task in tasks}:
            raise typer.BadParameter(f"{min(unknown)!r} is no task in {folder}", param_hint="--task")
        tasks = [task for task in tasks if not names or task.id in names]
        if not tasks:
            raise typer.BadParameter(f"{folder} has no tasks: files *.yaml, *.yml, *.jsonl or *.parquet",
                                     param_hint="FOLDER")
        if rejection := await made.validate():
            raise typer.BadParameter(f"no sandbox of kind {kind} can be made: {rejection.message}", param_hint="--kind")
        told = time.monotonic()
        try:
            async for trial in try_tasks(made, tasks, parallel, seconds):
                found.append(trial)
                if time.monotonic() - told >= _LINE_SECONDS:
                    told = time.monotonic()
                    err.print(f"{len(found)} of {len(tasks)} tasks checked", highlight=False)
        finally:
            await made.close()
    found.sort(key=lambda trial: (trial.task.source, trial.task.id))


def _configured(folder: Path, kind: str) -> tuple[str, Any]:
    """Return the kind and the configuration of the environment that has this folder, or of one like it."""
    from openclaw_rl.config import EnvironmentConfig
    from openclaw_rl.runtime.running_config import running_config

    if not folder.is_dir():
        raise typer.BadParameter(f"{folder} is no folder", param_hint="FOLDER")
    for name, config in running_config(Home.default()).components.env_server.environments.items():
        if config.tasks is not None and config.tasks.expanduser().resolve() == folder.resolve() \
                and kind in ("", config.kind or name):
            return config.kind or name, config
    return kind or "terminal", EnvironmentConfig(count=1, tasks=folder)
