"""logs: the components' own logs and the journal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.text import Text

from ..home import COMPONENTS, Home
from .app import app, err, out

_STYLES = dict(zip(COMPONENTS, ("cyan", "magenta", "yellow", "green"), strict=True))


@app.command(epilog="Example: openclaw-rl logs -f trainer; openclaw-rl logs --journal -n 50")
def logs(
    components: Annotated[list[str] | None, typer.Argument(help="Of these; default all four.",
                                                           show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines of each to begin with.", min=0)] = 20,
    journal: Annotated[bool, typer.Option("--journal", help="The readable trace of turns, scores and hints.")] = False,
) -> None:
    """Show what the components log, or the journal."""
    home = Home.default()
    unknown = [name for name in components or () if name not in COMPONENTS]
    if unknown:
        err.print(f"unknown component {', '.join(unknown)}; there are {', '.join(COMPONENTS)}")
        raise typer.Exit(2)
    if journal:
        tails = [_Tail(home.logs, "rl_trace_*.log", "")]
    else:
        tails = [_Tail(home.logs, f"{name}.log", name) for name in components or COMPONENTS]
    if not follow and not any(tail.newest() for tail in tails):
        err.print(f"nothing in {home.logs} yet; `openclaw-rl local-start` starts the mesh", soft_wrap=True)
        raise typer.Exit(1)
    for tail in tails:
        for line in tail.last(lines):
            _show(tail.name, line, len(tails) > 1)
    while follow:
        fresh = [(tail.name, line) for tail in tails for line in tail.new()]
        for name, line in fresh:
            _show(name, line, len(tails) > 1)
        if not fresh:
            time.sleep(0.2)


def _show(name: str, line: str, several: bool) -> None:
    text = Text(line)
    if several:
        text = Text.assemble((f"{name:<13} ", _STYLES.get(name, "")), text)
    out.print(text, soft_wrap=True)


class _Tail:
    """Follows the newest file of a pattern, also when it is rotated or a new day's begins."""

    def __init__(self, folder: Path, pattern: str, name: str) -> None:
        self.folder = folder
        self.pattern = pattern
        self.name = name
        self._file: TextIO | None = None
        self._inode = 0
        self._rest = ""

    def newest(self) -> Path | None:
        files = list(self.folder.glob(self.pattern))
        return max(files, key=lambda file: (file.stat().st_mtime, file.name)) if files else None

    def last(self, count: int) -> list[str]:
        """The last lines, and be at the end of the file."""
        self._open()
        return list(deque(self.new(), maxlen=count))

    def new(self) -> Iterator[str]:
        """Complete lines that were written since."""
        if self._file is not None:
            yield from self._read(self._file)
        if self._open() and self._file is not None:
            yield from self._read(self._file)

    def _read(self, file: TextIO) -> Iterator[str]:
        for line in file:
            self._rest += line
            if self._rest.endswith("\n"):
                yield self._rest.removesuffix("\n")
                self._rest = ""

    def _open(self) -> bool:
        """Go to the newest file; True when that is another one than before."""
        path = self.newest()
        if path is None or path.stat().st_ino == self._inode:
            return False
        if self._file is not None:
            self._file.close()
        self._file = path.open(errors="replace")
        self._inode = path.stat().st_ino
        return True
