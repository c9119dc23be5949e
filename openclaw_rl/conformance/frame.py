"""Definition, outcomes and registry of checks."""

from __future__ import annotations

import enum
import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openclaw_rl.conformance.services import ALL

if TYPE_CHECKING:
    from openclaw_rl.conformance.context import Context


class Level(enum.Enum):
    """Severity of a check."""

    MUST = "must"  #: a server that fails it does not conform
    SHOULD = "should"  #: it conforms nevertheless, and is told


class Need(enum.Enum):
    """A requirement of a check. Without it the check is skipped, and the report names the option that provides it."""

    LISTEN = "--listen"  #: the server's next neighbour is the kit
    START = "--start"  #: the kit may kill the server and start it again
    DRAIN = "--drain or --start"  #: the server may be ended
    CERTS = "--certs"  #: the server speaks TLS
    WEIGHTS = "--weights or --start"  #: the server may be given versions, and its version changed


class Outcome(enum.Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"  #: a fault of the kit's


class Failed(Exception):
    """The server violates its obligation; the text says what was observed."""


class Skipped(Exception):
    """The check does not apply; the text says why."""


Run = Callable[["Context"], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One obligation of a server.

    Attributes:
        id: short and stable, such as "ring.acks"; words apart by dots.
        obligation: a sentence that says what a server must do. It is what a report shows when it does not.
        where: where the contract says so.
        run: the function.
        services: those that it applies to.
        level: how much hangs on it.
        needs: what it can't do without.
        after: ids of checks that must have passed: what they check is what this one stands on.
        seconds: that it may take, as a whole.
        gate: when it fails nothing else is asked.
        last: it leaves the server ended, so it comes behind all others.
    """

    id: str
    obligation: str
    where: str
    run: Run
    services: tuple[str, ...]
    level: Level
    needs: frozenset[Need]
    after: tuple[str, ...]
    seconds: float
    gate: bool
    last: bool


_checks: dict[str, Check] = {}

#: Modules whose names begin so have checks, in this order: what others stand on first, and refused versions before
#: those that become active, which end a policy server's alarm about refused ones.
_MODULES = ("component_status", "component", "ring", "environment", "judge", "trainer", "policy_chat", "policy_turns",
            "policy", "weights_cycle", "weights_refusals", "weights_resume", "weights_encodings", "weights_control")


def check(id: str, obligation: str, *, where: str, services: Iterable[str] = ALL, level: Level = Level.MUST,
          needs: Iterable[Need] = (), after: Iterable[str] = (), seconds: float = 20.0, gate: bool = False,
          last: bool = False) -> Callable[[Run], Run]:
    """Make a check of a function `async (kit: Context) -> None`; see `Check` for the arguments."""
    def register(run: Run) -> Run:
        if id in _checks:
            raise ValueError(f"two checks have the id {id}")
        _checks[id] = Check(id, obligation, where, run, tuple(services), level, frozenset(needs), tuple(after), seconds,
                            gate, last)
        return run

    return register


def all_checks() -> list[Check]:
    """Return all checks in their order of execution."""
    import openclaw_rl.conformance as package

    modules = [module.name for module in pkgutil.iter_modules(package.__path__)]
    place: dict[str, int] = {}  # of the modules, whichever was imported first
    for beginning in _MODULES:
        for module in modules:
            if module == beginning or module.startswith(f"{beginning}_"):
                name = importlib.import_module(f"{package.__name__}.{module}").__name__
                place.setdefault(name, len(place))
    return sorted(_checks.values(), key=lambda one: (not one.gate, one.last, place[one.run.__module__]))


def checks_of(service: str) -> list[Check]:
    """Return the checks of a service in their order of execution."""
    return [one for one in all_checks() if service in one.services]
