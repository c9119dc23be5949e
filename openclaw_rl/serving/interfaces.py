"""What the doors (HTTP, gRPC) need of a policy, and the words that go between them.

A door turns its request into a `ChatCall`, runs it, and turns the events back: one `Start`, any number of `Delta`s,
one `End`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from openclaw_rl.v1 import turn_pb2


@dataclass(slots=True)
class ChatCall:
    """One request for one response."""

    messages: list[turn_pb2.ChatMessage] = field(default_factory=list)
    tools: list[turn_pb2.ToolDefinition] = field(default_factory=list)
    tool_choice: str = "auto"  #: "auto", "none", "required" or a function's name
    parallel_tool_calls: bool = True  #: False: the response ends with its first call
    sampling: turn_pb2.SamplingParams = field(default_factory=turn_pb2.SamplingParams)
    logprobs: bool = False  #: report each token's log-probability
    prompt: str | None = None  #: text to continue as it is; then `messages` are for the record only
    prompt_ids: list[int] | None = None  #: token ids to continue; the same
    prompt_ids_field: str = "prompt_ids"  #: what the request calls them
    min_version: int | None = None  #: lowest policy version that may answer
    exact_version: int | None = None  #: the only policy version that may answer
    session: str = ""  #: that it belongs to, once that is known
    background: bool = False  #: live requests come first
    seconds: float | None = None  #: until the caller's deadline; None when it set none
    extra: dict[str, Any] = field(default_factory=dict)  #: the request's other fields, for an API model


def pinned(options: turn_pb2.TurnOptions) -> dict[str, Any]:
    """The policy versions that may answer, as fields of a ChatCall: those that the client's options name."""
    return {name: getattr(options, name) for name in ("min_version", "exact_version") if options.HasField(name)}


class SampledToken(Protocol):
    """A token of a response, as engines give it."""

    id: int
    logprob: float  #: natural logarithm of the probability with which it was drawn
    model_logprob: float  #: of the model's own (temperature 1, no top_p)
    version: int  #: that produced it
    top: list[tuple[int, float]]  #: likeliest alternatives: id, model_logprob


@dataclass(slots=True)
class Start:
    """The first token is there. `version`: the policy version that made it."""

    version: int
    prompt_tokens: int


@dataclass(slots=True)
class Delta:
    """What is new: text, complete tool calls, the tokens that came (also those whose text is held back)."""

    text: str = ""
    tool_calls: list[turn_pb2.ToolCall] = field(default_factory=list)
    reasoning: str = ""  #: what a reasoning parser told from the text
    tokens: list[SampledToken] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  #: of OpenAI's shape, when asked for


@dataclass(slots=True)
class End:
    """The response is complete, and recorded."""

    finish_reason: turn_pb2.FinishReason.ValueType
    message: turn_pb2.ChatMessage
    prompt_tokens: int
    completion_tokens: int
    record: turn_pb2.TokenRecord | None = None  #: None for an API model


Event = Start | Delta | End


@dataclass(slots=True)
class RequestContext:
    """Who asks for a turn, and where it belongs. All choices of a request share it."""

    turn_id: str  #: of the first choice
    session_id: str
    session_source: turn_pb2.SessionSource.ValueType
    options: turn_pb2.TurnOptions
    client: str
    api: str
    metadata: dict[str, str]
    requested_at: float  #: seconds since the epoch
    open_choices: int = 1  #: choices that haven't ended yet
    span: Any = None  #: the request's span; None when it is not traced
    payer: str = ""  #: who shares one place in the queue for the engine; empty: `client`

    def choice_id(self, index: int) -> str:
        """The turn's id of a choice: the request's own for the first one."""
        return f"{self.turn_id}-{index}" if index else self.turn_id
