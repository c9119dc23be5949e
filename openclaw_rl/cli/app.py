"""The application that the commands register with."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from openclaw_rl.cli.overview import COMMANDS


class _Commands(TyperGroup):
    """The commands in order of use. Only the module of the one that is meant is loaded (`overview.load`), so the list
    is not made of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = " or ".join(map(repr, difflib.get_close_matches(name, COMMANDS)))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close}?" if close else ""))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="openclaw-rl", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Run an agent that learns from use: start the mesh, chat with it, see what it has learned.",
    epilog="To get started: openclaw-rl local-start, then openclaw-rl chat. Documentation: openclaw-rl docs. Files are "
           "stored in ~/.openclaw-rl, or in the folder named by OPENCLAW_RL_HOME.")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"openclaw-rl {version('openclaw-rl')}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_version,
                                                   is_eager=True)] = False) -> None:
    pass


Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
