"""Responses that are held to a grammar: a model of random weights writes what was asked for, and nothing else."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import jsonschema
import pytest
import torch

from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from openclaw_rl.serving.engines.embedded.grammars import Grammars, Guide
from openclaw_rl.serving.engines.embedded.sampler import Draw, sample
from openclaw_rl.serving.engines.interface import (
    CallGrammar,
    Finished,
    Function,
    Grammar,
    GrammarError,
    Sampling,
    TextGrammar,
    Token,
)
from openclaw_rl.serving.text.detokenizer import TokenBytes
from openclaw_rl.serving.text.hermes_tools import CLOSE, OPEN, ToolParser, forced_opening
from openclaw_rl.v1 import turn_pb2
from tests.serving.engines.conftest import save_model, tokens
from tests.serving.stub import EOS, write_tokenizer

VOCAB = 267
PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age"], "properties": {
    "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2}}}
CITY = {"type": "object", "additionalProperties": False, "required": ["city"],
        "properties": {"city": {"enum": ["Rom", "Köln"]}}}
FUNCTIONS = (Function("weather", json.dumps(CITY), "tools[0]"), Function("clock", "", "tools[1]"))


def schema(value: object, strict: bool = True) -> TextGrammar:
    return TextGrammar("json_schema", json.dumps(value), "response_format.json_schema.schema", strict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(tmp_path_factory.mktemp("models") / "bytes", vocab_size=VOCAB, eos_token_id=EOS)
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return Grammars(folder / "tokenizer.json", VOCAB, (EOS,))


@pytest.fixture(scope="module")
def table(folder: Path) -> TokenBytes:
    return TokenBytes((folder / "tokenizer.json").read_text())


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(folder, max_batch=8, device="cpu")
    await engine.start()
    yield engine
    await engine.stop()


def text_of(drawn: Sequence[Token], table: TokenBytes) -> str:
    return b"".join(table.table[token.id] for token in drawn if token.id not in table.special).decode()


def follow(guide: Guide | None, text: str, table: TokenBytes) -> str:
    """The part of a text that the guide lets through, token by token; `|` at its end if the response may end there."""
    assert guide
    done = b""
    while len(done) < len(text.encode()):
        rest = text.encode()[len(done):]
        # Where a grammar leaves one text, it allows only the tokenizer's own tokens of it: with merges first.
        token = max((i for i, data in enumerate(table.table) if data and rest.startswith(data)),
                    key=lambda i: len(table.table[i]))
        allowed = guide.allowed()
        if allowed is not None and not allowed[token]:
            break
        guide.take(token)
        done += table.table[token]
    allowed = guide.allowed()
    return done.decode() + ("|" if allowed is None or allowed[EOS] else "")


@pytest.mark.parametrize("temperature", [0.0, 1.5])
async def test_random_weights_write_what_the_schema_says(engine: EmbeddedEngine, table: TokenBytes,
                                                         temperature: float) -> None:
    async def one(seed: int) -> list[Token]:
        return await tokens(engine, [3, 1, 4 + seed], Sampling(
            temperature=temperature, seed=seed, max_tokens=400, grammar=schema(PERSON)))

    for drawn in await asyncio.gather(*(one(seed) for seed in range(6))):
        assert drawn[-1].id == EOS
        jsonschema.validate(json.loads(text_of(drawn, table)), PERSON)


async def test_rows_without_a_grammar_are_not_changed_by_those_that_have_one(engine: EmbeddedEngine) -> None:
    free = Sampling(temperature=0.9, seed=5, max_tokens=40)
    alone = await tokens(engine, [9, 8, 7], free)
    beside, *_ = await asyncio.gather(
        tokens(engine, [9, 8, 7], free),
        *(tokens(engine, [i, 3], Sampling(max_tokens=60, seed=i, grammar=schema(PERSON))) for i in range(3)))
    assert [token.id for token in beside] == [token.id for token in alone]
    assert not any(token.forced for token in beside)
    assert [token.logprob for token in beside] == pytest.approx([token.logprob for token in alone], abs=1e-4)


async def test_what_is_recorded_is_what_was_sampled(engine: EmbeddedEngine) -> None:
    """The model's own log-probability of each token is without the grammar, as scoring gives it; the drawn one is of
    the tokens that the grammar allowed, so certain where it allowed one."""
    prompt = [5, 6, 7]
    drawn = await tokens(engine, prompt, Sampling(temperature=1, seed=2, max_tokens=300, grammar=schema(PERSON)))
    scores, _ = await engine.score([*prompt, *(token.id for token in drawn)])
    assert [token.model_logprob for token in drawn] == pytest.approx(scores[len(prompt) - 1:], abs=1e-4)
    forced = [token for token in drawn if token.forced]
    assert 5 < len(forced) < len(drawn)
    for token in drawn:
        assert token.logprob >= token.model_logprob - 1e-4
        assert token.logprob == 0 if token.forced else True


def test_the_drawn_probability_is_among_allowed_tokens(grammars: Grammars, table: TokenBytes) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    guide = grammars.guide(TextGrammar("choice", '["xa", "ya", "zb"]', "guided_choice"))
    ids = [table.table.index(letter) for letter in (b"x", b"y", b"z")]
    p = (logits[0, ids] / 0.5).softmax(-1)
    own = logits[0].log_softmax(-1)
    drawn = sample(logits.clone(), [Draw(Sampling(temperature=0.5, seed=1, top_logprobs=2), guide=guide)], 4)[0]
    assert isinstance(drawn, Token)
    assert drawn.logprob == pytest.approx(math.log(p[ids.index(drawn.id)]), abs=1e-5)
    assert drawn.model_logprob == pytest.approx(float(own[drawn.id]), abs=1e-5)
    assert [index for index, _ in drawn.top] == own.topk(2).indices.tolist()  # the model's, not the grammar's


@pytest.mark.parametrize(("grammar", "text", "passed"), [
    (TextGrammar("regex", "[0-9]{2,3}", "f"), "1234", "123|"),
    (TextGrammar("choice", '["yes", "no \\"x/y\\""]', "f"), 'no "x/y"!', 'no "x/y"|'),
    (TextGrammar("grammar", 'root ::= "a" ("b" | "c")+', "f"), "abcd", "abc|"),
    (TextGrammar("grammar", 'start: "a" B\nB: /[bc]+/', "f"), "abcd", "abc|"),
    (schema({"type": "object"}), '{"a": [1, null]} x', '{"a": [1, null]}|'),
    (schema({"type": "object"}), " {}", ""),
    (schema({"$defs": {"node": {"type": "object", "additionalProperties": False, "required": ["next"], "properties": {
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}}}, "$ref": "#/$defs/node"}),
     '{"next": {"next": null}}', '{"next": {"next": null}}|'),
    (schema({"type": "object", "not": {}}, strict=False), "{}", "{}|"),
    (schema({"type": "object"}), "{" + "\n" * 60, "{" + "\n" * 40),  # small models write blank lines without end
])
def test_texts_that_fit(grammars: Grammars, table: TokenBytes, grammar: Grammar, text: str, passed: str) -> None:
    assert follow(grammars.guide(grammar), text, table) == passed


AUTO = CallGrammar(FUNCTIONS, (OPEN, CLOSE))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rom"}}\n</tool_call>'


@pytest.mark.parametrize(("text", "passed"), [
    ('{"name": "Joe", "age": 9} <tool> and <tool_cal', '{"name": "Joe", "age": 9} <tool> and <tool_cal|'),
    (f"So: {CALL} and {CALL}\nbye", f"So: {CALL} and {CALL}\nbye|"),
    ('<tool_call>{"name":"clock","arguments":{}}</tool_call>',
     '<tool_call>{"name":"clock","arguments":{}}</tool_call>|'),
    ('<tool_call>\n{"name": "Paris"', '<tool_call>\n{"name": "'),
    ('<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"',
     '<tool_call>\n{"name": "weather", "arguments": {"city": "'),
    ('<tool_call>\n{"name": "clock", "arguments": {"city": "Bern"}}\n</tool_call>', '<tool_call>\n{"name": "clock", '
     '"arguments": {"city": "Bern"}}\n</tool_call>|'),
])
def test_calls_are_free_until_they_begin(grammars: Grammars, table: TokenBytes, text: str, passed: str) -> None:
    assert follow(grammars.guide(AUTO), text, table) == passed


def test_a_token_may_hold_the_end_of_the_mark_and_more(grammars: Grammars, table: TokenBytes) -> None:
    guide = grammars.guide(CallGrammar(FUNCTIONS, ("<t", CLOSE)))
    assert guide
    for byte in "<t":
        guide.take(table.table.index(byte.encode()))
    assert guide.allowed() is not None
    guide = grammars.guide(CallGrammar(FUNCTIONS, ("<t", CLOSE)))
    assert guide
    guide.take(table.table.index(b"<"))
    guide.take(table.table.index(b"th"))  # one token: the mark, and what no call begins with
    assert guide.allowed() is None
    assert follow(guide, CALL.replace(OPEN, "<t") + "x", table) == CALL.replace(OPEN, "<t") + "x|"


@pytest.mark.parametrize("choice", ["required", "clock", "weather"])
async def test_forced_calls_of_random_weights_are_calls(engine: EmbeddedEngine, table: TokenBytes, choice: str) -> None:
    tools = [turn_pb2.ToolDefinition(name="weather", parameters_json=json.dumps(CITY)),
             turn_pb2.ToolDefinition(name="clock", parameters_json='{"properties": {}, "additionalProperties": false}')]
    functions = tuple(Function(tool.name, tool.parameters_json, "tools") for tool in tools
                      if choice in ("required", tool.name))
    opening = forced_opening(tools, choice)
    grammar = CallGrammar(functions, (OPEN, CLOSE), opening, single=True)
    for seed in range(3):
        drawn = await tokens(engine, [7, seed], Sampling(temperature=1.5, seed=seed, max_tokens=300, grammar=grammar))
        assert drawn[-1].id == EOS
        parser = ToolParser(lambda: "call_1", opening, 1, {"weather", "clock"}, stream=True)
        shown, calls = parser.feed(text_of(drawn, table))
        assert (shown, len(calls)) == ("", 1)
        assert calls[0].name in [function.name for function in functions]
        jsonschema.validate(json.loads(calls[0].arguments_json),
                            CITY if calls[0].name == "weather" else {"type": "object", "maxProperties": 0})


def test_text_of_a_form_or_calls(grammars: Grammars, table: TokenBytes) -> None:
    for text in (schema(CITY), TextGrammar("regex", "a/b+", "f"), TextGrammar("choice", '["yes"]', "f")):
        grammar = CallGrammar(FUNCTIONS, (OPEN, CLOSE), text=text)
        fitting = {"json_schema": '{"city": "Rom"}', "regex": "a/bb", "choice": "yes"}[text.kind]
        assert follow(grammars.guide(grammar), fitting, table) == f"{fitting}|"
        assert follow(grammars.guide(grammar), CALL, table) == f"{CALL}|"
        assert follow(grammars.guide(grammar), "nothing", table) == ""


def test_a_schema_that_can_not_be_enforced_binds_only_strict_functions(grammars: Grammars, table: TokenBytes) -> None:
    odd = '{"type": "object", "properties": {"a": {"type": "banana"}}}'
    lax = CallGrammar((Function("f", odd, "tools[0].function.parameters"),), (OPEN, CLOSE))
    call = '<tool_call>{"name": "f", "arguments": {"b": 1}}</tool_call>'
    assert follow(grammars.guide(lax), call, table) == f"{call}|"
    strict = CallGrammar((Function("f", odd, "tools[0].function.parameters", strict=True),), (OPEN, CLOSE))
    with pytest.raises(GrammarError, match=r"tools\[0\].function.parameters: can't be used: .*banana"):
        grammars.guide(strict)


MANY = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
BAD = [
    (schema({"type": "string", "minLength": 5, "maxLength": 2}), "minLength"),
    (schema({"type": "object", "properties": {"a": False}, "required": ["a"]}), "'a' is unsatisfiable"),
    (schema({"$ref": "#"}), "# requires itself without end"),
    (schema({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}), "without end"),
    (schema({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"type": "array", "minItems": 1,
                                                                     "items": {"$ref": "#/$defs/a"}}},
             "$ref": "#/$defs/a"}), "#/$defs/a requires itself"),
    (schema({"$defs": {**MANY, "d60": {"$ref": "#/$defs/d0"}}, "$ref": "#/$defs/d0"}), "without end"),
    (schema({"enum": ["x" * 200_000]}), "characters; at most 65536"),
    (schema({"type": "banana"}), "Invalid type: banana"),
    (schema({"$ref": "#/$defs/x"}), "/$defs/x' does not exist"),
    (schema({"$ref": "http://127.0.0.1/x"}), "http://127.0.0.1/x"),
    (schema({"not": {}}), "not"),
    (TextGrammar("json_schema", "{", "guided_json"), "is not JSON"),
    (TextGrammar("json_schema", "3", "guided_json"), "an object"),
    (TextGrammar("regex", "(a", "guided_regex"), "unclosed group"),
    (TextGrammar("regex", "[a-z]*" * 680, "guided_regex"), "lexer"),
    (TextGrammar("regex", "(" * 2000, "guided_regex"), "guided_regex"),
    (TextGrammar("regex", "[a-z]*" * 5000, "guided_regex"), "at most 4096"),
    (TextGrammar("grammar", "root ::= foo", "guided_grammar"), "foo"),
    (TextGrammar("grammar", "start: foo", "guided_grammar"), 'at 1(8): unknown name: "foo"'),
    (TextGrammar("grammar", "root ::= " + "(" * 5000, "guided_grammar"), "recursion"),
    (TextGrammar("grammar", "root ::= " + "[a-z]*" * 1300, "guided_grammar"), "Too many items"),
]


@pytest.mark.parametrize(("grammar", "reason"), BAD, ids=range(len(BAD)))
def test_bad_grammars_are_refused_by_name_and_soon(grammars: Grammars, grammar: TextGrammar, reason: str) -> None:
    grammars.load()
    grammars.guide(schema({"type": "object"}))
    begun = time.thread_time()
    with pytest.raises(GrammarError) as caught:
        grammars.guide(grammar)
    assert reason in str(caught.value)
    assert caught.value.field == grammar.field
    assert time.thread_time() - begun < 1  # 50 ms on a quiet machine, and 4 s for some of these without limits


async def test_an_engine_without_a_usable_tokenizer_says_so(tiny: Path) -> None:
    grammars = Grammars(tiny / "tokenizer.json", 128, (127,))
    with pytest.raises(GrammarError, match="can't be held to a grammar"):
        grammars.guide(schema(PERSON))
    assert grammars.guide(AUTO) is None


async def test_a_grammar_that_explodes_on_its_way_fails_its_response_alone(engine: EmbeddedEngine) -> None:
    endless = TextGrammar("grammar", 'start: "a" start', "guided_grammar")
    bad, good = await asyncio.gather(
        tokens(engine, [3, 4], Sampling(max_tokens=50, grammar=endless)),
        tokens(engine, [3, 5], Sampling(max_tokens=50, seed=1, temperature=0.9)), return_exceptions=True)
    assert isinstance(bad, GrammarError) and bad.field == "guided_grammar"
    assert isinstance(good, list) and good
    items = [item async for item in engine.generate([3, 4], Sampling(max_tokens=20))]
    assert isinstance(items[-1], Finished)
