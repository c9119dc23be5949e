"""Updates in every encoding over a real stream: resumed to the byte, refused with a reason, sent dense when need be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from openclaw_rl.v1 import policy_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.format import diff, encoding
from openclaw_rl.weights.format.delta_file import ADAPTERS_FILE
from openclaw_rl.weights.transfer import staging
from openclaw_rl.weights.transfer.publisher import WeightPublisher
from openclaw_rl.weights.transfer.sender import Transfer, base_for
from openclaw_rl.weights.transfer.staging import INCOMING
from tests.weights.rig import Disk, Rig
from tests.weights.support import manifest

DENSE, SPARSE, LOW_RANK = (pb.TENSOR_ENCODING_DENSE, pb.TENSOR_ENCODING_SPARSE_ZSTD, pb.TENSOR_ENCODING_LOW_RANK_ZSTD)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    rig.address = await rig.serve()
    yield rig
    await rig.stop()


def encodings(transfer: Transfer) -> dict[str, int]:
    return {spec.name: spec.encoding for spec in transfer.offer().tensors}


def reason(answer: policy_pb2.SyncWeightsResponse) -> str:
    return pb.WeightRejectReason.Name(answer.rejected.reason).removeprefix("WEIGHT_REJECT_REASON_")


async def test_a_sparse_update(rig: Rig) -> None:
    rig.full_update(1)
    transfer = Transfer(rig.trainer, 1, 0)
    assert encodings(transfer) == {"a": SPARSE, "b": SPARSE, "c": DENSE, "frozen": DENSE}
    assert (await rig.push(1, 0)).HasField("activated")
    assert rig.target.store.verify(1) and rig.target.store.manifest(1) == rig.trainer.manifest(1)
    assert [spec.encoding for spec in rig.target.store.specs(1)] == [DENSE] * 4
    assert list(rig.needs[0].tensors) == ["a", "b", "c"]
    assert rig.taken < 0.03 * rig.trainer.manifest(1).total_bytes
    rig.full_update(2)
    assert (await rig.push(2, 1)).HasField("activated") and rig.target.store.verify(2)


async def test_adapters(rig: Rig) -> None:
    rig.low_rank_update(1)
    transfer = Transfer(rig.trainer, 1, 0)
    assert encodings(transfer) == {"a": LOW_RANK, "b": LOW_RANK, "c": DENSE, "frozen": DENSE}
    assert (await rig.push(1, 0)).HasField("activated")
    assert rig.target.store.verify(1) and list(rig.needs[0].tensors) == ["a", "b"]
    assert encodings(Transfer(rig.target.store, 1, 0)) == encodings(transfer), "whoever takes it from there"
    assert Transfer(rig.target.store, 1, 0).offer().tensors == transfer.offer().tensors
    rig.low_rank_update(2)  # starts from the base model too, whatever is active
    assert encodings(Transfer(rig.trainer, 2, 1))["a"] == LOW_RANK
    assert (await rig.push(2, 1)).HasField("activated") and rig.target.store.verify(2)


@pytest.mark.parametrize("kind", ["dense", "sparse", "low-rank"])
async def test_killed_at_ten_bytes_it_goes_on_from_there_each_time(rig: Rig, kind: str, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr(staging.os, "pwrite", disk.pwrite)
    base = None if kind == "dense" else 0

    def make(one: Rig) -> None:
        if kind == "low-rank":
            one.low_rank_update(1)
        else:
            one.full_update(1, share=0.05)

    whole = Rig(tmp_path / "whole")
    make(whole)
    await whole.serve()
    await whole.push(1, base)
    await whole.stop()
    total = whole.taken

    make(rig)
    cuts = sorted(random.Random(kind).sample(range(1, total), 10))
    disk.written = 0
    for cut in cuts:
        disk.left = cut - disk.written
        with pytest.raises(grpc.RpcError):
            await rig.push(1, base)
        assert rig.target.active == 0 and rig.target.store.versions() == [0]
    disk.left = None
    assert (await rig.push(1, base)).HasField("activated") and rig.target.store.verify(1)
    assert not (rig.root / INCOMING).exists()
    assert [need.from_byte for need in rig.needs] == [0, *cuts]
    assert disk.written == total, "no byte was written twice"
    assert encodings(Transfer(rig.target.store, 1, 0)) == encodings(Transfer(rig.trainer, 1, 0))


@pytest.mark.parametrize("kind", ["sparse", "low-rank"])
async def test_killed_while_it_decodes(rig: Rig, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.full_update(1) if kind == "sparse" else rig.low_rank_update(1)
    sizes = {spec.name: spec.encoded_bytes for spec in Transfer(rig.trainer, 1, 0).offer().tensors}
    disk = Disk()
    monkeypatch.setattr(staging.os, "pwrite", disk.pwrite)
    for name in ("a", "b"):
        disk.torn = True
        with pytest.raises(grpc.RpcError):
            await rig.push(1, 0)
        assert not disk.torn, name
    assert (await rig.push(1, 0)).HasField("activated") and rig.target.store.verify(1)
    assert [need.from_byte for need in rig.needs] == [0, sizes["a"], sizes["a"] + sizes["b"]][: len(rig.needs)]
    assert disk.written == sum(sizes[name] for name in rig.needs[0].tensors)


async def test_other_encodings_of_a_version_that_was_begun(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.full_update(1)
    sizes = {spec.name: spec.encoded_bytes for spec in Transfer(rig.trainer, 1, 0).offer().tensors}
    disk = Disk()
    monkeypatch.setattr(staging.os, "pwrite", disk.pwrite)
    disk.left = sizes["a"] + sizes["b"] // 2
    with pytest.raises(grpc.RpcError):
        await rig.push(1, 0)
    disk.left = 1000
    with pytest.raises(grpc.RpcError):
        await rig.push(1, None)
    assert rig.needs[1].from_byte == 300 * 200 * 2, "a is there, however it came; b begins anew"
    disk.left = None
    assert (await rig.push(1, 0)).HasField("activated") and rig.target.store.verify(1)
    assert rig.needs[2].from_byte == sizes["a"] + sizes["b"] // 2


async def test_a_receiver_without_the_base(rig: Rig) -> None:
    rig.full_update(1)
    rig.full_update(2)
    answer = await rig.push(2, 1)
    assert reason(answer) == "WRONG_BASE" and answer.rejected.retryable and "not here" in answer.rejected.message
    assert Transfer(rig.trainer, 2, 1).wants_dense(answer.rejected)
    assert not Transfer(rig.trainer, 2, None).wants_dense(answer.rejected)
    assert (await rig.push(2, None)).HasField("activated")


async def test_a_base_that_is_damaged_at_the_receiver(rig: Rig) -> None:
    rig.full_update(1)
    await rig.push(1, 0)
    place = rig.target.store.open(1).places["a"]
    with place.path.open("r+b") as file:
        file.seek(place.start + 5000)
        file.write(bytes(100))
    rig.full_update(2)
    answer = await rig.push(2, 1)
    assert reason(answer) == "WRONG_BASE" and answer.rejected.retryable and "damaged here" in answer.rejected.message
    answer = await rig.push(2, 1)
    assert reason(answer) == "WRONG_BASE" and "or damaged" in answer.rejected.message, "it is not tried again"
    assert (await rig.push(2, None)).HasField("activated") and rig.target.store.verify(2)


async def test_a_frame_that_was_damaged_on_the_senders_disk(rig: Rig) -> None:
    rig.full_update(1)
    Transfer(rig.trainer, 1, 0)
    path = rig.trainer.folder(1) / "since-0.update"
    data = bytearray(path.read_bytes())
    data[20:60] = bytes(40)
    path.write_bytes(data)
    answer = await rig.push(1, 0)
    assert reason(answer) == "DIGEST_MISMATCH" and answer.rejected.retryable
    assert (await rig.push(1, None)).HasField("activated")


async def test_a_sparse_update_with_nan(rig: Rig) -> None:
    values = rig.values["a"].copy()
    values[7, 7] = 0x7FC0
    rig.trainer.write(manifest(1), [("a", "BF16", values.shape, values)], base=0)
    answer = await rig.push(1, 0)
    assert reason(answer) == "NOT_FINITE" and not answer.rejected.retryable


async def test_an_encoding_of_a_newer_release(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.full_update(1)
    offer = Transfer.offer
    monkeypatch.setattr(Transfer, "offer", lambda self: _newer(offer(self)))
    answer = await rig.push(1, 0)
    assert reason(answer) == "UNSUPPORTED" and Transfer(rig.trainer, 1, 0).wants_dense(answer.rejected)


def _newer(offer: pb.WeightOffer) -> pb.WeightOffer:
    offer.tensors[0].encoding = 99  # type: ignore[assignment]
    return offer


@pytest.mark.parametrize("what", ["arithmetic", "base"])
async def test_where_an_update_can_not_be_used_the_publisher_sends_all_dense(rig: Rig, what: str,
                                                                             monkeypatch: pytest.MonkeyPatch,
                                                                             tmp_path: Path) -> None:
    """The receiver's float64 arithmetic gives other bits; or it has lost the base."""
    activated: list[int] = []
    rejected: list[pb.WeightRejected] = []
    rig.low_rank_update(1)
    if what == "arithmetic":
        narrow = encoding._narrow
        monkeypatch.setattr(encoding, "_narrow", lambda values, dtype: narrow(values, dtype) ^ np.uint16(1))
    else:
        monkeypatch.setattr("openclaw_rl.weights.transfer.offer_validation.base_tensors", _nothing)
    publisher = WeightPublisher(lambda: rig.address, rig.trainer, lambda state: None,
                                lambda version, answer: activated.append(version),
                                lambda version, answer: rejected.append(answer), chunk=1000)
    await publisher.start()
    publisher.offer(1)
    for _ in range(1000):
        if activated or rejected:
            break
        await asyncio.sleep(0.01)
    await publisher.stop()
    assert activated == [1] and not rejected and rig.target.store.verify(1)
    assert rig.needs[-1].tensors == ["a", "b"] and rig.taken >= rig.trainer.manifest(1).total_bytes // 2


async def test_the_publisher_builds_each_update_on_the_version_that_it_brought_last(rig: Rig) -> None:
    rig.full_update(1)
    rig.full_update(2)
    activated: asyncio.Queue[int] = asyncio.Queue()
    publisher = WeightPublisher(lambda: rig.address, rig.trainer, lambda state: None,
                                lambda version, answer: activated.put(version), lambda version, answer: None)
    await publisher.start()
    for version in (1, 2):
        publisher.offer(version)
        assert await asyncio.wait_for(activated.get(), 20) == version
    await publisher.stop()
    assert {path.name for path in rig.trainer.folder(2).glob("since-*")} == {"since-1.update"}


def _nothing(specs: list[pb.TensorSpec], *_: object) -> dict[bytes, memoryview]:
    if any(spec.encoding != DENSE for spec in specs):
        raise staging.SyncError(pb.WEIGHT_REJECT_REASON_WRONG_BASE, "it is not here", retryable=True)
    return {}


def test_what_changed_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    rig.full_update(1)
    rig.full_update(2)
    calls = []
    content = encoding.sparse_content
    monkeypatch.setattr(diff, "sparse_content", lambda *args: calls.append(1) or content(*args))
    first = Transfer(rig.trainer, 2, 1)
    assert len(calls) == 3
    assert Transfer(rig.trainer, 2, 1).offer() == first.offer() and len(calls) == 3
    Transfer(rig.trainer, 2, 0)
    assert len(calls) == 6
    path = rig.trainer.folder(2) / "since-1.update"
    path.write_bytes(path.read_bytes()[:-3])
    assert Transfer(rig.trainer, 2, 1).offer() == first.offer() and len(calls) == 9, "a damaged file is made again"
    rig.trainer.remove(2)
    assert not path.exists()


@pytest.mark.parametrize("file", ["since-0.update", ADAPTERS_FILE])
def test_a_version_whose_updates_can_not_be_read_or_written_goes_dense(tmp_path: Path, file: Any,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    rig.low_rank_update(1)
    monkeypatch.setattr(diff, "Update", _fails)
    assert set(encodings(Transfer(rig.trainer, 1, 0)).values()) == {DENSE}


def _fails(path: object) -> None:
    raise OSError("the disk is full")


def test_the_base_of_an_update(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for version in (1, 2, 3, 4):
        rig.full_update(version)
    rig.trainer.remove(2)

    def base(version: int, active: int, kept: list[int], full_every: int = 10, withdrawn: tuple[int, ...] = (),
             digest: str | None = None) -> int | None:
        there = rig.trainer.manifest(active).digest if active in rig.trainer.versions() else "d"
        state = policy_pb2.PolicyState(active_version=active, active_digest=there if digest is None else digest,
                                       kept_versions=kept, withdrawn_versions=withdrawn)
        return base_for(rig.trainer, version, state, full_every)

    assert base(4, 3, [0, 1, 3]) == 3
    assert base(4, 1, [0, 1, 3]) == 1, "what it has active"
    assert base(4, 2, [0, 1, 2]) == 1, "the trainer has let version 2 go"
    assert base(4, 3, [0, 1, 3], digest="another") == 1
    assert base(4, 3, [0, 1, 3], withdrawn=(1,), digest="another") == 0
    assert base(4, 0, [0]) == 0
    assert base(4, 3, [0, 3], full_every=4) is None and base(4, 3, [0, 3], full_every=5) == 3


def test_the_smallest_of_three(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.low_rank_update(1)
    low = {spec.name: spec.encoded_bytes for spec in Transfer(rig.trainer, 1, 0).offer().tensors}
    assert low["a"] < 0.06 * 300 * 200 * 2 * 2
    tensors = rig.trainer.open(1)
    moved = np.frombuffer(tensors["a"], "<u2").copy()
    moved[3] += 1
    rig.trainer.write(manifest(2), [("a", "BF16", (300, 200), moved), ("b", "BF16", (200, 150), tensors["b"])], base=0)
    assert encodings(Transfer(rig.trainer, 2, 1)) == {"a": SPARSE, "b": DENSE, "c": DENSE, "frozen": DENSE}
    assert encodings(Transfer(rig.trainer, 2, None)) == dict.fromkeys(["a", "b", "c", "frozen"], DENSE)
