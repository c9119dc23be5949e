"""A version is taken whole, or not at all, and says why."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from openclaw_rl.v1 import policy_pb2
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.format.digest import manifest_digest
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer.receiver import FARTHEST, WeightReceiver
from openclaw_rl.weights.transfer.staging import StagingFile
from tests.weights.support import FakeTarget, chunks, make_base, make_chunk, manifest, tensors

SENT = 30 * 100 * 2 + 7 * 4 + 50 * 40 * 2  # bytes of a version's transfer; "odd" is the base's


class Bench:
    """A trainer's store, and a receiver that can be killed and started again."""

    def __init__(self, tmp_path: Path) -> None:
        self.base = make_base(tmp_path)
        self.trainer = VersionStore(tmp_path / "trainer", self.base, "m")
        self.root = tmp_path / "policy"
        self.receivers: list[WeightReceiver] = []
        self.start()

    def start(self) -> None:
        self.target = FakeTarget(self.root, self.base)
        self.receiver = WeightReceiver(self.target, window=4000)
        self.receivers.append(self.receiver)
        self.receiver.connected()

    async def say(self, **message: Any) -> list[tuple[str, object]]:
        answers = [answer async for answer in self.receiver.handle(policy_pb2.SyncWeightsRequest(**message))]
        return [(kind := answer.WhichOneof("message"), getattr(answer, kind)) for answer in answers]

    def make(self, version: int, parent: int | None = None, frozen: tuple[str, ...] = ("odd",)) -> pb.WeightOffer:
        self.trainer.write(manifest(version, parent), tensors(version, frozen))
        return self.offer(version)

    def offer(self, version: int) -> pb.WeightOffer:
        return pb.WeightOffer(manifest=self.trainer.manifest(version), tensors=self.trainer.specs(version))

    async def need(self, offer: pb.WeightOffer) -> pb.WeightNeed:
        answers = await self.say(offer=offer)
        assert [kind for kind, _ in answers][:1] == ["need"], answers
        return answers[0][1]

    async def send(self, need: pb.WeightNeed, size: int = 1000) -> list[tuple[str, object]]:
        answers = []
        for chunk in chunks(need, self.trainer, size):
            answers += await self.say(chunk=chunk)
        return answers

    async def take(self, version: int) -> None:
        answers = await self.send(await self.need(self.make(version)))
        assert answers[-1][0] == "staged"
        assert (await self.say(commit=pb.WeightCommit(version=version)))[0][0] == "activated"

    async def rejected(self, reason: str, retryable: bool = False, text: str = "", **message: Any) -> pb.WeightRejected:
        answers = await self.say(**message)
        assert [kind for kind, _ in answers] == ["rejected"], answers
        answer = answers[0][1]
        assert pb.WeightRejectReason.Name(answer.reason) == f"WEIGHT_REJECT_REASON_{reason}", answer
        assert answer.retryable is retryable and text in answer.message and answer.message
        return answer


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for receiver in bench.receivers:
        await receiver.close()


def damage(offer: pb.WeightOffer, change: Callable[[pb.WeightOffer], None]) -> pb.WeightOffer:
    changed = pb.WeightOffer()
    changed.CopyFrom(offer)
    change(changed)
    return changed


async def test_offer_to_activation(bench: Bench) -> None:
    need = await bench.need(bench.make(1))
    assert (list(need.tensors), need.from_byte, need.credit_bytes) == (["norm", "embed", "up"], 0, 4000)
    answers = await bench.send(need)
    progress = [answer for kind, answer in answers if kind == "progress"]
    assert progress[-1].received_bytes == progress[-1].total_bytes == SENT
    assert sum(p.credit_bytes for p in progress) == SENT and answers[-1] == ("staged", pb.WeightStaged(version=1))
    assert bench.target.active == 0
    activated = (await bench.say(commit=pb.WeightCommit(version=1)))[0][1]
    assert activated == pb.WeightActivated(version=1, pause_ms=2.5, pause_steps=1)
    assert bench.target.calls == ["discard 1", "stage 1", "commit 1"]
    assert bench.target.store.verify(1) and bench.target.store.manifest(1) == bench.trainer.manifest(1)
    assert (bench.target.store.folder(1) / "config.json").exists() and not (bench.root / ".incoming").exists()


async def test_asks_only_for_what_neither_the_active_version_nor_the_base_has(bench: Bench) -> None:
    await bench.take(1)
    offer = bench.make(2, frozen=("odd", "embed", "norm"))
    assert list((await bench.need(offer)).tensors) == ["up"]
    bench.trainer.write(manifest(3), [t for t in tensors(1) if t[0] == "up"], base=2)
    need = await bench.need(bench.offer(3))
    assert list(need.tensors) == [], "up is the active version's, the rest the base's"
    assert bench.target.store.verify(3)


async def test_a_version_of_which_everything_is_there_is_staged_at_once(bench: Bench) -> None:
    bench.trainer.write(manifest(1), [], base=0)
    answers = await bench.say(offer=bench.offer(1))
    assert [kind for kind, _ in answers] == ["need", "staged"] and not answers[0][1].tensors


async def test_tensors_that_are_not_listed_are_those_of_the_base_version(bench: Bench) -> None:
    await bench.take(1)
    bench.trainer.write(manifest(2), [t for t in tensors(2) if t[0] == "up"], base=1)
    offer = bench.offer(2)
    changed = [spec for spec in offer.tensors if spec.name == "up"]
    listed = pb.WeightOffer(manifest=offer.manifest, base_version=1, tensors=changed)
    assert (await bench.send(await bench.need(listed)))[-1][0] == "staged"
    assert bench.target.store.verify(2)


@pytest.mark.parametrize("seed", range(8))
async def test_a_killed_receiver_goes_on_where_its_file_ends(bench: Bench, seed: Any) -> None:
    rng = random.Random(seed)
    offer = bench.make(1)
    sent = 0
    for _ in range(4):
        need = await bench.need(offer)
        todo = chunks(need, bench.trainer, rng.choice([1, 7, 333, 1000]))[:-1]
        for chunk in todo[: rng.randint(1, 9)]:
            sent += len(chunk.data)
            await bench.say(chunk=chunk)
        if rng.random() < 0.7:
            bench.start()  # a new process
        else:
            bench.receiver.connected()  # a new stream
        need = await bench.need(offer)
        assert need.from_byte == sent
    answers = await bench.send(need)
    assert answers[-1][0] == "staged" and bench.target.store.verify(1)


async def test_what_was_damaged_on_disk_meanwhile_is_asked_for_again(bench: Bench) -> None:
    offer = bench.make(1)
    need = await bench.need(offer)
    for chunk in chunks(need, bench.trainer, 1000)[:7]:
        await bench.say(chunk=chunk)
    path = bench.root / ".incoming" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1500] ^= 1  # in "embed", which is complete; "up" has begun
    path.write_bytes(data)
    bench.start()
    need = await bench.need(offer)
    assert need.from_byte == 28
    assert (await bench.send(need))[-1][0] == "staged" and bench.target.store.verify(1)


async def test_damage_in_a_tensor_that_was_half_there_can_be_retried(bench: Bench) -> None:
    offer = bench.make(1)
    todo = chunks(await bench.need(offer), bench.trainer, 1000)
    for chunk in todo[:3]:
        await bench.say(chunk=chunk)
    path = bench.root / ".incoming" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    bench.start()
    assert (await bench.need(offer)).from_byte == 3000
    for chunk in todo[3:6]:
        await bench.say(chunk=chunk)
    await bench.rejected("DIGEST_MISMATCH", True, "embed", chunk=todo[6])
    need = await bench.need(offer)
    assert need.from_byte == 28 and (await bench.send(need))[-1][0] == "staged"


@pytest.mark.parametrize("file", [".offer.json", "model.safetensors"])
async def test_a_damaged_beginning_is_thrown_away(bench: Bench, file: str) -> None:
    offer = bench.make(1)
    for chunk in chunks(await bench.need(offer), bench.trainer, 1000)[:3]:
        await bench.say(chunk=chunk)
    (bench.root / ".incoming" / file).write_bytes(b"{")
    bench.start()
    need = await bench.need(offer)
    assert need.from_byte == 0 and (await bench.send(need))[-1][0] == "staged"


async def test_the_beginning_of_another_version_is_thrown_away(bench: Bench) -> None:
    for chunk in chunks(await bench.need(bench.make(1)), bench.trainer, 1000)[:3]:
        await bench.say(chunk=chunk)
    need = await bench.need(bench.make(2))
    assert need.from_byte == 0
    await bench.send(need)
    await bench.say(commit=pb.WeightCommit(version=2))
    assert bench.target.active == 2 and bench.target.store.verify(2) and 1 not in bench.target.store.versions()


async def test_a_staged_version_outlives_the_process(bench: Bench) -> None:
    offer = bench.make(1)
    await bench.send(await bench.need(offer))
    bench.start()
    answers = await bench.say(offer=offer)
    assert [kind for kind, _ in answers] == ["need", "staged"] and not answers[0][1].tensors
    assert (await bench.say(commit=pb.WeightCommit(version=1)))[0][0] == "activated"


async def test_a_staged_version_that_is_damaged_is_asked_for_again(bench: Bench) -> None:
    offer = bench.make(1)
    await bench.send(await bench.need(offer))
    path = bench.target.store.folder(1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7e")
    bench.start()
    assert (await bench.send(await bench.need(offer)))[-1][0] == "staged" and bench.target.store.verify(1)


async def test_another_version_of_the_same_number_replaces_a_staged_one(bench: Bench) -> None:
    await bench.send(await bench.need(bench.make(1)))
    again = bench.make(1, frozen=("odd", "up"))
    await bench.send(await bench.need(again))
    assert bench.target.calls[-2:] == ["discard 1", "stage 1"]
    assert bench.target.store.manifest(1).digest == again.manifest.digest


async def test_an_aborted_transfer_can_go_on(bench: Bench) -> None:
    offer = bench.make(1)
    for chunk in chunks(await bench.need(offer), bench.trainer, 1000)[:3]:
        await bench.say(chunk=chunk)
    assert await bench.say(abort=pb.WeightAbort(version=1, reason="stopping")) == []
    assert await bench.say(abort=pb.WeightAbort(version=7)) == []
    assert (await bench.need(offer)).from_byte == 3000


async def test_an_api_model_takes_no_weights(bench: Bench) -> None:
    bench.target.accepts = False
    await bench.rejected("UNSUPPORTED", text="takes no weights", offer=bench.make(1))


async def test_weights_of_another_model(bench: Bench) -> None:
    offer = damage(bench.make(1), lambda o: setattr(o.manifest, "model_id", "other"))
    await bench.rejected("WRONG_MODEL", text="'other'", offer=offer)


async def test_versions_that_are_not_newer(bench: Bench) -> None:
    old = bench.make(1)
    await bench.take(2)
    await bench.rejected("ALREADY_ACTIVE", offer=bench.offer(2))
    await bench.rejected("TOO_OLD", text="version 2 is active", offer=old)
    await bench.rejected("TOO_OLD", offer=damage(old, lambda o: setattr(o.manifest, "version", 0)))
    await bench.rejected("TOO_OLD", offer=damage(old, lambda o: setattr(o.manifest, "version", -5)))
    await bench.rejected("DIGEST_MISMATCH", text="new number", offer=bench.make(2, frozen=("up",)))
    assert bench.target.active == 2


async def test_numbers_that_are_out_of_the_question(bench: Bench) -> None:
    old = bench.make(1)
    for number in (FARTHEST + 1, 2**40):
        await bench.rejected("PROTOCOL", text=f"its number is {number}, and the highest here was 0",
                             offer=damage(old, lambda o, number=number: setattr(o.manifest, "version", number)))
    assert await bench.need(bench.make(FARTHEST))


async def test_versions_after_a_rollback(bench: Bench) -> None:
    bench.target.withdrawn = [4, 5]
    await bench.rejected("TOO_OLD", text="took versions up to 5 back", offer=bench.make(5))
    await bench.rejected("WRONG_BASE", text="version 5, which an operator took back", offer=bench.make(6))
    assert await bench.need(bench.make(7, parent=3))


async def test_a_rollback_between_staging_and_commit(bench: Bench) -> None:
    await bench.send(await bench.need(bench.make(6, parent=5)))
    bench.target.withdrawn = [5]
    await bench.rejected("WRONG_BASE", commit=pb.WeightCommit(version=6))
    assert bench.target.active == 0 and bench.target.calls[-1] == "discard 6", "the engine has its memory back"


@pytest.mark.parametrize("base_version", [5, 9])
async def test_a_base_version_that_is_not_here_or_was_taken_back(bench: Bench, base_version: int) -> None:
    bench.target.withdrawn = [5]
    bench.target.store.write(manifest(5), tensors(5))
    offer = damage(bench.make(6, parent=0), lambda o: setattr(o, "base_version", base_version))
    await bench.rejected("WRONG_BASE", text=f"version {base_version}", offer=offer)


@pytest.mark.parametrize(("reason", "text", "change"), [
    ("UNKNOWN_TENSOR", "'x'", lambda o: setattr(o.tensors[0], "name", "x")),
    ("WRONG_SHAPE", "norm is F32[9]", lambda o: o.tensors[0].ClearField("shape") or o.tensors[0].shape.append(9)),
    ("WRONG_SHAPE", "norm is BF16", lambda o: setattr(o.tensors[0], "dtype", "BF16")),
    ("WRONG_SHAPE", "norm is nonsense", lambda o: setattr(o.tensors[0], "dtype", "nonsense")),
    ("PROTOCOL", "a base digest of 0 bytes",
     lambda o: setattr(o.tensors[0], "encoding", pb.TENSOR_ENCODING_SPARSE_ZSTD)),
    ("PROTOCOL", "a base digest of 32 bytes", lambda o: setattr(o.tensors[0], "base_sha256", b"\0" * 32)),
    ("PROTOCOL", "twice", lambda o: o.tensors.append(o.tensors[0])),
    ("PROTOCOL", "wrong length", lambda o: setattr(o.tensors[0], "sha256", b"short")),
    ("PROTOCOL", "with -1 bytes", lambda o: setattr(o.tensors[0], "encoded_bytes", -1)),
    ("PROTOCOL", "not listed", lambda o: o.tensors.pop()),
    ("PROTOCOL", "4 tensors of the model are not listed", lambda o: o.ClearField("tensors")),
    ("DIGEST_MISMATCH", "manifest", lambda o: setattr(o.manifest, "digest", "0" * 64)),
    ("DIGEST_MISMATCH", "manifest", lambda o: setattr(o.tensors[0], "sha256", b"\0" * 32)),
])
async def test_offers_that_can_never_be_taken(bench: Bench, reason: str, text: str, change: Any) -> None:
    await bench.rejected(reason, text=text, offer=damage(bench.make(1), change))
    assert not (bench.root / ".incoming").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["norm", "up"])
async def test_values_that_are_no_numbers(bench: Bench, value: Any, name: str) -> None:
    def bad() -> Any:
        for tensor in tensors(1):
            if tensor[0] == name:
                tensor[3].flat[-1] = value if name == "norm" else np.float32(value).view(np.uint32) >> 16
            yield tensor

    bench.trainer.write(manifest(1), bad())
    answers = await bench.send(await bench.need(bench.offer(1)))
    assert [kind for kind, _ in answers].count("rejected") == 1, "chunks that were on their way are not answered"
    rejected = next(answer for kind, answer in answers if kind == "rejected")
    assert rejected.reason == pb.WEIGHT_REJECT_REASON_NOT_FINITE and name in rejected.message and not rejected.retryable
    assert bench.target.active == 0 and bench.target.store.versions() == [0]
    await bench.take(2)


async def test_a_tensor_that_is_not_what_was_offered(bench: Bench) -> None:
    bad = bench.make(1)
    bad.tensors[1].sha256 = b"\1" * 32
    bad.manifest.digest = manifest_digest(bad.tensors)
    need = await bench.need(bad)
    rejected = [answer for kind, answer in await bench.send(need) if kind == "rejected"]
    assert [r.reason for r in rejected] == [pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH] and not rejected[0].retryable


async def test_a_local_tensor_that_is_damaged_is_asked_for(bench: Bench) -> None:
    bench.target.store.specs(0)
    path = bench.base / "model.safetensors"
    data = path.read_bytes()
    at = data.index(next(t for t in tensors(0) if t[0] == "odd")[3].tobytes())
    shutil.copy(path, path.with_suffix(".old"))
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    offer = bench.make(1)
    need = await bench.need(offer)
    assert list(need.tensors) == ["norm", "embed", "up"]
    rejected = [answer for kind, answer in await bench.send(need) if kind == "rejected"]
    assert rejected[0].reason == pb.WEIGHT_REJECT_REASON_DIGEST_MISMATCH and rejected[0].retryable
    need = await bench.need(offer)
    assert list(need.tensors) == ["norm", "embed", "odd", "up"] and need.from_byte == 28 + 6000
    assert (await bench.send(need))[-1][0] == "staged" and bench.target.store.verify(1)


@pytest.mark.parametrize("how", ["cut", "gone"])
@pytest.mark.parametrize("version", [0, 2])
async def test_what_a_damaged_file_had_comes_over_the_line(bench: Bench, how: str, version: int) -> None:
    await bench.take(2)
    offer = bench.make(3, frozen=("odd", "norm"))
    file = bench.target.store.folder(version) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1]) if how == "cut" else file.unlink()
    need = await bench.need(offer)
    assert sorted(need.tensors) == (["embed", "norm", "up"] if version == 0 else ["embed", "up"])
    assert (await bench.send(need))[-1][0] == "staged"


async def test_chunks_that_are_wrong(bench: Bench) -> None:
    offer = bench.make(1)
    todo = chunks(await bench.need(offer), bench.trainer, 1000)
    await bench.say(chunk=todo[0])
    broken = make_chunk(1, 1000, todo[1].data)
    broken.crc32c ^= 1
    await bench.rejected("BAD_CHUNK", True, "CRC-32C", chunk=broken)
    assert await bench.say(chunk=todo[2]) == [], "was on its way"
    assert await bench.say(commit=pb.WeightCommit(version=1)) == []
    for wrong in (todo[2], todo[0], make_chunk(1, 1000, b""), make_chunk(1, -1, b"x")):
        assert (await bench.need(offer)).from_byte == 1000
        await bench.rejected("BAD_CHUNK", True, "due is byte 1000", chunk=wrong)
    assert (await bench.need(offer)).from_byte == 1000
    await bench.rejected("PROTOCOL", text="granted", chunk=make_chunk(1, 1000, bytes(4001)))
    need = await bench.need(offer)
    last = chunks(need, bench.trainer, 1000)
    for chunk in last[:-1]:
        await bench.say(chunk=chunk)
    await bench.rejected("BAD_CHUNK", text="more bytes", chunk=make_chunk(1, last[-1].offset, last[-1].data + b"x"))
    assert (await bench.send(await bench.need(offer))) == [], "all is there"


async def test_messages_out_of_order(bench: Bench) -> None:
    await bench.rejected("PROTOCOL", text="empty")
    await bench.rejected("PROTOCOL", text="not due", chunk=make_chunk(1, 0, b"x"))
    bench.receiver.connected()
    await bench.rejected("PROTOCOL", text="not staged", commit=pb.WeightCommit(version=1))
    offer = bench.make(1)
    todo = chunks(await bench.need(offer), bench.trainer, 1000)
    await bench.rejected("PROTOCOL", text="not staged", commit=pb.WeightCommit(version=1))
    await bench.need(offer)
    await bench.rejected("PROTOCOL", text="version 2", chunk=make_chunk(2, 0, b"x"))
    for chunk in todo:
        answers = await bench.say(chunk=chunk)
    assert answers[-1][0] == "staged", "a stray message of another version does no harm"
    await bench.rejected("PROTOCOL", chunk=todo[-1])
    bench.receiver.connected()
    await bench.rejected("PROTOCOL", text="not staged", commit=pb.WeightCommit(version=1))


@pytest.mark.parametrize("where", ["append", "__init__"])
async def test_a_full_disk(bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = bench.make(1)

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "__init__":
        monkeypatch.setattr(StagingFile, where, full)
        await bench.rejected("STORAGE", True, "No space left", offer=offer)
        monkeypatch.undo()
    todo = chunks(await bench.need(offer), bench.trainer, 1000)
    await bench.say(chunk=todo[0])
    if where == "append":
        monkeypatch.setattr("openclaw_rl.weights.transfer.staging.os.pwrite", full)
        await bench.rejected("STORAGE", True, "No space left", chunk=todo[1])
        monkeypatch.undo()
    need = await bench.need(offer)
    assert need.from_byte == 1000 and (await bench.send(need))[-1][0] == "staged"


async def test_a_disk_that_will_be_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = bench.make(1)
    missing = SENT + 3 * 2  # "odd" is copied
    monkeypatch.setattr("openclaw_rl.weights.transfer.receiver.shutil.disk_usage",
                        lambda _: SimpleNamespace(free=missing - 1))
    await bench.rejected("STORAGE", True, f"{missing} bytes are to be written, {missing - 1} are free", offer=offer)
    monkeypatch.undo()
    assert (await bench.send(await bench.need(offer)))[-1][0] == "staged"


async def test_a_disk_that_is_full_at_the_very_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = bench.make(1)
    need = await bench.need(offer)

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("openclaw_rl.weights.store.write_durably", full)
    answers = await bench.send(need)
    assert answers[-1][0] == "rejected" and answers[-1][1].retryable
    monkeypatch.undo()
    answers = await bench.say(offer=offer)
    assert [kind for kind, _ in answers] == ["need", "staged"] and answers[0][1].from_byte == SENT


@pytest.mark.parametrize("step", ["stage", "commit"])
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), OSError("read-only")])
async def test_an_engine_that_fails_keeps_the_old_version(bench: Bench, step: str, error: Any) -> None:
    offer = bench.make(1)
    bench.target.fail = {step: error}
    answers = await bench.send(await bench.need(offer))
    if step == "commit":
        answers = await bench.say(commit=pb.WeightCommit(version=1))
    rejected = answers[-1][1]
    assert rejected.reason == pb.WEIGHT_REJECT_REASON_STORAGE and rejected.retryable and str(error) in rejected.message
    assert bench.target.active == 0
    bench.target.fail = {}
    assert [kind for kind, _ in await bench.say(offer=offer)] == ["need", "staged"]
    assert (await bench.say(commit=pb.WeightCommit(version=1)))[0][0] == "activated"


async def test_a_newer_offer_takes_the_place_of_a_staged_one(bench: Bench) -> None:
    await bench.send(await bench.need(bench.make(1)))
    need = await bench.need(bench.make(2))
    assert bench.target.calls[-1] == "discard 1"
    await bench.rejected("PROTOCOL", commit=pb.WeightCommit(version=1))
    assert (await bench.send(need))[-1][0] == "staged"
