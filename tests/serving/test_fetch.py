"""FetchWeights of a policy server, over real gRPC."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import numpy as np
import pytest

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc, weights_pb2
from tests.serving.peers import SIZE, Line, Server, put, tensors
from tests.support.waiting import eventually


@pytest.fixture
async def server(tmp_path: Path, model: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "peer", model)
    await server.start()
    for version in (1, 2):
        await put(server, version)
    yield server
    if server.address:
        await server.kill()


async def fetch(server: Server, **fields: Any) -> tuple[weights_pb2.WeightOffer, bytes]:
    async with connect(str(server.address)) as channel:
        offer, data, at = None, b"", fields.get("from_byte", 0)
        async for response in policy_pb2_grpc.PolicyServiceStub(channel).FetchWeights(
                pb.PolicyServiceFetchWeightsRequest(**fields)):
            if offer is None:
                offer = response.offer
                continue
            chunk = response.chunk
            assert chunk.offset == at and google_crc32c.value(chunk.data) == chunk.crc32c
            data += chunk.data
            at += len(chunk.data)
        assert offer is not None
        return offer, data


async def test_the_active_version_whole(server: Server) -> None:
    offer, data = await fetch(server)
    assert offer.manifest.version == 2 and not offer.HasField("base_version")
    opened = server.versions.store.open(2)
    assert data == b"".join(opened[spec.name] for spec in offer.tensors) and len(offer.tensors) == 5


async def test_the_same_request_gives_the_same_bytes_from_any_byte_on(server: Server) -> None:
    for base in ({}, {"base_version": 1}):
        offer, whole = await fetch(server, version=2, **base)
        names = [spec.name for spec in offer.tensors if spec.name in ("t3", "t1")]
        _, some = await fetch(server, version=2, tensors=names[::-1], **base)
        for start in (1, SIZE // 4 - 1, len(some)):
            _, rest = await fetch(server, version=2, tensors=names[::-1], from_byte=start, **base)
            assert rest == some[start:]
        assert (await fetch(server, version=2, from_byte=len(whole) - 3, **base))[1] == whole[-3:]


@pytest.mark.parametrize(("fields", "code", "text"), [
    ({"version": 9}, grpc.StatusCode.NOT_FOUND, "there is no version '9'; here are 0, 1, 2"),
    ({"base_version": 7}, grpc.StatusCode.FAILED_PRECONDITION, "base_version 7 is not here .* here are 0, 1, 2"),
    ({"tensors": ["t1", "x"]}, grpc.StatusCode.INVALID_ARGUMENT, r"tensors\[1\]: 'x' is not allowed"),
    ({"tensors": ["t1", "t1"]}, grpc.StatusCode.INVALID_ARGUMENT, "tensors: 't1' is not allowed"),
    ({"tensors": ["same"], "from_byte": 2049}, grpc.StatusCode.INVALID_ARGUMENT, "from_byte: 2049 .* 0 and 2048"),
    ({"from_byte": -1}, grpc.StatusCode.INVALID_ARGUMENT, "from_byte: -1")])
async def test_errors_say_what_there_is(server: Server, fields: dict[str, Any], code: grpc.StatusCode,
                                        text: str) -> None:
    with pytest.raises(MeshError, match=text) as refused:
        try:
            await fetch(server, **fields)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
    assert refused.value.code == code


async def test_what_is_only_staged_is_not_given_away(server: Server) -> None:
    server.versions.store.write(weights_pb2.VersionManifest(version=3, parent=2, model_id="m"), tensors(3))
    with pytest.raises(grpc.aio.AioRpcError, match="there is no version '3'"):
        await fetch(server, version=3)


async def test_an_api_model_has_none(tmp_path: Path, model: Path) -> None:
    server = Server(tmp_path / "api", model)
    await server.start(accepts_weights=False)
    with pytest.raises(grpc.aio.AioRpcError, match="no weights to fetch"):
        await fetch(server)
    await server.kill()


async def test_a_version_that_is_deleted_meanwhile_is_readable_to_the_end_and_a_cancelled_one_is_let_go(
        server: Server) -> None:
    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(server.folder / "versions"))

    data = np.arange(16 << 20, dtype=np.uint16)  # more than gRPC and the sockets take at once
    for version in (3, 4):
        server.versions.store.write(weights_pb2.VersionManifest(version=version, model_id="m"),
                                    [("t", "BF16", data.shape, data)])
        await server.versions.commit(version)
    before = mapped()
    line = Line(lambda: server.address, back=True)
    await line.start()
    async with connect(line.address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        call = stub.FetchWeights(pb.PolicyServiceFetchWeightsRequest(version=3))
        await call.read()
        line.flowing.clear()
        await eventually(lambda: mapped() > before)
        await asyncio.to_thread(server.versions.store.remove, 3)
        line.flowing.set()
        pieces = []
        while (response := await call.read()) is not grpc.aio.EOF:
            pieces.append(response.chunk.data)
        assert b"".join(pieces) == data.tobytes()
        await eventually(lambda: mapped() == before)
        call = stub.FetchWeights(pb.PolicyServiceFetchWeightsRequest(version=4))
        await call.read()
        line.flowing.clear()
        await eventually(lambda: mapped() > before)
        call.cancel()
        await eventually(lambda: mapped() == before)
    await line.stop()
