"""The receiving end of a ring stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from openclaw_rl.delivery.ids import message_id
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.messages import new_id
from openclaw_rl.rpc.read_ahead import ReadAhead
from openclaw_rl.runtime.failpoint import failpoint
from openclaw_rl.v1 import common_pb2

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Item = TypeVar("Item")
Response = TypeVar("Response")

#: Requests read ahead; more wait in the sender, held back by flow control.
_READ_AHEAD = 16


async def receive(request_iterator: AsyncIterator[Request], items: Callable[[Request], list[Item]],
                  handle: Callable[[list[Item]], Awaitable[list[common_pb2.Ack]]],
                  make_response: Callable[[list[common_pb2.Ack]], Response], *,
                  identify: Callable[[Any], str] = message_id, max_batch: int = 256) -> AsyncIterator[Response]:
    """Take a stream's messages in batches and answer each.

    Args:
        items: the messages of a request.
        handle: stores a batch (all that has arrived) in one transaction and returns the acks after its commit. It may
            leave out nothing. When it raises a `MeshError` the stream ends with that and the sender tries again later;
            when it raises anything else, each message of the batch is handled alone, and the one that fails is
            rejected with an incident's id, so that it is no obstacle for the others.
        make_response: a response with these acks.
        identify: the id of a message.
        max_batch: a batch is closed when it has this many messages (a single request may hold more).

    Yields:
        One response for each batch.
    """
    async with aclosing(ReadAhead(request_iterator, _READ_AHEAD)) as requests:
        async for request in requests:
            batch = [*items(request)]
            while len(batch) < max_batch and (more := requests.take()) is not None:
                batch += items(more)
            if batch:
                yield make_response(await _handle(batch, handle, identify))


async def _handle(batch: list[Item], handle: Callable[[list[Item]], Awaitable[list[common_pb2.Ack]]],
                  identify: Callable[[Any], str]) -> list[common_pb2.Ack]:
    try:
        acks = await handle(batch)
    except MeshError:
        raise
    except Exception as error:
        if len(batch) > 1:
            return [ack for item in batch for ack in await _handle([item], handle, identify)]
        incident = new_id()
        logger.error("incident %s with message %s", incident, identify(batch[0]), exc_info=error)
        return [common_pb2.Ack(id=identify(batch[0]), status=common_pb2.ACK_STATUS_REJECTED,
                               reason=f"the receiver failed on it; its log has more under incident {incident}")]
    failpoint("delivery.taken")
    return acks
