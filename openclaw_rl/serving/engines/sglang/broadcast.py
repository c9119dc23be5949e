"""Weights by broadcast: this process is rank 0 of a gloo group with a server's processes; needs no shared disk.

Each server has its own group for each update, so that one that hangs or dies can't block the others.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from openclaw_rl.models.checkpoint import tensor_files
from openclaw_rl.serving.engines.sglang.checkpoint import Checkpoint
from openclaw_rl.serving.engines.sglang.client import CommandRefused, ConnectionLost, EngineClient
from openclaw_rl.serving.engines.sglang.transports import UPDATE_SECONDS, WeightUpdate, send_update

_numbers = itertools.count()
_departures: set[asyncio.Future[None]] = set()
#: Timeout for a group to form, seconds.
_JOIN_SECONDS = 60.0


class BroadcastTransport:
    """See the module's docstring.

    Args:
        ranks: processes of a server (tensor_parallel).
        host: this machine's address as the servers see it.
    """

    name = "distributed"

    def __init__(self, ranks: int, host: str) -> None:
        self._ranks, self._host = ranks, host

    async def load(self, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint

    async def send(self, client: EngineClient, load: Checkpoint) -> None:
        name = f"openclaw-rl-{next(_numbers)}"
        world = self._ranks + 1
        with socket.socket() as probe:
            probe.bind((self._host, 0))
            port = probe.getsockname()[1]
        joining = asyncio.ensure_future(asyncio.to_thread(_group, name, self._host, port, world))
        try:
            await client.command("/init_weights_update_group", {
                "master_address": self._host, "master_port": port, "rank_offset": 1, "world_size": world,
                "group_name": name, "backend": "gloo"}, _JOIN_SECONDS)
            group = await joining
        except (CommandRefused, ConnectionLost):
            joining.add_done_callback(lambda done: done.exception())
            raise
        except Exception as error:  # torch's, of several types
            raise ConnectionLost(f"{client.address}: the broadcast group was not formed: {error}") from error
        try:
            async with WeightUpdate(client):
                names, dtypes, shapes = await asyncio.to_thread(_description, load)
                sending = asyncio.ensure_future(asyncio.to_thread(_broadcast, group, load))
                try:
                    await send_update(client, "/update_weights_from_distributed", names=names, dtypes=dtypes,
                                      shapes=shapes, group_name=name)
                finally:
                    sending.add_done_callback(lambda done: done.exception())  # it times out without a receiver
                try:
                    await sending
                except Exception as error:
                    raise ConnectionLost(f"{client.address}: the broadcast broke off: {error}") from error
        finally:
            departure = asyncio.ensure_future(_leave(client, name, group))
            _departures.add(departure)
            departure.add_done_callback(_departures.discard)


async def _leave(client: EngineClient, name: str, group: Any) -> None:
    """Leave the group on both sides."""
    import torch.distributed as dist

    with suppress(CommandRefused, ConnectionLost):
        await client.command("/destroy_weights_update_group", {"group_name": name})
    with suppress(Exception):  # torch's, of several types; the group may be broken
        await asyncio.to_thread(dist.destroy_process_group, group)


def _group(name: str, host: str, port: int, world: int) -> Any:
    """Join a group besides any that this process may be in, as SGLang does
    (sglang.srt.utils.init_custom_process_group): torch has no public way to do so."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, world, is_master=True, timeout=timedelta(seconds=_JOIN_SECONDS), wait_for_workers=False)
    prefixed = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    group, _ = c10d._new_process_group_helper(
        world, 0, [], c10d.Backend("gloo"), prefixed, group_name=c10d.GroupName(name),
        timeout=timedelta(seconds=UPDATE_SECONDS))
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
    return group


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for path in tensor_files(checkpoint.folder):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)


def _description(checkpoint: Checkpoint) -> tuple[list[str], list[str], list[list[int]]]:
    found = [(name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
             for name, tensor in _tensors(checkpoint)]
    names, dtypes, shapes = zip(*found, strict=True)
    return list(names), list(dtypes), list(shapes)


def _broadcast(group: Any, checkpoint: Checkpoint) -> None:
    import torch.distributed as dist

    for _, tensor in _tensors(checkpoint):
        dist.broadcast(tensor.contiguous(), src=0, group=group)
