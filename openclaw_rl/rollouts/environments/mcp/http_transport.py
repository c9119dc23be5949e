"""HTTP transport that bounds what an MCP server may answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

#: Bytes of one answer.
MOST_ANSWER = 8 << 20


def bounded_transport(httpx2: Any) -> Any:
    """Make an HTTP transport that aborts an answer of more than MOST_ANSWER bytes. The module is handed over since it
    is loaded late."""

    class Body(httpx2.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, body: Any, most: int | None) -> None:
            self._body, self._left = body, most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in self._body:
                if self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        raise httpx2.ReadError(f"an answer of more than {MOST_ANSWER:,} bytes")
                yield data

        async def aclose(self) -> None:
            await self._body.aclose()

    class Transport(httpx2.AsyncHTTPTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            response = await super().handle_async_request(request)
            # The stream that a GET opens lasts as long as the session; its events are bounded one by one.
            response.stream = Body(response.stream, None if request.method == "GET" else MOST_ANSWER)
            return response

    return Transport(retries=0)
