"""What the small policy server sends to the environment server: files until they are acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from openclaw_rl.delivery.ids import message_id
from openclaw_rl.v1.environment_pb2 import PolicyEvent, RecordTurnsRequest
from openclaw_rl.v1.environment_pb2_grpc import EnvironmentServiceStub


class Outbox:
    """Events in files, in order; `run` brings them to the environment server."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        folder.mkdir(exist_ok=True)
        self._number = max((int(path.name) for path in folder.iterdir()), default=0)
        self._new = asyncio.Event()

    def put(self, event: PolicyEvent) -> None:
        self._number += 1
        (self.folder / f"{self._number:08d}").write_bytes(event.SerializeToString())
        self._new.set()

    def pending(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    async def run(self) -> None:
        while self.address:
            try:
                async with grpc.aio.insecure_channel(self.address) as channel:
                    await self.converse(EnvironmentServiceStub(channel).RecordTurns())
            except grpc.RpcError:
                pass
            await asyncio.sleep(0.1)

    async def converse(self, call: Any) -> None:
        sent: dict[str, Path] = {}

        async def write() -> None:
            done: set[str] = set()
            while True:
                self._new.clear()
                for path in self.pending():
                    if path.name not in done:
                        done.add(path.name)
                        event = PolicyEvent.FromString(path.read_bytes())
                        sent[message_id(event)] = path
                        await call.write(RecordTurnsRequest(events=[event]))
                await self._new.wait()

        writing = asyncio.create_task(write())
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                for ack in answer.acks:
                    self.acked(sent.pop(ack.id, None))
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            call.cancel()

    def acked(self, path: Path | None) -> None:
        if path is not None:
            path.unlink(missing_ok=True)
