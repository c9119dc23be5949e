"""A trainer's store and a policy server's receiver with a real gRPC stream between them; either can be hurt."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.format.encoding import Adapted, Adapter, merge
from openclaw_rl.weights.store import Tensor, VersionStore
from openclaw_rl.weights.transfer.receiver import WeightReceiver
from openclaw_rl.weights.transfer.sender import Phase, Transfer
from tests.weights.support import FakeTarget, make_base, manifest

#: Tensors of the model, all BF16. "frozen" never changes.
SHAPES = {"a": (300, 200), "b": (200, 150), "c": (20, 10), "frozen": (40, 10)}


CHUNK = 256  # bytes


class Killed(Exception):
    """The receiver's process was killed."""


class Disk:
    """os.pwrite, as it is for a process that is killed while it writes what came over the line, or what it decoded.

    Attributes:
        left: bytes from the line that are written before the process is killed; None: it is not.
        torn: it is killed in the middle of the next larger write.
        written: bytes from the line that were written.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.torn = False
        self.written = 0
        self._write = os.pwrite

    def pwrite(self, fd: int, data: Any, at: int) -> int:
        size = len(data)
        if size > CHUNK:
            size = size // 2 if self.torn else size
        elif self.left is not None:
            size = min(size, self.left)
            self.left -= size
        self._write(fd, data[:size], at)
        self.written += size if len(data) <= CHUNK else 0
        if size < len(data):
            self.torn = False
            raise Killed
        return size


class Rig(policy_pb2_grpc.PolicyServiceServicer):
    """`push` sends a version until the line breaks or an answer ends it.

    Attributes:
        needs: what the receiver asked for.
        taken: bytes of the chunks that reached it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        rng = np.random.default_rng(0)
        self.values = {name: (rng.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2")
                       for name, shape in SHAPES.items()}
        self.base = make_base(folder, [(name, "BF16", SHAPES[name], values) for name, values in self.values.items()])
        self.trainer = VersionStore(folder / "trainer", self.base, "m")
        self.root = folder / "policy"
        self.receiver: WeightReceiver | None = None
        self.needs: list[pb.WeightNeed] = []
        self.taken = 0
        self.start()

    def start(self) -> None:
        """The policy server's process starts, and finds what is on its disk."""
        active = self.target.active if self.receiver else 0
        self.target = FakeTarget(self.root, self.base)
        self.target.active = active
        self.receiver = WeightReceiver(self.target, window=1024)

    async def serve(self) -> str:
        """Listen; the address."""
        self.server = grpc.aio.server()
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(self, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return f"127.0.0.1:{port}"

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(None)
        assert self.receiver
        await self.receiver.close()

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[policy_pb2.SyncWeightsResponse]:
        assert self.receiver
        self.receiver.connected()
        yield policy_pb2.SyncWeightsResponse(state=self.target.state())
        try:
            async for request in request_iterator:
                async for answer in self.receiver.handle(request):
                    if answer.HasField("need"):
                        self.needs.append(answer.need)
                    yield answer
                self.taken += len(request.chunk.data)
        except Killed:
            await self.receiver.close()  # the descriptors of a process that is gone
            self.start()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    def full_update(self, version: int, share: float = 0.01, seed: int = 0) -> None:
        """Full fine-tuning: a share of the values of the version before moves a little, all of them in c."""
        rng = np.random.default_rng([version, seed])
        for name in ("a", "b", "c"):
            values = self.values[name] = self.values[name].copy()
            chosen = rng.random(values.shape) < (1 if name == "c" else share)
            values[chosen] += rng.integers(1, 3, int(chosen.sum())).astype("<u2")
        self.trainer.write(manifest(version), [(name, "BF16", SHAPES[name], self.values[name])
                                               for name in ("a", "b", "c")], base=0)

    def low_rank_update(self, version: int) -> None:
        """Adapters on two matrices of the base model."""
        rng = np.random.default_rng(version)
        base = self.trainer.open(0)
        written: list[Tensor] = []
        for name in ("a", "b"):
            rows, columns = SHAPES[name]
            adapter = Adapter(rng.standard_normal((3, columns)).astype("<f4"),
                              rng.standard_normal((rows, 3)).astype("<f4"), 2.0)
            tensor = Adapted((name, "BF16", SHAPES[name], b"".join(merge(base[name], "BF16", adapter))))
            tensor.adapter = adapter
            written.append(tensor)
        self.trainer.write(manifest(version), written, base=0)

    async def push(self, version: int, base: int | None, chunk: int = CHUNK) -> policy_pb2.SyncWeightsResponse:
        """Send a version; gives the answer that ended it.

        Raises:
            grpc.RpcError: the line broke.
        """
        call = policy_pb2_grpc.PolicyServiceStub(self.channel).SyncWeights()
        transfer = Transfer(self.trainer, version, base)
        await call.write(policy_pb2.SyncWeightsRequest(offer=transfer.offer()))
        try:
            async for answer in call:
                match answer.WhichOneof("message"):
                    case "need":
                        transfer.need(answer.need)
                    case "progress":
                        transfer.progress(answer.progress)
                    case "staged":
                        transfer.phase = Phase.COMMITTED
                        await call.write(policy_pb2.SyncWeightsRequest(commit=pb.WeightCommit(version=version)))
                    case "activated" | "rejected":
                        return answer
                while size := transfer.due(chunk):
                    await call.write(policy_pb2.SyncWeightsRequest(
                        chunk=transfer.read(transfer.advance(size), size)))
        except grpc.aio.UsageError:  # a write after the end
            pass
        finally:
            call.cancel()
        raise grpc.RpcError("the stream ended")
