"""backup, restore: a home as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_rl.cli.app import Json, app
from openclaw_rl.cli.terminal import err, out, print_json
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.launch.backup import Archive


@app.command(epilog="Example: openclaw-rl backup monday.tar.zst")
def backup(
    file: Annotated[Path, typer.Argument(help="Archive to write: NAME.tar.zst or NAME.tar.gz.",
                                         show_default=False)],
    models: Annotated[bool, typer.Option("--models", help="Include the base models' files, which are large and can be "
                                                          "downloaded again.")] = False,
    as_json: Json = False,
) -> None:
    """Write a backup of this machine's home folder: stores, versions, checkpoints, configuration, keys, certificates,
    journal.

    It is consistent while the mesh runs. Keep it safe: it contains every conversation, also those that are forgotten
    later.
    """
    from openclaw_rl.launch.backup import back_up

    archive = back_up(Home.default(), file, models=models)
    for name in archive.left_out:
        err.print(f"left out: {name}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    _tell(archive, as_json, f"wrote {archive.file}, {archive.file.stat().st_size / 2**20:.1f} MB")


@app.command(epilog="Example: OPENCLAW_RL_HOME=~/restored openclaw-rl restore monday.tar.zst")
def restore(
    file: Annotated[Path, typer.Argument(help="Archive that `openclaw-rl backup` wrote.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Make the home folder from a backup. It must be empty or absent; `local-start` then continues with the same turns
    and versions.

    Do not run the original and the restored mesh at the same time: both would use the same ports and mesh id.
    """
    from openclaw_rl.launch import backup

    home = Home.default()
    archive = backup.restore(file, home)
    _tell(archive, as_json, f"restored {archive.file} of {archive.made_at} (openclaw-rl {archive.made_by}) to "
                            f"{home.root}")


def _tell(archive: Archive, as_json: bool, text: str) -> None:
    if as_json:
        print_json(archive.json())
    else:
        out.print(f"{text}: {len(archive.stores)} stores, {archive.bytes / 2**20:.1f} MB unpacked", soft_wrap=True,
                  highlight=False, markup=False)
