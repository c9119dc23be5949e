"""Channels whose calls tell who makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc

Metadata = Sequence[tuple[str, str]]


class IdentifiedChannel(grpc.aio.Channel):
    """A channel that adds metadata to each call. The calls are gRPC's own, which those of an interceptor are not.

    Args:
        channel: that makes the calls.
        metadata: to be added.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        self._channel, self._metadata = channel, metadata

    async def __aenter__(self) -> IdentifiedChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.unary_unary(*args, **kwargs), self._metadata)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.unary_stream(*args, **kwargs), self._metadata)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.stream_unary(*args, **kwargs), self._metadata)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.stream_stream(*args, **kwargs), self._metadata)


class SyncIdentifiedChannel(grpc.Channel):  # type: ignore[misc]  # grpc comes without types
    """The same without asyncio."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata) -> None:
        self._channel, self._metadata = channel, metadata

    def __enter__(self) -> SyncIdentifiedChannel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        self._channel.unsubscribe(callback)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _SyncCalls(self._channel.unary_unary(*args, **kwargs), self._metadata)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.unary_stream(*args, **kwargs), self._metadata)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _SyncCalls(self._channel.stream_unary(*args, **kwargs), self._metadata)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _identified(self._channel.stream_stream(*args, **kwargs), self._metadata)


class _SyncCalls:
    """What a blocking channel makes for an RPC with one answer."""

    def __init__(self, calls: Any, metadata: Metadata) -> None:
        self._call = _identified(calls, metadata)
        self.with_call = _identified(calls.with_call, metadata)
        self.future = _identified(calls.future, metadata)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def _identified(make: Callable[..., Any], ours: Metadata) -> Callable[..., Any]:
    def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
        return make(*args, metadata=(*ours, *(metadata or ())), **kwargs)

    return call
