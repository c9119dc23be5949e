"""RPCs as attributes of a client class, which makes methods of them."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeVar, overload

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from openclaw_rl.client.base import AsyncClient, Client

Request = TypeVar("Request", bound="Message")
Response = TypeVar("Response", bound="Message")
_Req = TypeVar("_Req", contravariant=True)
_Res = TypeVar("_Res", covariant=True)

#: Seconds for a unary call that names no timeout, of a client that names none. Streams have none.
TIMEOUT = 30.0


class _Default(enum.Enum):
    DEFAULT = enum.auto()


#: The client's own time-out.
DEFAULT: Final = _Default.DEFAULT
Timeout = float | None | Literal[_Default.DEFAULT]


class UnaryCall(Protocol[_Req, _Res]):
    def __call__(self, request: _Req | None = None, /, *, timeout: Timeout = DEFAULT, **fields: Any) -> _Res: ...


class AsyncUnaryCall(Protocol[_Req, _Res]):
    async def __call__(self, request: _Req | None = None, /, *,
                       timeout: Timeout = DEFAULT,  # noqa: ASYNC109 (the call's own deadline, sent along)
                       **fields: Any) -> _Res: ...


class StreamCall(Protocol[_Req, _Res]):
    def __call__(self, request: _Req | None = None, /, *, timeout: float | None = None,
                 **fields: Any) -> Iterator[_Res]: ...


class AsyncStreamCall(Protocol[_Req, _Res]):
    def __call__(self, request: _Req | None = None, /, *, timeout: float | None = None,
                 **fields: Any) -> AsyncIterator[_Res]: ...


class BidiCall(Protocol[_Req, _Res]):
    def __call__(self, requests: Iterable[_Req], /, *, timeout: float | None = None) -> Iterator[_Res]: ...


class AsyncBidiCall(Protocol[_Req, _Res]):
    def __call__(self, requests: AsyncIterable[_Req], /, *, timeout: float | None = None) -> AsyncIterator[_Res]: ...


class Rpc(Generic[Request, Response]):
    """One RPC; its name is the attribute's in CamelCase."""

    method: str

    def __init__(self, request: type[Request], response: type[Response]) -> None:
        self.request = request
        self.response = response

    def __set_name__(self, owner: type, name: str) -> None:
        self.method = "".join(word.capitalize() for word in name.split("_"))

    def message(self, request: Request | None, fields: dict[str, Any]) -> Request:
        """The request given, or one made of the fields."""
        if request is not None and fields:
            raise TypeError(f"{self.method}: give the request or its fields, not both")
        return request if request is not None else self.request(**fields)


class Unary(Rpc[Request, Response]):
    """One request, one response."""

    @overload
    def __get__(self, client: Client, owner: type) -> UnaryCall[Request, Response]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> AsyncUnaryCall[Request, Response]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else client._unary(self)


class ServerStream(Rpc[Request, Response]):
    """One request, many responses. Closing the iterator cancels the call."""

    @overload
    def __get__(self, client: Client, owner: type) -> StreamCall[Request, Response]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> AsyncStreamCall[Request, Response]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else client._stream(self)


class BidiStream(Rpc[Request, Response]):
    """Many requests, many responses. Closing the iterator cancels the call."""

    @overload
    def __get__(self, client: Client, owner: type) -> BidiCall[Request, Response]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> AsyncBidiCall[Request, Response]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self if client is None else client._bidi(self)
