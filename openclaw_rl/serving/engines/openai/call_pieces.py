"""Tool calls of a streamed response, as APIs of many makers send them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1 import turn_pb2


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def complete(self) -> bool:
        try:
            return isinstance(parse_json(self.arguments), dict)
        except ValueError:
            return False


class CallPieces:
    """Joins the pieces of `delta.tool_calls`.

    By OpenAI's API a piece names its call by `index`. Others send whole calls without one, or 0 for all; arguments as
    an object; the id or name again with each piece.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def feed(self, piece: Any) -> None:
        """Add a piece, as the openai package reads it: without checks of its types."""
        function = getattr(piece, "function", None)
        id_, name = _text(getattr(piece, "id", None)), _text(getattr(function, "name", None))
        arguments = getattr(function, "arguments", None)
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = self._call(getattr(piece, "index", None), id_, name)
        call.id = call.id or id_
        if name != call.name:
            call.name += name
        call.arguments += _text(arguments)

    def _call(self, index: Any, id_: str, name: str) -> _Call:
        """The call that a piece belongs to; a new one where it names another, or one is complete and it begins anew."""
        known = self._by_index.get(index) if isinstance(index, int) else (self._calls[-1] if self._calls else None)
        if known is not None and not (id_ and known.id and id_ != known.id) and not (name and not id_
                                                                                  and known.complete):
            return known
        call = _Call()
        self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call

    def calls(self) -> list[turn_pb2.ToolCall]:
        """The calls, in the order in which they began."""
        return [turn_pb2.ToolCall(id=well_formed(call.id), name=well_formed(call.name),
                                  arguments_json=well_formed(call.arguments)) for call in self._calls]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
