"""The interface of engines, and the types that pass through it.

An engine owns the model's weights and nothing else: no text, no templates, no sessions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


class EngineError(Exception):
    """The engine can't do what was asked; the text says why and is fit for clients."""


class EngineBusy(EngineError):
    """The queue is full; try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PromptTooLong(EngineError):
    """The prompt leaves no room for a token of the response."""

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens; the context has room for {context_length}, "
                         f"at least one of them for the response")
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class GrammarError(EngineError):
    """A response can't be held to a grammar. `field`: of the request; `reason`: fit for clients."""

    def __init__(self, field_name: str, reason: str) -> None:
        super().__init__(f"{field_name}: {reason}")
        self.field, self.reason = field_name, reason


class WeightsError(EngineError):
    """A version's weights can't be used: missing files, wrong names or shapes, or not staged."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What changes the distribution that tokens are drawn from, besides temperature and top_p.

    A token is drawn only if top_p, top_k and min_p all allow it.

    Raises:
        ValueError: as `Sampling`.
    """

    frequency_penalty: float = 0.0  #: times the token's count in the response, off its logit; -2 to 2
    presence_penalty: float = 0.0  #: off the logit of each token of the response; -2 to 2
    repetition_penalty: float = 1.0  #: divides the logits of tokens of prompt and response; above 0, at most 2
    logit_bias: Mapping[int, float] = field(default_factory=dict)  #: added to the logits of token ids; -100 to 100
    top_k: int = 0  #: tokens that may be drawn, the likeliest ones; 0: all
    min_p: float = 0.0  #: least probability of a token, as a share of the likeliest one's; 0 to 1
    min_tokens: int = 0  #: of the response, before a token may end it
    ignore_eos: bool = False  #: the model's own end tokens don't end the response

    def __post_init__(self) -> None:
        for name, allowed, fine in (
                ("frequency_penalty", "-2 to 2", -2 <= self.frequency_penalty <= 2),
                ("presence_penalty", "-2 to 2", -2 <= self.presence_penalty <= 2),
                ("repetition_penalty", "above 0, at most 2", 0 < self.repetition_penalty <= 2),
                ("logit_bias", "-100 to 100", all(-100 <= value <= 100 for value in self.logit_bias.values())),
                ("top_k", "at least 0", self.top_k >= 0),
                ("min_p", "0 to 1", 0 <= self.min_p <= 1),
                ("min_tokens", "at least 0", self.min_tokens >= 0)):
            if not fine:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """What a response may be: text of one form."""

    kind: Literal["json_schema", "regex", "choice", "grammar"]
    text: str  #: a JSON schema, a regular expression, a JSON array of strings, a grammar in GBNF or Lark's notation
    field: str  #: of the request, for errors
    strict: bool = True  #: refuse a schema's keywords that can't be enforced; else they are passed over


@dataclass(frozen=True, slots=True)
class Function:
    """A function that calls may name."""

    name: str
    schema: str  #: JSON schema of its arguments
    field: str  #: of the request, for errors
    strict: bool = False  #: refuse a schema that can't be enforced as a whole


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Tool calls in the Hermes style, `{"name": NAME, "arguments": OBJECT}` between two marks."""

    functions: tuple[Function, ...]
    marks: tuple[str, str]  #: around a call
    opening: str = ""  #: the beginning of a forced call that ends the prompt; empty: text comes first, or no call
    single: bool = False  #: the response ends with its first call
    text: TextGrammar | None = None  #: what a response without a call has to be


Grammar = TextGrammar | CallGrammar


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the tokens of a response.

    Raises:
        ValueError: a value out of its range; the text names field, value and what is allowed.
    """

    temperature: float = 0.7  #: 0 takes the likeliest token; at most 2
    top_p: float = 1.0  #: mass of the likeliest tokens that are drawn from, in (0, 1]
    max_tokens: int = 512  #: of the response; less when the context ends
    seed: int | None = None  #: the same seed, prompt and version draw the same tokens; None draws a fresh one
    stop_token_ids: tuple[int, ...] = ()  #: end the response as the model's own end tokens do
    top_logprobs: int = 0  #: likeliest alternatives to report with each token, 0 to 20
    background: bool = False  #: other requests' prompts are prefilled first, where the engine can choose
    shaping: Shaping | None = None  #: None: nothing more
    grammar: Grammar | None = None  #: that the response's text has to fit

    def __post_init__(self) -> None:
        for name, allowed, fine in (
                ("temperature", "0 to 2", 0 <= self.temperature <= 2),
                ("top_p", "above 0, at most 1", 0 < self.top_p <= 1),
                ("max_tokens", "at least 1", self.max_tokens >= 1),
                ("seed", "0 to 2**63 - 1, or None", self.seed is None or 0 <= self.seed < 2**63),
                ("top_logprobs", "0 to 20", 0 <= self.top_logprobs <= 20)):
            if not fine:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed: {allowed}")


@dataclass(slots=True)
class Token:
    """One sampled token. Logarithms are natural."""

    id: int
    logprob: float  #: of the distribution that it was drawn from (all of Sampling applied); 0 for greedy
    model_logprob: float  #: of the model itself (temperature 1, no top_p, nothing else)
    version: int  #: the weights that produced it
    top: list[tuple[int, float]] = field(default_factory=list)  #: (id, model_logprob), likeliest first
    cached_tokens: int = 0  #: of the prompt, that were not computed again; on the first token of a response
    forced: bool = False  #: the grammar allowed no other


@dataclass(slots=True)
class Finished:
    """The last item of a generation. `stop`: an end token was drawn (it came as a Token); `length`: no more room."""

    reason: Literal["stop", "length"]


@dataclass(slots=True)
class Pause:
    """The cost of an activation to running responses."""

    ms: float  #: milliseconds between two decode steps that the swap took
    steps: int  #: decode steps that were held up by it: 0 when nothing decoded, else 1


@dataclass(frozen=True)
class EngineInfo:
    """What an engine serves."""

    name: str  #: "embedded", ...
    model: str  #: name of the model
    model_id: str  #: see openclaw_rl.models.identity
    context_length: int  #: most tokens of prompt and response together
    vocab_size: int
    eos_ids: tuple[int, ...]  #: tokens that end a response
    accepts_weights: bool
    grammars: bool = False  #: it can hold responses to grammars


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker of an engine that has several."""

    index: int  #: from 0
    state: Literal["starting", "serving", "out"]
    version: int  #: that it serves; -1 while that is not known
    running: int  #: requests that it answers now
    address: str  #: http://HOST:PORT; empty in process
    detail: str  #: why it does not serve; empty while it does


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """How an engine is."""

    gauges: Mapping[str, float] = field(default_factory=dict)  #: running, waiting, tokens_per_s, ...
    counters: Mapping[str, int] = field(default_factory=dict)  #: since the start: engine_tokens, ...
    workers: Sequence[WorkerInfo] = ()  #: empty for an engine that has none
    alarms: Sequence[tuple[str, str]] = ()  #: (name, message); an empty message is none
    notes: Sequence[str] = ()  #: what else an operator may want to know


class Engine(Protocol):
    """An engine that serves policy versions. Methods are called on one event loop and return quickly, or await."""

    @property
    def info(self) -> EngineInfo:
        """What it serves."""
        ...

    @property
    def active_version(self) -> int:
        """The version that new responses begin with."""
        ...

    async def stage(self, version: int, folder: Path) -> None:
        """Load a version beside the active one while responses go on.

        Args:
            folder: of the version, or the base model's own for a way back to version 0.

        Raises:
            WeightsError: the files can't be read or aren't of this model.
        """

    async def activate(self, version: int) -> Pause:
        """Make a staged version the active one; the one before is freed.

        Raises:
            WeightsError: the version isn't staged.
        """
        ...

    def discard(self, version: int) -> None:
        """Drop a staged version that isn't active; unknown versions are fine."""

    def status(self) -> EngineStatus:
        """Its state now. Never raises, also after a stop."""
        ...


class TokenEngine(Engine, Protocol):
    """An engine that works on token ids.

    It stages `folder`/model.safetensors (or its shards), and activates between two decode steps.
    """

    async def start(self) -> None:
        """Load the model as version 0. Raises EngineError when it can't."""

    async def stop(self) -> None:
        """End every generation (they raise EngineError) and free the model."""

    def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *,
                 session: str = "") -> AsyncIterator[Token | Finished]:
        """Continue a prompt. Closing or cancelling the iterator leaves the batch at once.

        Args:
            prompt_ids: token ids.
            sampling: how to draw.
            session: whose prompt it is; an engine of several workers keeps a session where its cache is.

        Raises, from the first `anext`:
            EngineBusy: too many requests wait.
            PromptTooLong: no room for a response.
            GrammarError: no response can be held to the grammar.
            ValueError: no prompt, or an id outside the vocabulary.
            EngineError: this request failed; others go on.
        """
        ...

    def clear_prefixes(self) -> None:
        """Drop, before the next step, what is kept of texts for later ones that begin alike. Nothing of the requests
        that run now is kept when they end. Never raises."""
        ...

    async def score(self, token_ids: Sequence[int]) -> tuple[list[float], int]:
        """Log-probabilities of tokens 1.. given those before them, and the version that scored.

        Raises as `generate` does; a text may fill the whole context.
        """
        ...

    async def read(self, token_ids: Sequence[int], top: int) -> list[Token]:
        """Tokens 1.. as if they had been drawn: each with its `model_logprob`, and the `top` likeliest in its place.

        Raises as `score` does.
        """
        ...
