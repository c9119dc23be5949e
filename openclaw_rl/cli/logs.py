"""logs: the components' own logs and the journal."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out
from openclaw_rl.runtime.home import COMPONENTS, Home

if TYPE_CHECKING:
    from openclaw_rl.client import ComponentServiceClient
    from openclaw_rl.observability.log_reader import Tail

_STYLES = dict(zip(COMPONENTS, ("cyan", "magenta", "yellow", "green"), strict=True))
#: Lines asked for after a break: what was shown already is left out.
_AFTER_BREAK = 1000
#: Seconds between two looks at the files, and between two tries to reach a component.
_LOOK_EVERY, _TRY_EVERY = 0.2, 2.0


@app.command(epilog="Example: openclaw-rl logs -f trainer; openclaw-rl logs --journal -n 50; "
             "openclaw-rl logs -f --host 10.0.0.4")
def logs(
    components: Annotated[list[str] | None, typer.Argument(help="Components; default: all four.",
                                                           show_default=False)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines to show of each log.", min=0,
                                       max=10_000)] = 20,
    journal: Annotated[bool, typer.Option("--journal",
                                          help="Show the readable journal of turns, scores and hints.")] = False,
    host: Annotated[str, typer.Option("--host", help="Only components on this host.", show_default=False)] = "",
) -> None:
    """Show logs of components, or the journal. Components on other hosts are asked for theirs."""
    unknown = [name for name in components or () if name not in COMPONENTS]
    if unknown:
        err.print(f"unknown component {', '.join(unknown)}; available: {', '.join(COMPONENTS)}")
        raise typer.Exit(2)
    sources = _sources(list(components or COMPONENTS), journal, host)
    shown = sum(source.show(lines, len(sources) > 1) for source in sources)
    if not follow and not shown and not any(source.there for source in sources):
        if any(isinstance(source, _Near) for source in sources):  # what keeps the others from it, they have said
            why = ("our environment server and judge write it as turns come" if journal else
                   "`openclaw-rl local-start` starts the mesh")
            err.print(f"nothing in {Home.default().logs} yet; {why}", soft_wrap=True)
        raise typer.Exit(1)
    if follow:
        _follow(sources)


def _sources(names: list[str], journal: bool, host: str) -> list[_Source]:
    """Return the requested logs, each once: there is one journal per host."""
    from openclaw_rl.observability.log_reader import Tail
    from openclaw_rl.runtime.running_config import running_config

    home = Home.default()
    there = running_config(home).components.addresses()
    if host:
        on = {name: address for name in names if (address := there.get(name)) and _on(address, host)}
        if not on:
            hosts = ", ".join(sorted({address.rpartition(":")[0] for address in there.values()})) or "none"
            err.print(f"no component is on host {host}; the hosts of this mesh: {hosts}", soft_wrap=True)
            raise typer.Exit(2)
        names = list(on)
    if not journal:
        return [_Far(name, [(name, there[name])]) if name in there else _Near(name, Tail(home.logs, name))
                for name in names]
    by_host: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        if address := there.get(name):
            by_host.setdefault(address.rpartition(":")[0], []).append((name, address))
    far = [_Far(components[0][0] if len(by_host) > 1 else "", components, journal=True)
           for components in by_host.values()]
    near = [] if all(name in there for name in names) else [_Near("", Tail(home.logs))]
    return [*near, *far]


def _on(address: str, host: str) -> bool:
    """Whether HOST:PORT is on a host, given by name or address."""
    import socket

    own = address.rpartition(":")[0].strip("[]")
    try:
        return own == host or socket.gethostbyname(own) == socket.gethostbyname(host)
    except OSError:
        return False


def _follow(sources: list[_Source]) -> None:
    lines: queue.Queue[tuple[str, str] | None] = queue.Queue(10_000)

    def follow(source: _Source) -> None:
        source.follow(lines.put)
        lines.put(None)

    for source in sources:
        threading.Thread(target=follow, args=(source,), daemon=True).start()
    left = len(sources)
    while left:
        if (entry := lines.get()) is None:
            left -= 1
        else:
            _print(*entry, len(sources) > 1)
    raise typer.Exit(1)


def _print(name: str, line: str, several: bool) -> None:
    text = Text(line)
    if several:
        text = Text.assemble((f"{name:<13} ", _STYLES.get(name, "")), text)
    out.print(text, soft_wrap=True)


class _Source:
    """One log."""

    label = ""
    there = False  #: it could be read, whether it had lines or not

    def show(self, count: int, several: bool) -> int:
        """Print the last lines. Returns their number."""
        lines = self.last(count)
        for line in lines:
            _print(self.label, line, several)
        return len(lines)

    def last(self, count: int) -> list[str]:
        raise NotImplementedError

    def follow(self, put: Callable[[tuple[str, str]], None]) -> None:
        """Pass on each line as it is written; returns only if there is no such log."""
        raise NotImplementedError


class _Near(_Source):
    """A log in this machine's home folder."""

    def __init__(self, label: str, tail: Tail) -> None:
        self.label, self._tail = label, tail

    def last(self, count: int) -> list[str]:
        self.there = bool(self._tail.files())
        return self._tail.last(count)

    def follow(self, put: Callable[[tuple[str, str]], None]) -> None:
        while True:
            fresh = list(self._tail.new())
            for line in fresh:
                put((self.label, line))
            if not fresh:
                time.sleep(_LOOK_EVERY)


class _Far(_Source):
    """A component elsewhere. When it does not answer that is said once, and it is tried again.

    Args:
        components: name and address of those that may have the log: one of another make may keep none, and the next
            one is asked then.
    """

    def __init__(self, label: str, components: list[tuple[str, str]], journal: bool = False) -> None:
        from openclaw_rl.v1 import component_pb2 as pb

        self.label = label
        self._components = components
        self._source = pb.LOG_SOURCE_JOURNAL if journal else pb.LOG_SOURCE_COMPONENT
        self._seen: str | None = None
        self._none = False  # nobody keeps it

    def last(self, count: int) -> list[str]:
        from openclaw_rl.rpc.errors import MeshError

        lines: list[str] = []
        try:
            with self._client() as client:
                for part in client.read_logs(lines=count, source=self._source, timeout=30):
                    lines += part.lines
            self.there = True
        except MeshError as error:
            if error.code.name == "UNIMPLEMENTED" and len(self._components) > 1:
                del self._components[0]
                return self.last(count)
            self._none = error.code.name == "UNIMPLEMENTED"
            err.print(f"{self._components[0][0]}: {error.message}", style="yellow", soft_wrap=True, highlight=False,
                      markup=False)
        self._seen = lines[-1] if lines else self._seen
        return lines

    def follow(self, put: Callable[[tuple[str, str]], None]) -> None:
        from openclaw_rl.rpc.errors import MeshError

        said = not self.there
        while not self._none:
            try:
                with self._client() as client:
                    first = True
                    again = 0 if self.there and self._seen is None else _AFTER_BREAK
                    for part in client.read_logs(lines=again, source=self._source, follow=True):
                        lines = list(part.lines)
                        if first and self._seen in lines:
                            lines = lines[len(lines) - lines[::-1].index(self._seen):]
                        first = said = False
                        for line in lines:
                            put((self.label, line))
                            self._seen = line
            except MeshError as error:
                self._none = error.code.name == "UNIMPLEMENTED"
                if self._none or not said:
                    put((self.label, f"({error.message}{'' if self._none else '; trying again'})"))
                    said = True
            time.sleep(_TRY_EVERY)

    def _client(self) -> ComponentServiceClient:
        from openclaw_rl.client import ComponentServiceClient

        name, address = self._components[0]
        return ComponentServiceClient(address, component=name)
