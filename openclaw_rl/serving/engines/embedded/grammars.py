"""Grammars of responses, compiled by llguidance, and what they allow token by token.

llguidance (Earley's algorithm over derivatives of regular expressions) reads JSON schemas, regular expressions and Lark
grammars, compiles them in milliseconds and little ahead of time, and has limits on all that it builds.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.engines.embedded.lark import calls_lark, choice_lark
from openclaw_rl.serving.engines.embedded.schemas import LONGEST_SCHEMA, check_schema, with_options
from openclaw_rl.serving.engines.interface import CallGrammar, Grammar, GrammarError, TextGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

logger = logging.getLogger(__name__)

#: Characters. What is longer takes more than some 50 ms to compile.
_LONGEST = {"json_schema": LONGEST_SCHEMA, "regex": 4096, "grammar": 8192, "choice": 32768}
#: Compiled grammars that are kept: an agent sends the same tools with each request.
_KEPT = 32


class Guide:
    """Holds one response to a grammar, token by token.

    With a `mark` the response is free until that text, held to the grammar from there to its end, then free again.
    """

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, field: str, mark: str = "") -> None:
        self._matcher, self._tokenizer, self._field = matcher, tokenizer, field
        self._mark = mark.encode()
        self._free = bool(mark)
        self._tail = b""  # of the free text

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """The tokens that may come next, [vocabulary]; None: all.

        Raises:
            GrammarError: it takes more than a step may take.
        """
        if self._free:
            return None
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(self._field, f"is too complex: {_reason(self._matcher.get_error())}")
        every = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        return every[:self._tokenizer.vocab_size].view(np.bool_)

    def take(self, token: int) -> None:
        """A token was drawn. Never raises."""
        if not self._free:
            self._matcher.consume_token(token)
            if self._mark and self._matcher.is_stopped() and not self._matcher.is_error():
                self._free, self._tail = True, b""
            return
        self._tail += self._tokenizer.decode_bytes([token])
        at = self._tail.find(self._mark)
        if at < 0:
            self._tail = self._tail[-len(self._mark):]
            return
        begun = self._tail[at + len(self._mark):]  # of the same token as the mark's end
        self._matcher.reset()
        ids = self._tokenizer.tokenize_bytes(begun)
        self._free = self._matcher.try_consume_tokens(ids) < len(ids)
        if self._free:  # it can't become a call any more, and is text
            self._matcher.reset()
            self._tail = begun[-len(self._mark):]


class Grammars:
    """Compiles grammars for a model's tokenizer. Methods may run on any thread.

    Args:
        tokenizer_json: the tokenizer's file.
        vocab_size: of the model's output.
        eos_ids: tokens that end a response.
    """

    def __init__(self, tokenizer_json: Path, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._file, self._vocab_size, self._eos_ids = tokenizer_json, vocab_size, list(eos_ids)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(_KEPT)(self._compile)

    def load(self) -> None:
        """Read the tokenizer, once (0.25 s for 49,000 tokens). Logs when it can't be used."""
        with self._lock:
            if self._tokenizer is None:
                try:
                    from llguidance import LLTokenizer

                    self._tokenizer = LLTokenizer(self._file.read_text(), n_vocab=self._vocab_size,
                                                  eos_token=self._eos_ids)
                except (ImportError, OSError, ValueError) as error:
                    logger.warning("Responses can't be held to grammars: %s", error)

    def guide(self, grammar: Grammar) -> Guide | None:
        """Return what holds a new response to a grammar; None for calls that can't be held to one, and need not.

        Raises:
            GrammarError: naming the field and the place in it.
        """
        field = grammar.field if isinstance(grammar, TextGrammar) else "tools"
        self.load()
        if self._tokenizer is None:
            if isinstance(grammar, CallGrammar) and grammar.text is None:
                return None
            raise GrammarError(field, "this model's responses can't be held to a grammar")
        matcher = self._compiled(grammar)
        if matcher is None:
            return None
        mark = ""
        if isinstance(grammar, CallGrammar) and not grammar.opening and grammar.text is None:
            mark = grammar.marks[0]
        return Guide(matcher.deep_copy(), self._tokenizer, field, mark)

    def _compile(self, grammar: Grammar) -> LLMatcher | None:
        if isinstance(grammar, TextGrammar):
            return self._matcher(_text_source(grammar), grammar.field)
        schemas, room = [], LONGEST_SCHEMA
        for function in grammar.functions:
            schemas.append(self._arguments(function.schema, function.field, function.strict, room))
            room -= len(schemas[-1])
        text = None if grammar.text is None else _text_source(grammar.text)
        if grammar.text is not None and text is not None:
            self._matcher(text, grammar.text.field)  # its own error first
            if grammar.text.kind == "grammar":
                raise GrammarError(grammar.text.field, "is not possible with tools; set tool_choice to none")
        try:
            return self._matcher(calls_lark(grammar, schemas), "tools")
        except GrammarError as error:
            if any(function.strict for function in grammar.functions) or grammar.text is not None:
                raise
            logger.warning("Tool calls are not held to their functions' schemas: %s", error)
        try:
            return self._matcher(calls_lark(grammar, ['{"type": "object"}'] * len(schemas)), "tools")
        except GrammarError as error:
            logger.warning("Tool calls are not held to a grammar: %s", error)
            return None

    def _arguments(self, schema: str, field: str, strict: bool, room: int) -> str:
        """The schema of a function's arguments as far as it can be enforced; all of it if `strict`."""
        try:
            if len(schema) > room:
                raise GrammarError(field, f"makes the tools' schemas longer than {LONGEST_SCHEMA} characters together")
            checked = with_options(check_schema(schema or "{}", field), not strict, object_only=True)
            self._matcher(_schema_source(checked), field)
            return checked
        except GrammarError:
            if strict:
                raise
            return '{"type": "object"}'

    def _matcher(self, source: str, field: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        assert self._tokenizer is not None
        limits = LLParserLimits(
            verbose_errors=False, initial_lexer_fuel=300_000, step_lexer_fuel=100_000, step_max_items=10_000,
            max_grammar_size=20_000, max_lexer_states=20_000)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # what explodes at the first step does so here, beside the decode loop
        if matcher.is_error():
            raise GrammarError(field, f"can't be used: {_reason(matcher.get_error())}")
        return matcher


def _text_source(grammar: TextGrammar) -> str:
    """The grammar in llguidance's form."""
    from llguidance import LLMatcher, grammar_from

    longest = _LONGEST[grammar.kind]
    if len(grammar.text) > longest:
        raise GrammarError(grammar.field, f"has {len(grammar.text)} characters; at most {longest}")
    if grammar.kind == "json_schema":
        return _schema_source(with_options(check_schema(grammar.text, grammar.field), not grammar.strict))
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "choice":
        return choice_lark(parse_json(grammar.text))
    try:
        return grammar_from("grammar", grammar.text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(grammar.field, f"can't be used: {_reason(str(error))}") from None


def _schema_source(schema: str) -> str:
    return json.dumps({"grammars": [{"json_schema": json.loads(schema)}]})


def _reason(error: str) -> str:
    """The first lines of an error of llguidance, with the place in the grammar."""
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= 300 else text[:297] + "..."
