"""Transports of new weights into SGLang: from disk, as tensors in shared memory, by broadcast.

All of them run while the server is paused in place. `flush_cache` is always false: SGLang refuses it while requests
run, and cache entries of the old version are told apart by the requests' `extra_key` (see `worker`).
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from openclaw_rl.models.checkpoint import tensor_files
from openclaw_rl.serving.engines.sglang.checkpoint import Checkpoint
from openclaw_rl.serving.engines.sglang.client import CommandRefused, ConnectionLost, EngineClient

logger = logging.getLogger(__name__)

#: Timeout of a step of an update, seconds.
UPDATE_SECONDS = 300.0
#: Bytes of tensors in one request.
_BUCKET = 512 << 20


class Transport(Protocol):
    """One transport."""

    name: str

    async def load(self, checkpoint: Checkpoint) -> Any:
        """Prepare the data for `send` before the server pauses; freed by dropping it."""
        ...

    async def send(self, client: EngineClient, load: Any) -> None:
        """Load the weights into a paused server.

        Raises:
            CommandRefused, ConnectionLost: it failed; the server's weights are now unknown.
        """
        ...


class DiskTransport:
    """The server reads the checkpoint's folder on a shared file system."""

    name = "disk"

    async def load(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    async def send(self, client: EngineClient, load: Checkpoint) -> None:
        await send_update(client, "/update_weights_from_disk", model_path=str(load.folder))


class SharedMemoryTransport:
    """The server copies the tensors from shared memory; it must run on this machine.

    Args:
        ranks: processes of a server (tensor_parallel); each gets all tensors and takes its shard.
    """

    name = "tensors"

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    async def load(self, checkpoint: Checkpoint) -> list[tuple[str, Any]]:
        """Return (payload of a request, the tensors it refers to) by bucket."""
        return await asyncio.to_thread(lambda: [(_pickled(bucket), bucket) for bucket in _buckets(checkpoint)])

    async def send(self, client: EngineClient, load: list[tuple[str, Any]]) -> None:
        async with WeightUpdate(client):
            for text, _ in load:
                await send_update(client, "/update_weights_from_tensor", serialized_named_tensors=[text] * self._ranks)


class WeightUpdate:
    """The session that SGLang 0.5.23 requires around updates by tensors or broadcast."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def __aenter__(self) -> None:
        await self._client.command("/begin_weight_update", {}, UPDATE_SECONDS)

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            await self._client.command("/end_weight_update", {}, UPDATE_SECONDS)
            return
        with suppress(CommandRefused, ConnectionLost):
            await self._client.command("/end_weight_update", {})


async def send_update(client: EngineClient, path: str, **fields: Any) -> None:
    answer = await client.command(path, {**fields, "flush_cache": False, "abort_all_requests": False}, UPDATE_SECONDS)
    if answer.get("success") is False:
        raise CommandRefused(f"{path}: {answer.get('message', 'refused')}")


def _buckets(checkpoint: Checkpoint) -> Iterator[list[tuple[str, Any]]]:
    """Yield the checkpoint's tensors by name, in buckets, in shared memory."""
    from safetensors import safe_open

    bucket: list[tuple[str, Any]] = []
    size = 0
    for path in tensor_files(checkpoint.folder):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                # A copy for shared memory: a tensor of safetensors is a view of the whole file.
                tensor = file.get_tensor(name).clone()
                if bucket and size + tensor.nbytes > _BUCKET:
                    yield bucket
                    bucket, size = [], 0
                bucket.append((name, tensor))
                size += tensor.nbytes
    if bucket:
        yield bucket


def _pickled(tensors: list[tuple[str, Any]]) -> str:
    """Serialize tensors like SGLang's MultiprocessingSerializer: names, and locations in shared memory.

    The strategy `file_system` names shared memory by a file; the default passes file descriptors, which HTTP can't
    carry. It is global to the process and set each time; nothing else here shares tensors.
    """
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_system")
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(tensors)
    return base64.b64encode(buffer.getvalue()).decode()
