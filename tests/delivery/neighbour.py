"""The next component, on a real gRPC server: a judge that stores transitions, with faults on order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from openclaw_rl.delivery.ids import message_id
from openclaw_rl.delivery.receiver import receive
from openclaw_rl.delivery.requests import make_request
from openclaw_rl.delivery.sender import Sender
from openclaw_rl.rpc.errors import unavailable
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.inbox import Inbox
from openclaw_rl.storage.outbox import Outbox
from openclaw_rl.v1 import common_pb2, component_pb2, judge_pb2, judge_pb2_grpc, turn_pb2


def transition(id: str, text: str = "") -> bytes:
    message = turn_pb2.Transition()
    message.turn.turn_id = id
    message.turn.response.content = text
    return message.SerializeToString()


class Neighbour(judge_pb2_grpc.JudgeServiceServicer):
    """Stores transitions in `store`.

    Faults: `break_after` stored messages the stream breaks, before their acks; `drop_acks_of` these ids, once each;
    `delay` seconds for each batch; `reject` these ids; `stumble` over these ids with an exception; `silent` reads and
    answers nothing; `unavailable_times` batches meet a MeshError.
    """

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder).create()
        self.store = Database(folder / "state.db", schema="CREATE TABLE IF NOT EXISTS got "
                                                       "(seq INTEGER PRIMARY KEY, id TEXT, payload BLOB);")
        self.inbox = Inbox(self.store, "transitions")
        self.server: ComponentServer | None = None
        self.address: str | None = None
        self.break_after = 0
        self.drop_acks_of: set[str] = set()
        self.delay = 0.0
        self.reject: set[str] = set()
        self.stumble: set[str] = set()
        self.silent = False
        self.unavailable_times = 0
        self.received = 0
        self.duplicates = 0
        self.batches: list[int] = []
        self._since_break = 0

    async def start(self) -> None:
        self.server = ComponentServer("prm_judge", "127.0.0.1", 0, self.home, component_pb2.ComponentStatus)
        self.server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, self, "openclaw_rl.v1.JudgeService")
        self.address = await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    def got(self) -> list[str]:
        return [row["id"] for row in self.store.query("SELECT id FROM got ORDER BY seq")]

    async def JudgeTransitions(self, request_iterator: Any,
                               context: Any) -> AsyncIterator[judge_pb2.JudgeTransitionsResponse]:
        if self.silent:
            async for request in request_iterator:
                self.received += len(request.transitions)
            return
        responses = receive(request_iterator, lambda request: list(request.transitions),
                            partial(self.store.call, self._handle),
                            lambda acks: judge_pb2.JudgeTransitionsResponse(acks=acks))
        async with contextlib.aclosing(responses):
            async for response in responses:
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self.break_after and self._since_break >= self.break_after:
                    self._since_break = 0
                    raise unavailable("broken on order")
                kept = [ack for ack in response.acks if ack.id not in self.drop_acks_of]
                self.drop_acks_of -= {ack.id for ack in response.acks}
                yield judge_pb2.JudgeTransitionsResponse(acks=kept)

    def _handle(self, items: list[turn_pb2.Transition]) -> list[common_pb2.Ack]:
        if self.unavailable_times:
            self.unavailable_times -= 1
            raise unavailable("busy on order")
        self.received += len(items)
        acks = []
        with self.store.transaction() as db:
            for item in items:
                id = message_id(item)
                if id in self.stumble:
                    raise ValueError(f"stumbled over {id}")
                if id in self.reject:
                    acks.append(common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_REJECTED, reason="not wanted"))
                elif self.inbox.accept(db, id):
                    db.execute("INSERT INTO got (id, payload) VALUES (?, ?)", (id, item.SerializeToString()))
                    acks.append(common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_ACCEPTED))
                else:
                    acks.append(common_pb2.Ack(id=id, status=common_pb2.ACK_STATUS_DUPLICATE))
        self.batches.append(len(items))
        self.duplicates += sum(ack.status == common_pb2.ACK_STATUS_DUPLICATE for ack in acks)
        self._since_break += len(items)
        return acks


def sender(outbox: Outbox, neighbour: Neighbour, **options: Any) -> Sender:
    """A sender to the neighbour, wherever it listens at the moment."""
    return Sender(outbox, lambda: neighbour.address,
                  lambda channel: judge_pb2_grpc.JudgeServiceStub(channel).JudgeTransitions,
                  partial(make_request, judge_pb2.JudgeTransitionsRequest, "transitions"), **options)
