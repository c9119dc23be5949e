"""From a response's tokens to what is shown of it: characters, then stop texts, then reasoning and tool calls."""

from __future__ import annotations

from typing import Any

from openclaw_rl.rpc.messages import new_id
from openclaw_rl.serving.engines.interface import EngineInfo
from openclaw_rl.serving.interfaces import CallPiece, ChatCall, Delta, SampledToken
from openclaw_rl.serving.text.detokenizer import Detokenizer, StopTexts, TokenBytes
from openclaw_rl.serving.text.hermes_tools import ToolParser
from openclaw_rl.serving.text.parsers import NamedToolParser, Parsers, ReasoningSplitter
from openclaw_rl.serving.text.template import Prompt
from openclaw_rl.v1 import turn_pb2


class ResponseReader:
    """The reader of one response.

    Args:
        call, prompt: what it answers.
        tokens: the vocabulary, as it is shown.
        parsers: of the model's family.
        info: of the engine.

    Attributes:
        done: a stop text came, or enough calls: stop sampling.
    """

    def __init__(self, call: ChatCall, prompt: Prompt, tokens: TokenBytes, parsers: Parsers, info: EngineInfo) -> None:
        self.done = False
        self._tokens = tokens
        self._text = Detokenizer(self._tokens)
        self._stops = StopTexts(call.sampling.stop, call.include_stop)
        self._unstopped = call.shaping.min_tokens if call.shaping else 0  # tokens before a text may end the response
        self._parser: ToolParser | NamedToolParser | None = None
        self._reasoning = None
        if parsers.reasoning and not prompt.opening and call.prompt is None and call.prompt_ids is None:
            self._reasoning = ReasoningSplitter(parsers.reasoning)
        if call.tools and call.tool_choice != "none":
            # A call forced by name is a single call, as in OpenAI's API.
            single = not call.parallel_tool_calls or call.tool_choice not in ("auto", "required")
            limit = 1 if single else None
            if parsers.tool and not prompt.opening:  # a forced call begins in the Hermes style
                self._parser = NamedToolParser(parsers.tool, call.tools, lambda: new_id("call_"), limit)
            else:
                self._parser = ToolParser(lambda: new_id("call_"), prompt.opening, limit,
                                          {tool.name for tool in call.tools}, info.grammars)
        self._logprobs = call.logprobs
        self._all_logprobs = call.echo  # clients that score a prompt count the tokens behind it
        self._held: list[dict[str, Any]] = []  # log-probabilities of tokens whose text is held back
        self._hidden = self._tokens.special | set(info.eos_ids) | set(call.sampling.stop_token_ids)

    def feed(self, token: SampledToken) -> Delta:
        """What the next token adds that can be shown already."""
        delta = Delta(tokens=[token])
        hidden = token.id in self._hidden
        text = "" if hidden else self._text.feed(token.id)
        if self._unstopped > 0:
            self._unstopped -= 1
        else:
            text = self._stops.feed(text)
        if self._logprobs and (self._all_logprobs or not hidden):
            self._held.append(self.logprob(token))
        if self._reasoning is not None:
            delta.reasoning, text = self._reasoning.feed(text)
        if self._parser is not None:
            delta.text, delta.tool_calls = self._parser.feed(text)
            delta.pieces = self._parser.pieces()
        else:
            delta.text = text
        self.done = self._stops.hit or (self._parser is not None and self._parser.complete)
        if self._held and (delta.text or delta.tool_calls or delta.pieces or delta.reasoning):
            delta.logprobs, self._held = self._held, []
        return delta

    @property
    def stop(self) -> str:
        """The stop text that ended the response."""
        return self._stops.found

    def finish(self) -> Delta:
        """What was held back, at the end."""
        text = self._stops.feed(self._text.finish()) + self._stops.finish()
        calls: list[turn_pb2.ToolCall] = []
        pieces: list[CallPiece] = []
        reasoning = ""
        if self._reasoning is not None:
            (reasoning, text), (more_reasoning, rest) = self._reasoning.feed(text), self._reasoning.finish()
            reasoning, text = reasoning + more_reasoning, text + rest
        if self._parser is not None:
            shown, calls = self._parser.feed(text)
            rest, more = self._parser.finish()
            text, calls, pieces = shown + rest, calls + more, self._parser.pieces()
        return Delta(text=text, tool_calls=calls, pieces=pieces, reasoning=reasoning,
                     logprobs=self._held if text or calls or reasoning or self._all_logprobs else [])

    @property
    def cut(self) -> bool:
        """Whether the response ended within the arguments of a call."""
        return self._parser is not None and self._parser.cut

    def logprob(self, token: SampledToken) -> dict[str, Any]:
        """An entry of OpenAI's `logprobs.content`."""
        return {**self.named(token.id, token.model_logprob),
                "top_logprobs": [self.named(index, value) for index, value in token.top]}

    def named(self, index: int, logprob: float) -> dict[str, Any]:
        """A token in OpenAI's shape."""
        data = self._tokens.table[index] if index < len(self._tokens.table) else b""
        return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}
