"""How a wrong server is entered."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.wrong.judge import Judge


@dataclass(frozen=True)
class Fault:
    """What is wrong.

    Attributes:
        server: the wrong one.
        check: id of the check that must fail, alone among it and those that it stands on.
        seen: what the report says: a pattern of a judge's, a part of a policy server's.
        start: it takes a process that can be killed to see it.
    """

    server: type[Any]
    check: str
    seen: str
    start: bool = False


FAULTS: dict[str, Fault] = {}


def wrong(check: str, seen: str, *, start: bool = False) -> Any:
    """Enter a wrong judge under its name."""
    def register(judge: type[Judge]) -> type[Judge]:
        FAULTS[judge.__name__] = Fault(judge, check, seen, start)
        return judge

    return register


@contextlib.contextmanager
def read_by(module: Any, name: str, read: Callable[[bytes], Any]) -> Iterator[None]:
    """While services are added their messages `name` of the module are read by that function."""
    right = getattr(module, name)
    setattr(module, name, type(name, (), {"FromString": staticmethod(read)}))
    try:
        yield
    finally:
        setattr(module, name, right)
