"""Spans of components on other machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import orjson

from openclaw_rl.client.component import ComponentServiceClient
from openclaw_rl.observability.span_reader import Ask
from openclaw_rl.observability.span_store import Span
from openclaw_rl.rpc.component_service import FIELDS, MAX_VALUES
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.runtime.home import Home

#: Seconds for one component's answer.
_TIMEOUT = 30.0


def remote_components(addresses: dict[str, str], home: Home | None = None) -> dict[str, Ask]:
    """A function for each component that asks it for spans.

    Args:
        addresses: HOST:PORT by component.
        home: as of the clients.
    """
    return {name: _asking(name, address, home) for name, address in addresses.items()}


def _asking(name: str, address: str, home: Home | None) -> Ask:
    def ask(column: str, values: Sequence[str | int]) -> list[Span]:
        found: list[Span] = []
        try:
            with ComponentServiceClient(address, component=name, home=home) as client:
                for start in range(0, len(values), MAX_VALUES):
                    fields: dict[str, Any] = {FIELDS[column]: values[start : start + MAX_VALUES]}
                    for part in client.list_spans(timeout=_TIMEOUT, **fields):
                        found += map(orjson.loads, part.spans)
        except MeshError as error:
            raise OSError(f"{name} keeps no spans ({error.message})" if error.code is grpc.StatusCode.UNIMPLEMENTED
                          else error.message) from None
        return found

    return ask
