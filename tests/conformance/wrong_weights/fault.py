"""How a wrong policy server is entered, and right ones of other kinds."""

from __future__ import annotations

from typing import Any

from tests.conformance.wrong.fault import Fault
from tests.conformance.wrong_weights.outbox import Outbox
from tests.conformance.wrong_weights.right import SmallPolicy
from tests.conformance.wrong_weights.stream import Receiver
from tests.conformance.wrong_weights.versions import Versions

FAULTS: dict[str, Fault] = {}


def fault(check: str, seen: str, *, start: bool = False) -> Any:
    """Enter a wrong server, or a wrong part of one, under its name in words."""
    def register(wrong: type) -> type:
        kinds = {Receiver: "receiver_type", Outbox: "outbox_type", Versions: "versions_type"}
        part = next((attribute for kind, attribute in kinds.items() if issubclass(wrong, kind)), None)
        server = type(wrong.__name__, (SmallPolicy,), {part: wrong}) if part else wrong
        FAULTS[wrong.__name__] = Fault(server, check, seen, start)
        return wrong

    return register


class Tokens(SmallPolicy):
    """The right one with token ids."""

    tokens = True


class _Fixed(Versions):
    accepts_weights = False


class Fixed(SmallPolicy):
    """The right one with an engine that takes no weights."""

    versions_type = _Fixed
