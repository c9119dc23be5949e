"""The surroundings of a component: identity, secrets, telemetry and home, one set for each component of a process.

A component is handed its `Runtime` when it is made. Code below it that takes none (opening a channel, emitting a span,
redacting an error) asks `current()`, a context variable: tasks, callbacks of the event loop and `asyncio.to_thread`
inherit it. Threads and executors do not; `inherited` carries it there. Where a process is one component's alone, that
component's runtime is also the process's default, which covers every other thread.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from openclaw_rl.runtime.loop_monitor import LoopMonitor

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.runtime.home import Home
    from openclaw_rl.runtime.redact import Redactor

R = TypeVar("R")
A = TypeVar("A", bound="Ambient")


@dataclass(kw_only=True)
class Ambient:
    """The surroundings that `current()` finds, in a component or outside of one (a client, a command).

    Attributes:
        credentials: for servers and channels, see `rpc.auth.current`; None for plain text.
        identified: `credentials` and `membership` are final; else a client looks for those of the operator.
        membership: in which mesh, see `rpc.membership`; None in none.
        redactor: knows the component's secrets; None knows those of the environment.
        telemetry: see `observability.state`; None is disabled.
        give_up: ends the process at once, for a reason that only a new start mends; None where others share it.
    """

    credentials: object = None
    membership: object = None
    identified: bool = False
    redactor: Redactor | None = None
    telemetry: object = None
    give_up: Callable[[str], None] | None = None


@dataclass(kw_only=True)
class Runtime(Ambient):
    """The surroundings of one component.

    Attributes:
        name: one of `home.COMPONENTS`.
        config: of the mesh.
        home: folder of the mesh.
        loop_monitor: of the event loop that the component runs on.
        resources: closed when the component ends, the last one first.
    """

    name: str
    config: Config
    home: Home
    loop_monitor: LoopMonitor = field(default_factory=LoopMonitor)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)


_current: ContextVar[Ambient | None] = ContextVar("openclaw_rl_runtime", default=None)
_default = Ambient()


def current() -> Ambient:
    """The surroundings of the calling task or thread; the process's default outside of any component."""
    return _current.get() or _default


@contextmanager
def activated(ambient: A, process: bool = False) -> Iterator[A]:
    """Make `ambient` the current one of this context, and of what is started meanwhile.

    Args:
        process: also make it the default of the whole process.
    """
    global _default
    outer, before = _current.get(), _default
    _current.set(ambient)
    if process:
        _default = ambient
    try:
        yield ambient
    finally:
        _current.set(outer)  # not by token: a generator may be finished in another context
        if process:
            _default = before


def inherited(function: Callable[..., R], *args: object) -> Callable[[], R]:
    """A call of `function` in the caller's context, for a thread or an executor: `Thread(target=inherited(work))`."""
    return partial(contextvars.copy_context().run, function, *args)
