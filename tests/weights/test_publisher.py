"""The publisher against policy servers of another make: slow, mean and broken ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import policy_pb2_grpc
from openclaw_rl.v1 import weights_pb2 as w
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.publisher import WeightPublisher
from tests.weights.support import make_base, manifest, tensors

Script = Callable[["Peer", Any, Any], AsyncIterator[pb.SyncWeightsResponse]]


class Peer(policy_pb2_grpc.PolicyServiceServicer):
    """Runs one script for each stream, the last one again and again; keeps what it was sent."""

    def __init__(self, scripts: list[Script]) -> None:
        self.scripts = scripts
        self.state = pb.PolicyState(accepts_weights=True)
        self.got: list[pb.SyncWeightsRequest] = []
        self.data = b""
        self.streams = 0
        self.changed = asyncio.Event()
        self.lifted = asyncio.Event()

    async def SyncWeights(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
        self.streams += 1
        self.changed.set()
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

        async def requests() -> AsyncIterator[pb.SyncWeightsRequest]:
            async for request in request_iterator:
                self.got.append(request)
                self.changed.set()
                yield request

        yield pb.SyncWeightsResponse(state=self.state)
        async for response in script(self, requests(), context):
            yield response


async def takes(peer: Peer, requests: Any, context: Any, credit: int = 300, names: tuple[str, ...] = ("norm", "up"),
                progress: bool = True) -> AsyncIterator[pb.SyncWeightsResponse]:
    """A good policy server that grants little."""
    async for request in requests:
        match request.WhichOneof("message"):
            case "offer":
                specs = {spec.name: spec for spec in request.offer.tensors}
                total, peer.data = sum(specs[name].encoded_bytes for name in names), b""
                yield pb.SyncWeightsResponse(need=w.WeightNeed(
                    version=request.offer.manifest.version, tensors=names, credit_bytes=credit))
            case "chunk":
                peer.data += request.chunk.data
                version = request.chunk.version
                if progress:
                    yield pb.SyncWeightsResponse(progress=w.WeightProgress(
                        version=version, received_bytes=len(peer.data), total_bytes=total,
                        credit_bytes=len(request.chunk.data)))
                else:
                    yield pb.SyncWeightsResponse(need=w.WeightNeed(version=version, credit_bytes=credit))
                if len(peer.data) == total:
                    yield pb.SyncWeightsResponse(staged=w.WeightStaged(version=version))
            case "commit":
                yield pb.SyncWeightsResponse(activated=w.WeightActivated(version=request.commit.version, pause_ms=3))


async def cancels(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for _ in requests:
        await context.abort(grpc.StatusCode.CANCELLED, "going away")
    yield pb.SyncWeightsResponse()


async def ends(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    yield pb.SyncWeightsResponse()


async def wants_what_was_not_offered(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for _ in requests:
        yield pb.SyncWeightsResponse(need=w.WeightNeed(version=1, tensors=["x"], credit_bytes=100))


async def wants_a_byte_beyond(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for _ in requests:
        yield pb.SyncWeightsResponse(need=w.WeightNeed(version=1, tensors=["norm"], from_byte=29, credit_bytes=100))


async def talks_of_another_version(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    yield pb.SyncWeightsResponse(activated=w.WeightActivated(version=9))
    async for response in takes(peer, requests, context):
        yield pb.SyncWeightsResponse(rejected=w.WeightRejected(version=9))
        yield response


async def is_full(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for request in requests:
        yield pb.SyncWeightsResponse(rejected=w.WeightRejected(
            version=request.offer.manifest.version, reason=w.WEIGHT_REJECT_REASON_STORAGE, message="full",
            retryable=True))


async def is_full_at_the_commit(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for request in requests:
        if request.HasField("offer"):
            yield pb.SyncWeightsResponse(staged=w.WeightStaged(version=request.offer.manifest.version))
        elif request.HasField("commit"):
            yield pb.SyncWeightsResponse(rejected=w.WeightRejected(
                version=request.commit.version, reason=w.WEIGHT_REJECT_REASON_STORAGE, message="full", retryable=True))


async def is_pinned(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    """Pinned as the version comes, and says only then that it is; later the pin is lifted."""
    async for request in requests:
        yield pb.SyncWeightsResponse(state=pb.PolicyState(accepts_weights=True, pinned=True))
        yield pb.SyncWeightsResponse(rejected=w.WeightRejected(
            version=request.offer.manifest.version, reason=w.WEIGHT_REJECT_REASON_PINNED, message="pinned",
            retryable=True))
        await peer.lifted.wait()
        yield pb.SyncWeightsResponse(state=pb.PolicyState(accepts_weights=True))
        break
    async for response in takes(peer, requests, context):
        yield response


async def is_pinned_and_has_no_word_for_it(peer: Peer, requests: Any,
                                           context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for request in requests:
        yield pb.SyncWeightsResponse(rejected=w.WeightRejected(
            version=request.offer.manifest.version, reason=w.WEIGHT_REJECT_REASON_PINNED, message="pinned",
            retryable=True))


async def wants_it_whole(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    """Has another base than it should: refuses what is not dense."""
    async for request in requests:
        if all(spec.encoding == w.TENSOR_ENCODING_DENSE for spec in request.offer.tensors):
            break
        yield pb.SyncWeightsResponse(rejected=w.WeightRejected(
            version=request.offer.manifest.version, reason=w.WEIGHT_REJECT_REASON_WRONG_BASE, message="not here",
            retryable=True))
        return
    yield pb.SyncWeightsResponse(activated=w.WeightActivated(version=request.offer.manifest.version))
    async for _ in requests:
        pass


async def says_nothing(peer: Peer, requests: Any, context: Any) -> AsyncIterator[pb.SyncWeightsResponse]:
    async for _ in requests:
        pass
    return
    yield


class Bench:
    def __init__(self, store: VersionStore) -> None:
        self.store = store
        self.told: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.peer_state: pb.PolicyState | None = None

    async def start(self, *scripts: Script, chunk: int = 1000) -> Bench:
        self.peer = Peer(list(scripts))
        if self.peer_state is not None:
            self.peer.state = self.peer_state
        self.server = grpc.aio.server()
        policy_pb2_grpc.add_PolicyServiceServicer_to_server(self.peer, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.publisher = WeightPublisher(
            lambda: f"127.0.0.1:{port}", self.store, lambda state: None,
            lambda version, _: self.told.put_nowait(("activated", version)),
            lambda version, _: self.told.put_nowait(("rejected", version)), chunk=chunk)
        await self.publisher.start()
        return self

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.peer.changed.clear()
                with contextlib.suppress(TimeoutError):  # the publisher's side is looked at again now and then
                    await asyncio.wait_for(self.peer.changed.wait(), 0.01)

    async def heard(self) -> tuple[str, int]:
        return await asyncio.wait_for(self.told.get(), 10)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    store = VersionStore(tmp_path / "versions", make_base(tmp_path), "m")
    for version in (1, 2):
        store.write(manifest(version), tensors(version))
    bench = Bench(store)
    yield bench
    await bench.publisher.stop()
    await bench.server.stop(None)


@pytest.mark.parametrize("credit", [1, 300, 1000, 5000])
@pytest.mark.parametrize("progress", [True, False])
async def test_keeps_to_the_credit(bench: Bench, credit: int, progress: bool) -> None:
    def script(peer: Any, requests: Any, context: Any) -> Any:
        names = ("norm",) if credit == 1 else ("up", "norm")
        return takes(peer, requests, context, credit, names, progress)

    await bench.start(script)
    bench.publisher.offer(1)
    assert await bench.heard() == ("activated", 1)
    opened = bench.store.open(1)
    assert bench.peer.data in (bytes(opened["norm"]), bytes(opened["up"]) + bytes(opened["norm"]))
    sizes = [len(request.chunk.data) for request in bench.peer.got if request.HasField("chunk")]
    assert max(sizes) <= min(max(credit, 1), 1000)


@pytest.mark.parametrize("script", [cancels, ends, wants_what_was_not_offered, wants_a_byte_beyond, is_full,
                                    is_pinned_and_has_no_word_for_it])
async def test_tries_again_after(bench: Bench, script: Any, caplog: pytest.LogCaptureFixture) -> None:
    await bench.start(script, script, takes)
    bench.publisher.offer(1)
    assert await bench.heard() == ("activated", 1)
    assert bench.peer.streams == 3 and "Traceback" not in caplog.text and bench.publisher.status()["error"] == ""


async def test_pauses_grow_while_a_staged_version_cannot_be_committed(bench: Bench) -> None:
    await bench.start(*[is_full_at_the_commit] * 3, takes)
    began = time.monotonic()
    bench.publisher.offer(1)
    assert await bench.heard() == ("activated", 1)
    assert bench.peer.streams == 4 and time.monotonic() - began > 0.65, "0.1, 0.2 and 0.4 s"


async def test_is_not_confused_by_other_versions(bench: Bench) -> None:
    await bench.start(talks_of_another_version)
    bench.publisher.offer(1)
    assert await bench.heard() == ("activated", 1) and bench.told.empty()


async def test_the_newest_version_goes_first_after_a_retryable_rejection(bench: Bench) -> None:
    await bench.start(is_full, takes)
    bench.publisher.offer(1)
    await bench.until(lambda: bench.peer.streams > 0)
    await asyncio.to_thread(bench.publisher.offer, 2)  # from the thread that trains
    while (heard := await bench.heard()) != ("activated", 2):
        assert heard == ("activated", 1)


async def test_says_that_it_stops(bench: Bench) -> None:
    await bench.start(says_nothing)
    bench.publisher.offer(1)
    await bench.until(lambda: len(bench.peer.got) == 1)
    assert bench.publisher.status()["sending"] == 1
    await bench.publisher.stop()
    await bench.until(lambda: len(bench.peer.got) == 2)
    assert bench.peer.got[1].abort.version == 1 and "stopping" in bench.peer.got[1].abort.reason


async def test_a_callback_that_fails_is_logged_and_the_stream_comes_back(bench: Bench,
                                                                         caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def fails_once(state: pb.PolicyState) -> None:
        calls.append(state)
        if len(calls) == 1:
            raise RuntimeError("a bug in the trainer")

    await bench.start(takes)
    bench.publisher._on_state = fails_once
    bench.publisher.offer(1)
    assert await bench.heard() == ("activated", 1)
    assert len(calls) == 2 and "a bug in the trainer" in caplog.text


async def test_a_call_that_is_over_when_the_publisher_stops_is_no_fault(bench: Bench) -> None:
    class Over:
        async def done_writing(self) -> None:
            raise grpc.aio.InternalError("Failed execute_batch")  # what a broken connection makes of it

    await bench.start(takes)
    await bench.publisher.stop()
    await bench.publisher._send(Over())


async def test_a_pin_is_waited_out_on_the_same_stream(bench: Bench) -> None:
    await bench.start(is_pinned)
    bench.publisher.offer(1)
    await bench.until(lambda: bench.publisher.status()["pinned"])
    bench.publisher.offer(2)
    bench.peer.lifted.set()
    assert await bench.heard() == ("activated", 2) and bench.peer.streams == 1
    assert [request.WhichOneof("message") for request in bench.peer.got].count("offer") == 2


async def test_a_version_whose_differences_are_not_taken_goes_whole(bench: Bench) -> None:
    values = {name: (dtype, shape, data) for name, dtype, shape, data in tensors(2)}
    values["embed"][2][0, :3] += 1
    bench.store.write(manifest(3), ((name, *rest) for name, rest in sorted(
        values.items(), key=lambda item: item[1][0] == "BF16")))
    bench.peer_state = pb.PolicyState(accepts_weights=True, active_version=2, kept_versions=[0, 2],
                                      active_digest=bench.store.manifest(2).digest)
    await bench.start(wants_it_whole)
    bench.publisher.offer(3)
    assert await bench.heard() == ("activated", 3) and bench.peer.streams == 2
    assert bench.publisher.needed() == {3}


async def test_a_version_that_is_taken_back_is_given_up(bench: Bench) -> None:
    await bench.start(says_nothing)
    bench.publisher.offer(1)
    await bench.until(lambda: len(bench.peer.got) == 1)
    bench.publisher.take_back({1})
    await bench.until(lambda: len(bench.peer.got) == 2)
    assert bench.peer.got[1].abort.version == 1 and bench.publisher.status()["sending"] is None
    bench.publisher.offer(2)
    await bench.until(lambda: len(bench.peer.got) == 3)
    assert bench.peer.got[2].offer.manifest.version == 2
    bench.publisher.take_back({1, 2})
    bench.publisher.offer(1)  # an operator went forward to it again
    await bench.until(lambda: len(bench.peer.got) == 5)
    assert bench.peer.got[4].offer.manifest.version == 1
