"""The policy server, as the environment server asks it: over the same door as any client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from openclaw_rl.rpc.channel import connect
from openclaw_rl.rpc.errors import MeshError, from_rpc_error, unavailable
from openclaw_rl.rpc.membership import confirm
from openclaw_rl.runtime.backoff import Backoff
from openclaw_rl.v1 import policy_pb2, policy_pb2_grpc
from openclaw_rl.v1.turn_pb2 import FINISH_REASON_UNSPECIFIED, ChatMessage, FinishReason

logger = logging.getLogger(__name__)

#: Seconds of the first pause between two attempts.
_FIRST_PAUSE = 0.2
#: Tries of a request on which the policy fails in a way that need not pass.
_TRIES = 3
_FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
#: Errors by which a request is not wrong: the policy server is away, or has too much to do.
_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED,
         grpc.StatusCode.CANCELLED}


@dataclass(slots=True)
class Answer:
    """A response that is complete."""

    turn_id: str
    session_id: str
    version: int
    model: str = ""
    message: ChatMessage = field(default_factory=ChatMessage)
    finish_reason: FinishReason.ValueType = FINISH_REASON_UNSPECIFIED


class PolicyCaller:
    """Asks the policy server, wherever it is by now.

    Args:
        resolve: its address, asked anew for each request; None when it has not started.
    """

    def __init__(self, resolve: Callable[[], str | None]) -> None:
        self._resolve = resolve
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give the connection back."""
        if self._channel is not None:
            await self._channel.close()
        self._channel = None

    async def stream(self, request: policy_pb2.ChatRequest,
                     seconds: float | None = None) -> AsyncIterator[policy_pb2.ChatResponse]:
        """Ask once. Closing the iterator cancels the response.

        Raises:
            MeshError: what the policy server says, or UNAVAILABLE.
        """
        call = policy_pb2_grpc.PolicyServiceStub(self._connected()).Chat(request, timeout=seconds)
        try:
            await confirm(call, "policy_server", self._address or "")
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()

    async def ask(self, request: policy_pb2.ChatRequest) -> Answer:
        """Ask until there is an answer. Bound it by a timeout.

        A request is repeated as it is, so that its attempts are one turn (see rollouts/tracking).

        Raises:
            MeshError: the request can't be answered.
        """
        faults, reported = 0, ""

        def passes(error: BaseException) -> bool:
            nonlocal faults
            if not isinstance(error, MeshError):
                return False
            faults += error.code in _FAULTS
            return error.code in _AWAY or (error.code in _FAULTS and faults < _TRIES)

        def report(state: RetryCallState) -> None:
            nonlocal reported
            if state.outcome is not None and (text := str(state.outcome.exception())) != reported:
                reported = text
                logger.info("an episode waits for the policy: %s", text)

        return await AsyncRetrying(retry=retry_if_exception(passes), wait=Backoff(_FIRST_PAUSE), before_sleep=report,
                                   reraise=True)(self._once, request)

    async def _once(self, request: policy_pb2.ChatRequest) -> Answer:
        answer: Answer | None = None
        async with aclosing(self.stream(request)) as responses:  # type: ignore[type-var]
            async for response in responses:
                if response.HasField("start"):
                    start = response.start
                    answer = Answer(start.turn_id, start.session_id, start.policy_version, start.model)
                elif response.HasField("end") and answer is not None:
                    answer.message = response.end.message
                    answer.finish_reason = response.end.generation.finish_reason
                    return answer
        raise unavailable("the policy's response broke off")

    def _connected(self) -> grpc.aio.Channel:
        address = self._resolve()
        if address is None:
            raise unavailable("the policy server has not started")
        if self._channel is None or address != self._address:
            if self._channel is not None:  # requests that run there end with an error, and are asked again
                closing = asyncio.get_running_loop().create_task(self._channel.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            self._address, self._channel = address, connect(address, "policy_server")
        return self._channel
