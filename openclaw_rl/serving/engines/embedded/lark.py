"""Grammars in llguidance's dialect of Lark's notation."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.engines.interface import CallGrammar, TextGrammar


def choice_lark(choices: Sequence[str]) -> str:
    """One of some texts."""
    return f"start: {_choice(choices)}\n"


def calls_lark(grammar: CallGrammar, schemas: Sequence[str]) -> str:
    """Tool calls: from behind the first mark on, behind a forced opening, or in place of whole texts of another form.

    Args:
        grammar: the calls.
        schemas: JSON schemas of the functions' arguments, with llguidance's options.
    """
    begin, end = map(_literal, grammar.marks)
    named = [_literal(json.dumps(function.name, ensure_ascii=False)) for function in grammar.functions]
    rules = [f'call: WS? "{{" WS? "\\"name\\"" WS? ":" WS? ({_any("f", len(named))}) WS? "}}" WS? {end}']
    for i, (name, schema) in enumerate(zip(named, schemas, strict=True)):
        rules += [f'f{i}: {name} WS? "," WS? "\\"arguments\\"" WS? ":" WS? a{i}', f"a{i}: %json {schema}"]
    more = "" if grammar.single else f" (WS? {begin} call)*"
    if grammar.opening:
        rests = _rests(grammar)
        rules += [f"o{i}: {rest} WS? a{i}" for i, rest in rests.items()]
        start = f'({" | ".join(f"o{i}" for i in rests)}) WS? "}}" WS? {end}{more}'
    elif grammar.text is not None:
        start = f"text | WS? {begin} call{more}"
        rules.append(f"text: {_text(grammar.text, rules)}")
    else:
        start = "call"
    return "\n".join(["%llguidance {}", f"start: {start}", *rules, r"WS: /[ \n\r\t]{1,20}/", ""])


def _rests(grammar: CallGrammar) -> dict[int, str]:
    """By function, what completes the opening up to its arguments."""
    found = {}
    for i, function in enumerate(grammar.functions):
        whole = f'{grammar.marks[0]}\n{{"name": {json.dumps(function.name, ensure_ascii=False)}, "arguments":'
        if whole.startswith(grammar.opening):
            found[i] = _literal(whole[len(grammar.opening):])
    return found


def _text(text: TextGrammar, rules: list[str]) -> str:
    if text.kind == "json_schema":
        from openclaw_rl.serving.engines.embedded.schemas import check_schema, with_options

        return f"%json {with_options(check_schema(text.text, text.field), not text.strict)}"
    if text.kind == "choice":
        return _choice(parse_json(text.text))
    from llguidance import regex_to_lark

    return f"/{regex_to_lark(text.text)}/"


def _choice(choices: Sequence[str]) -> str:
    return " | ".join(map(_literal, choices))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _any(letter: str, count: int) -> str:
    return " | ".join(f"{letter}{i}" for i in range(count))
