"""Types that pass between entrypoints, chat service and policies.

An entrypoint turns a request into `ChatCall`s and runs them; each gives one `Start`, any number of `Delta`s, one `End`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from opentelemetry.trace import Span

from openclaw_rl.serving.engines.interface import Shaping, TextGrammar
from openclaw_rl.sessions.fingerprint import Digests
from openclaw_rl.v1 import turn_pb2


@dataclass(slots=True)
class ChatCall:
    """A request for one response."""

    messages: list[turn_pb2.ChatMessage] = field(default_factory=list)
    tools: list[turn_pb2.ToolDefinition] = field(default_factory=list)
    tool_choice: str = "auto"  #: "auto", "none", "required" or a function's name
    parallel_tool_calls: bool = True  #: False: the response ends with its first call
    sampling: turn_pb2.SamplingParams = field(default_factory=turn_pb2.SamplingParams)
    shaping: Shaping | None = None  #: what else changes the distribution that tokens are drawn from
    include_stop: bool = False  #: the stop text that ended the response is part of it
    continue_final: bool = False  #: the response continues the last message, an assistant's
    template_values: dict[str, Any] = field(default_factory=dict)  #: for the chat template
    generation_prompt: bool = True  #: the prompt ends where a response begins
    special_tokens: bool = True  #: a text prompt begins with the tokens that the model expects before one
    echo: bool = False  #: a continued prompt comes first
    echo_only: bool = False  #: nothing is generated
    grammar: TextGrammar | None = None  #: that the response's text has to fit
    logprobs: bool = False  #: report each token's log-probability
    prompt: str | None = None  #: text to continue as it is; `messages` are then for the record only
    prompt_ids: list[int] | None = None  #: token ids to continue; likewise
    prompt_ids_field: str = "prompt_ids"  #: their name in the request, for errors
    min_version: int | None = None  #: lowest policy version that may answer
    exact_version: int | None = None  #: the only policy version that may answer
    session: str = ""  #: id, once it is known
    background: bool = False  #: live requests are admitted first
    seconds: float | None = None  #: until the caller's deadline; None: no deadline
    extra: dict[str, Any] = field(default_factory=dict)  #: the request's other fields, for an API model


def version_limits(options: turn_pb2.TurnOptions) -> dict[str, Any]:
    """The `ChatCall` fields for the policy versions that the client accepts."""
    return {name: getattr(options, name) for name in ("min_version", "exact_version") if options.HasField(name)}


class SampledToken(Protocol):
    """A token of a response, as engines give it."""

    id: int
    logprob: float  #: natural logarithm of the probability with which it was drawn
    model_logprob: float  #: of the model's own (temperature 1, no top_p, nothing else)
    version: int  #: that produced it
    top: list[tuple[int, float]]  #: likeliest alternatives: id, model_logprob
    cached_tokens: int  #: of the prompt, that were not computed again; on the first token
    forced: bool  #: a grammar allowed no other


@dataclass(slots=True)
class Start:
    """The first token has come. `version`: the policy version that produced it."""

    version: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a tool call that is still being written. Its id and name come with the first one."""

    index: int  #: among the response's calls
    id: str = ""
    name: str = ""
    arguments: str = ""  #: JSON text that follows that of the pieces before


@dataclass(slots=True)
class Delta:
    """New text, complete tool calls, and the tokens behind them (also those whose text is held back)."""

    text: str = ""
    echo: str = ""  #: the prompt; its tokens' entries are the `logprobs`
    tool_calls: list[turn_pb2.ToolCall] = field(default_factory=list)
    pieces: list[CallPiece] = field(default_factory=list)  #: of calls that come in `tool_calls` once they are complete
    reasoning: str = ""  #: text that a reasoning parser set apart
    tokens: list[SampledToken] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  #: in OpenAI's shape, when requested


@dataclass(slots=True)
class End:
    """The response is complete and recorded."""

    finish_reason: turn_pb2.FinishReason.ValueType
    message: turn_pb2.ChatMessage
    prompt_tokens: int
    completion_tokens: int
    record: turn_pb2.TokenRecord | None = None  #: None for an API model
    cached_tokens: int | None = None  #: of the prompt, that were not computed again; None: not known
    stop: str = ""  #: the stop text that ended it


Event = Start | Delta | End


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from."""

    client: str  #: opaque digest of key, address and user
    payer: str  #: shares one place in the engine's queue: a key's id, or an address; empty: `client`
    api: str  #: such as "chat.completions" or "grpc.chat"
    span: Span | None = None  #: the request's span; None when it is not traced


@dataclass(slots=True, weakref_slot=True)
class RequestContext:
    """An accepted request. All its choices share it."""

    turn_id: str  #: of the first choice
    session_id: str
    session_source: turn_pb2.SessionSource.ValueType
    options: turn_pb2.TurnOptions
    origin: Origin
    metadata: dict[str, str]
    requested_at: float  #: seconds since the epoch
    open_choices: int = 1  #: choices that have not ended yet
    digests: Digests | None = None  #: of its messages; None: not computed yet
    repeats: int = 0  #: requests before it that it repeats
    kept_messages: list[turn_pb2.ChatMessage] | None = None  #: of a response that another may continue by its id

    def choice_id(self, index: int) -> str:
        """The turn id of a choice; the first choice has the request's own."""
        return f"{self.turn_id}-{index}" if index else self.turn_id
