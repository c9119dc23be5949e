"""A SyncWeights stream with the kit as the trainer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import google_crc32c
import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.conformance.weights_versions import Made
from openclaw_rl.rpc.channel import with_true_status
from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.policy_pb2 import PolicyState, SyncWeightsRequest, SyncWeightsResponse
from openclaw_rl.v1.policy_pb2_grpc import PolicyServiceStub
from openclaw_rl.weights.identity import TRAINER_KEY

#: The kit's id as a trainer: always the same, so that a stream that a killed run left behind is taken over.
TRAINER = "trainer_" + "c0" * 16
#: Seconds for an answer; staging a model's version may write all of it.
ANSWER = 60.0
#: Bytes of a chunk, unless a check cuts it smaller.
CHUNK = 1 << 20


class Broken(Exception):
    """The server has ended the stream; the text says how."""


class Sync:
    """The stream, from `opened` on. What comes is read at once, so the server is never held up.

    Attributes:
        states: `state` messages so far.
        first: the first message, once there is one.
        error: what the stream ended with; None while it is open, and when it ended well.
    """

    def __init__(self, kit: Context, trainer: str = TRAINER) -> None:
        self.states: list[PolicyState] = []
        self.first: SyncWeightsResponse | None = None
        self.error: grpc.RpcError | None = None
        self._kit = kit
        who = ((TRAINER_KEY, trainer),) if trainer else ()
        self._call: Any = with_true_status(PolicyServiceStub(kit.channel_as("trainer")).SyncWeights(metadata=who))
        self._answers: asyncio.Queue[SyncWeightsResponse | None] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def __aenter__(self) -> Sync:
        """Open it and read the first message."""
        try:
            await self._open()
        except BaseException:
            await self.cut()
            raise
        return self

    async def _open(self) -> None:
        kit = self._kit
        await kit.until(lambda: self.first is not None or self._ended.is_set(), kit.deadline,
                        f"nothing came within {kit.deadline:g} s after the stream was opened: the first message, "
                        "`state`, is due before the trainer says anything")
        if self.error is not None:
            refused = refusal(self.error)
            if refused.reason in ("ANOTHER_TRAINER", "FED_BY_RELAY"):
                kit.skip(f"the server has another source of versions, which the kit leaves alone ({refused.reason}: "
                         f"{refused.message[:160]})")
            raise self.error
        kit.expect(self.first is not None, "the stream ended without a message: the first one must be `state`")
        kind = self.first.WhichOneof("message") if self.first is not None else None
        kit.expect(kind == "state", f"the first message of the stream is `{kind}`, not `state`")

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.cut()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def state(self) -> PolicyState:
        """The newest."""
        return self.states[-1]

    def how(self) -> str:
        """How it ended, for a person."""
        return f"ended with {refusal(self.error)}" if self.error is not None else "was closed by the server"

    async def cut(self) -> None:
        """Break it, as a network does."""
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def finish(self, seconds: float = 10.0) -> None:
        """Close the trainer's side and wait until the server has taken in all that was sent and closed its own."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.RpcError):
            await self._call.done_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        await self.cut()

    async def say(self, request: SyncWeightsRequest | None = None, **message: Any) -> None:
        """Send one message: `say(offer=...)`, `say(chunk=...)`. What a stream that has ended does not take is told by
        the next `answer`."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.RpcError):
            await self._call.write(request if request is not None else SyncWeightsRequest(**message))

    async def answer(self, due: str, what: str, seconds: float | None = None) -> SyncWeightsResponse:
        """The next message that is no `state`.

        Args:
            due: what should come, for the sentence.
            what: what was said before.
            seconds: default ANSWER.

        Raises:
            Broken: the stream has ended.
            Failed: nothing came.
        """
        seconds = ANSWER if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                answer = await self._answers.get()
        except TimeoutError:
            self._kit.fail(f"{what} was not answered within {seconds:g} s, where {due} was due")
        if answer is None:
            self._answers.put_nowait(None)
            raise Broken(f"the stream {self.how()} where {due} was due")
        return answer

    async def next(self, *kinds: str, what: str) -> Any:
        """The next message, which must be of one of these kinds ("need", "staged", ...); its content.

        Args:
            what: what was said, for the sentence: "the offer of version 5".
        """
        wanted = " or ".join(f"`{kind}`" for kind in kinds)
        try:
            answer = await self.answer(wanted, what)
        except Broken as broken:
            self._kit.fail(f"{what}: {broken}")
        kind = answer.WhichOneof("message")
        if kind not in kinds:
            self._kit.fail(f"{what} was answered {shown(answer)} where {wanted} was due")
        return getattr(answer, str(kind))

    async def need(self, made: Made, base: int | None = None) -> pb.WeightNeed:
        """Offer a version that must be wanted."""
        await self.say(offer=made.offer(base))
        what = f"the offer of version {made.version}"
        while isinstance(need := await self.next("need", "progress", what=what), pb.WeightProgress):
            pass  # of what was sent before the offer
        self._kit.expect(need.version == made.version, f"`need` names version {need.version}, not {made.version}, "
                         "which was offered")
        unknown = [name for name in need.tensors if name not in made.frames]
        offered = [spec.name for spec in made.specs]
        self._kit.expect(not unknown, f"`need` asks for {unknown[0] if unknown else ''!r}, which "
                         + ("the active version has alike" if unknown and unknown[0] in offered else "was not offered"))
        total = len(made.transfer(need.tensors))
        self._kit.expect(0 <= need.from_byte <= total, f"`need` wants to go on from byte {need.from_byte} of a "
                         f"transfer of {total}")
        return need  # type: ignore[no-any-return]

    async def send(self, made: Made, need: pb.WeightNeed, upto: int | None = None, chunk: int = CHUNK) -> int:
        """Send chunks within the credit, from where `need` says up to a byte (default: to the end), and look at
        `progress`.

        Returns:
            The last `progress.received_bytes`; -1 when there was none.
        """
        data = made.transfer(need.tensors)
        end = len(data) if upto is None else upto
        at, granted, told = need.from_byte, need.from_byte + need.credit_bytes, -1
        while at < end:
            if at >= granted:
                answer = await self.next("progress", "need", what=f"version {made.version} at byte {at} of "
                                         f"{len(data)}, where the credit is used up,")
                granted += answer.credit_bytes
                told = self._told(answer, at, len(data), told)
                continue
            size = min(chunk, end - at, granted - at)
            await self.say(chunk=piece(made.version, at, data[at : at + size]))
            at += size
        return told

    async def stage(self, made: Made, chunk: int = CHUNK, base: int | None = None) -> pb.WeightNeed:
        """Offer a version and send it, until it is staged."""
        need = await self.need(made, base)
        told = await self.send(made, need, chunk=chunk)
        await self.staged(made, need, told)
        return need

    async def staged(self, made: Made, need: pb.WeightNeed, told: int = -1) -> None:
        """Wait until a version of which all was sent is staged."""
        total = len(made.transfer(need.tensors))
        while True:
            answer = await self.next("progress", "need", "staged",
                                     what=f"version {made.version}, of which all {total} bytes were sent,")
            if isinstance(answer, pb.WeightStaged):
                self._kit.expect(answer.version == made.version, f"`staged` names version {answer.version}, not "
                                 f"{made.version}")
                return
            told = self._told(answer, total, total, told)

    async def commit(self, made: Made) -> pb.WeightActivated:
        """Commit a staged version, which must become active."""
        await self.say(commit=pb.WeightCommit(version=made.version))
        activated = await self.next("activated", what=f"the commit of version {made.version}, which was staged,")
        self._kit.expect(activated.version == made.version, f"`activated` names version {activated.version}, not "
                         f"{made.version}")
        self._kit.expect(activated.pause_ms >= 0 and activated.pause_steps >= 0,
                         f"`activated` tells a pause of {activated.pause_ms:g} ms and {activated.pause_steps} steps")
        return activated  # type: ignore[no-any-return]

    async def rejected(self, version: int, reasons: Iterable[str], what: str, retryable: bool | None = None, *,
                       due: int | None = None) -> None:
        """What comes next is `rejected`, for one of these reasons ("BAD_CHUNK"); `progress` before it is passed over,
        as long as it tells of nothing behind byte `due`.

        Args:
            what: what was wrong, for the sentence.
            retryable: what `rejected.retryable` must say; None takes both.
        """
        await self._refusal(Made(pb.VersionManifest(version=version), []), reasons, what, retryable, self._kit.deadline,
                            due)

    async def refuses(self, made: Made, reasons: Iterable[str], what: str, *, offer: pb.WeightOffer | None = None,
                      retryable: bool | None = None) -> None:
        """Offer a version that can't be taken, and send what is asked for: it must be rejected at any time before it is
        staged, and the stream must go on.

        Args:
            offer: default the version's own.
            what, retryable: see `rejected`.
        """
        await self.say(offer=offer if offer is not None else made.offer())
        await self._refusal(made, reasons, what, retryable)

    async def _refusal(self, made: Made, reasons: Iterable[str], what: str, retryable: bool | None,
                       seconds: float | None = None, most: int | None = None) -> None:
        reasons = list(reasons)
        due = f"`rejected` ({' or '.join(reasons)})"
        data, at, granted = b"", 0, 0
        while True:
            try:
                answer = await self.answer(due, what, seconds)
            except Broken as broken:
                self._kit.fail(f"{what}: {broken}; a version that can't be taken is answered `rejected`, and the "
                               "stream goes on")
            kind = answer.WhichOneof("message")
            if kind == "rejected":
                self._look_at(answer.rejected, made.version, reasons, what, retryable)
                return
            if kind == "need" and not data:
                data = b"".join(made.frames.get(name, b"") for name in answer.need.tensors)
                at, granted = answer.need.from_byte, answer.need.from_byte
            taken = most is not None and kind == "progress" and answer.progress.received_bytes > most
            if kind not in ("need", "progress") or taken:
                self._kit.fail(f"{what} was answered {shown(answer)} where {due} was due")
            granted += getattr(answer, str(kind)).credit_bytes
            while at < min(len(data), granted):
                size = min(CHUNK, len(data) - at, granted - at)
                await self.say(chunk=piece(made.version, at, data[at : at + size]))
                at += size

    def _look_at(self, rejected: pb.WeightRejected, version: int, reasons: list[str], what: str, retryable: bool | None
                 ) -> None:
        found = reason_name(rejected.reason)
        self._kit.expect(found in reasons, f"{what} was rejected as {found} ({rejected.message[:120]}), not as "
                         f"{' or '.join(reasons)}")
        self._kit.expect(rejected.version == version, f"{what}: `rejected` names version {rejected.version}, not "
                         f"{version}")
        self._kit.expect(rejected.message.strip(), f"{what}: `rejected` has no message for a person")
        self._kit.expect(retryable is None or rejected.retryable == retryable,
                         f"{what}: `rejected` says retryable: {str(rejected.retryable).lower()}, and must say "
                         f"{str(retryable).lower()}")

    def _told(self, answer: Any, sent: int, total: int, before: int) -> int:
        """Look at a `progress`; gives its received_bytes."""
        if not isinstance(answer, pb.WeightProgress):
            return before
        kit = self._kit
        kit.expect(answer.total_bytes == total, f"`progress` says that the transfer has {answer.total_bytes} bytes; it "
                   f"has {total}")
        kit.expect(before <= answer.received_bytes <= sent, f"`progress` says that {answer.received_bytes} bytes are "
                   f"on disk; {sent} were sent" + (f" and {before} were told of before" if before >= 0 else ""))
        kit.expect(answer.credit_bytes >= 0, f"`progress` grants {answer.credit_bytes} bytes")
        return int(answer.received_bytes)

    async def _read(self) -> None:
        try:
            while (answer := await self._call.read()) is not grpc.aio.EOF:
                if self.first is None:
                    self.first = answer
                if answer.HasField("state"):
                    self.states.append(answer.state)
                else:
                    self._answers.put_nowait(answer)
            if await self._call.code() is not grpc.StatusCode.OK:  # an end that read() does not raise
                await self._call
        except grpc.RpcError as error:
            self.error = error
        finally:
            self._answers.put_nowait(None)
            self._ended.set()


def piece(version: int, offset: int, data: bytes) -> pb.WeightChunk:
    """A chunk as it should be."""
    return pb.WeightChunk(version=version, offset=offset, data=data, crc32c=google_crc32c.value(data))


def reason_name(reason: int) -> str:
    """Such as "BAD_CHUNK"; the number of one that the contract does not have."""
    try:
        return pb.WeightRejectReason.Name(reason).removeprefix("WEIGHT_REJECT_REASON_")  # type: ignore[arg-type]
    except ValueError:
        return f"reason {reason}"


def shown(answer: SyncWeightsResponse) -> str:
    """An answer, for a sentence."""
    kind = answer.WhichOneof("message")
    if kind == "rejected":
        return f"`rejected` {reason_name(answer.rejected.reason)} ({answer.rejected.message[:160]})"
    return f"`{kind}`" if kind else "a message without content"
