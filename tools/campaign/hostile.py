"""Generated requests and messages against a whole mesh in this process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import httpx
import psutil

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.config import Config
from openclaw_rl.rpc.membership import id_of
from openclaw_rl.runtime.home import COMPONENTS, Home
from tools.campaign import grpc_messages, http_requests, pressure
from tools.campaign.checker import Table
from tools.campaign.grpc_messages import GrpcMessages
from tools.campaign.http_requests import HttpRequests

#: Bytes that the process may grow after the first part of the requests: caches fill, and no more.
GROWTH = 64 << 20
#: The share of the requests after which memory is looked at first.
_WARM = 0.3


async def attack(root: Path, config: Config, seed: int, requests: int, messages: int, slow: int = 0) -> Table:
    """Send so many HTTP requests and gRPC messages to a mesh in a folder; what must not be is in the table.

    Args:
        root: the mesh's folder.
        config: of a mesh that answers quickly.
        slow: connections to hold on to afterwards, with compressed bombs before; 0: neither.
    """
    table = Table()
    async with InProcessMesh(config, Home(root), any_ports=True) as mesh:
        host, port = httpx.URL(mesh.http_address).host, httpx.URL(mesh.http_address).port or 80
        addresses = {name: mesh.record(name).address for name in COMPONENTS}
        sizes = []
        for part, share in ((0, _WARM), (1, 1 - _WARM)):
            which = 2 * seed + part
            http = await http_requests.send_all(host, port, HttpRequests(which), round(requests * share))
            grpc = await grpc_messages.send_all(addresses, id_of(mesh.home), GrpcMessages(which),
                                                round(messages * share))
            for what, tally in (("HTTP requests", http), ("gRPC messages", grpc)):
                table.count(what, number=tally.sent)
                for status, number in tally.statuses.items():
                    table.count(f"  {what.split()[0]} {status}", number=number)
                for wrong in tally.wrong:
                    table.count(what, "wrong", example=wrong)
            sizes.append(_memory())
        table.count("MiB of memory", number=sizes[1] >> 20)
        table.count("  MiB grown after the first third", number=max(0, sizes[1] - sizes[0] >> 20))
        if sizes[1] - sizes[0] > GROWTH:
            table.count("MiB of memory", "wrong", (sizes[1] - sizes[0]) >> 20, f"it grew from {sizes[0] >> 20} MiB")
        if slow:
            await pressure.http_bombs(mesh.http_address, table, _memory)
            await pressure.grpc_bombs(addresses["prm_judge"], table, _memory)
            await pressure.slowloris(mesh.http_address, addresses, table, slow)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            for name in COMPONENTS:
                table.count("components")
                if mesh.component(name) is None:
                    table.count("components", "lost", example=name)
            answer = await client.post(f"{mesh.http_address}/v1/chat/completions", json={
                "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
            table.count("answers afterwards")
            if answer.status_code != 200:
                table.count("answers afterwards", "wrong", example=answer.text[:300])
        await asyncio.sleep(0)
    return table


def _memory() -> int:
    return int(psutil.Process(os.getpid()).memory_info().rss)
