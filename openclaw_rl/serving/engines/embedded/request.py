"""Requests in the decode loop, and what they get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openclaw_rl.serving.engines.embedded.grammars import Guide
from openclaw_rl.serving.engines.embedded.sampler import Draw
from openclaw_rl.serving.engines.embedded.shaping import Shaper
from openclaw_rl.serving.engines.interface import EngineError, Finished, Sampling, Token


@dataclass(slots=True)
class Scores:
    """The result of a scoring request: log-probabilities, and the likeliest tokens in each place where wanted."""

    logprobs: list[float]
    version: int
    tops: list[list[tuple[int, float]]] = field(default_factory=list)


#: Results of a request: tokens and their end, or scores, or an error.
Item = Token | Finished | Scores | EngineError


@dataclass(eq=False)
class Request:
    """A request in the loop."""

    prompt: Sequence[int]
    sampling: Sampling | None  #: None: score the prompt without sampling
    stop_ids: frozenset[int]
    most_tokens: int  #: of the response
    send: Callable[[Item], None]  #: called from the loop's thread
    top: int = 0  #: likeliest tokens to report when the prompt is scored
    guide: Guide | None = None  #: holds the response to a grammar
    draw: Draw = field(init=False)
    done: int = 0  #: prompt tokens whose keys are in the cache
    cached: int = 0  #: of these, copied from the prefix cache
    epoch: int | None = None  #: of the prefix cache while its first token was computed; None: nothing is kept of it
    response: list[int] = field(default_factory=list)
    scores: Scores = field(default_factory=lambda: Scores([], 0))
    cancelled: bool = False

    def __post_init__(self) -> None:
        sampling = self.sampling or Sampling()
        shaping = sampling.shaping
        self.draw = Draw(sampling, Shaper(shaping, self.prompt, self.response, self.stop_ids) if shaping else None,
                         self.guide)

    @property
    def background(self) -> bool:
        """Whether it yields to live requests."""
        return self.sampling is not None and self.sampling.background

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self.done + max(len(self.response) - 1, 0)

    @property
    def text(self) -> list[int]:
        """The tokens in the cache."""
        return [*self.prompt[:self.done], *self.response[:-1]]
