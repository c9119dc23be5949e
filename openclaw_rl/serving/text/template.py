"""Prompts: messages and tools to token ids, with the model's tokenizer and chat template.

Reads a Hugging Face folder with tokenizers and jinja2. transformers would do the same, but importing it takes 6 s of a
core and 240 MB at each start of the policy server.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from openclaw_rl.rpc import errors
from openclaw_rl.runtime.json import parse_json
from openclaw_rl.serving.text import hermes_tools as hermes
from openclaw_rl.serving.text.detokenizer import TokenBytes
from openclaw_rl.serving.text.openai_json import tool_json
from openclaw_rl.v1 import turn_pb2

#: For models without a template: a plain transcript.
_PLAIN = ("{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
          "{% if add_generation_prompt %}Assistant:{% endif %}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for the engine. `opening`: the beginning of a forced tool call that `ids` ends with; usually empty."""

    ids: list[int]
    opening: str = ""


class TooLong(Exception):
    """A text certainly has more tokens than allowed. `least`: a lower bound of their number."""

    def __init__(self, least: int) -> None:
        super().__init__(f"at least {least} tokens")
        self.least = least


class ChatTemplate:
    """A model's tokenizer and chat template. Methods may run on any thread.

    The names of special tokens, such as <|im_start|>, stand for those tokens only where the template wrote them. In
    messages and tools they are plain text, so that nobody can end their message and speak in another role.
    """

    def __init__(self, folder: Path) -> None:
        """Load from a model's folder: tokenizer.json, tokenizer_config.json and, where there is one,
        chat_template.jinja.

        Raises:
            ValueError, OSError: the files can't be used.
        """
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else a batch of one text starts a thread per core
        from jinja2 import TemplateError
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.tokens = TokenBytes(self._tokenizer.to_str())
        # A normalizer may shorten a text: composing characters does, to a third of its bytes.
        #: Bytes of text that one token stands for, at most.
        self.token_bytes = max(map(len, self.tokens.table)) * (1 if self._tokenizer.normalizer is None else 4)
        self._plain: Any = None  # the same tokenizer with special tokens as text; loaded on demand
        self._special = {self.tokens.table[index].decode(): index for index in sorted(self.tokens.special)}
        names = sorted(filter(None, self._special), key=len, reverse=True)
        self._find_special = re.compile(f"({'|'.join(map(re.escape, names)) or '(?!)'})")
        settings = parse_json((folder / "tokenizer_config.json").read_text())
        source = _source(folder, settings)
        self._names = {key: value["content"] if isinstance(value, dict) else value for key, value in settings.items()
                       if key.endswith("_token") and value}
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"{folder}: the chat template can't be used: {error}") from None
        self.knows_tools = "tools" in _variables(environment, source)
        # A template without the role or its tag renders tool results as ordinary messages.
        self.knows_tool_role = re.search(r"""['"]tool['"]|tool_response|ipython""", source) is not None
        self.knows_tool_calls = "tool_calls" in source

    def chat(self, messages: Sequence[turn_pb2.ChatMessage], tools: Sequence[turn_pb2.ToolDefinition] = (),
             tool_choice: str = "auto", most: int | None = None, *, continue_final: bool = False,
             generation_prompt: bool = True, values: Mapping[str, Any] = MappingProxyType({})) -> Prompt:
        """Render a conversation up to where the response begins.

        A forced call begins in the prompt, so that exactly what was sampled is recorded as sampled.

        Args:
            most: see `encode`.
            continue_final: the response continues the last message.
            generation_prompt: end where a response begins.
            values: more variables for the template.

        Raises:
            MeshError: INVALID_ARGUMENT, the model's template rejects the messages.
            TooLong: see `encode`.
        """
        from jinja2 import TemplateError

        if most is not None:  # before anything is done with texts of any length
            self._check_bytes(_certain_length(messages), most)
        offered = tools if tool_choice != "none" else []
        stand_ins = _StandIns(self._find_special)
        conversation = stand_ins.put(self._conversation(messages, offered))
        end = secrets.token_hex(8) if continue_final else ""
        if end:
            conversation[-1]["content"] += end
        try:
            text = self._template.render(
                {**values, **self._names}, messages=conversation,
                add_generation_prompt=generation_prompt and not continue_final,
                documents=None, tools=stand_ins.put([tool_json(tool) for tool in offered]) or None)
        except (TemplateError, TypeError, KeyError, RecursionError) as error:
            raise errors.invalid("messages", ", ".join(message.role for message in messages),
                                 f"what the model's chat template takes: {error}") from None
        if end:
            text = text[:text.rfind(end)]
        opening = hermes.forced_opening(offered, tool_choice)
        if not stand_ins.used:
            return Prompt(self.encode(text + opening, most=most), opening)
        self._check_size(text, most)
        ids: list[int] = []
        for part in self._find_special.split(text + opening):
            ids += [self._special[part]] if part in self._special else self._encode_plain(stand_ins.restore(part))
        return Prompt(ids, opening)

    def encode(self, text: str, special: bool = False, most: int | None = None) -> list[int]:
        """Tokenize a text in which special tokens may be named.

        Args:
            special: add the tokens that the model expects before a new text.
            most: tokens of the longest acceptable text.

        Raises:
            TooLong: the text certainly has more than `most` tokens. Tokenizing one that is a thousand times too long
                would take seconds of all cores.
        """
        self._check_size(text, most)
        return _tokenize(self._tokenizer, text, special)

    def _check_size(self, text: str, most: int | None) -> None:
        if most is not None:
            self._check_bytes(len(text.encode()), most)

    def _check_bytes(self, size: int, most: int) -> None:
        least = -(-size // self.token_bytes)
        if least > most:
            raise TooLong(least)

    def _encode_plain(self, text: str) -> list[int]:
        if self._plain is None:
            from tokenizers import Tokenizer

            plain = Tokenizer.from_str(self._tokenizer.to_str())
            plain.encode_special_tokens = True
            self._plain = plain
        return _tokenize(self._plain, text, False)

    def _conversation(self, messages: Sequence[turn_pb2.ChatMessage],
                      tools: Sequence[turn_pb2.ToolDefinition]) -> list[dict[str, Any]]:
        turns = [self._message(message) for message in messages]
        if tools and not self.knows_tools:
            description = hermes.describe(tools)
            if turns[0]["role"] == "system":
                turns[0]["content"] = f"{turns[0]['content']}\n\n{description}"
            else:
                turns.insert(0, {"role": "system", "content": description})
        if self.knows_tool_role:
            return turns
        merged: list[dict[str, Any]] = []
        for i, turn in enumerate(turns):
            # Results of several calls become one message: many templates require alternating roles.
            if turn["role"] == "tool":
                content = f"<tool_response>\n{turn['content']}\n</tool_response>"
                if i and turns[i - 1]["role"] == "tool":
                    merged[-1]["content"] += f"\n{content}"
                else:
                    merged.append({"role": "user", "content": content})
            else:
                merged.append(turn)
        return merged

    def _message(self, message: turn_pb2.ChatMessage) -> dict[str, Any]:
        texts = [message.content] if message.content else []
        texts += [part.text for part in message.parts if part.text]
        turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role,
                                "content": "\n".join(texts)}
        if message.tool_calls:
            if self.knows_tool_calls:
                turn["tool_calls"] = [{"id": call.id, "type": "function", "function": {
                    "name": call.name, "arguments": _arguments(call.arguments_json)}} for call in message.tool_calls]
            else:
                calls = "\n".join(hermes.call_text(call) for call in message.tool_calls)
                turn["content"] = f"{turn['content']}\n{calls}".strip()
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id
        if message.name:
            turn["name"] = message.name
        return turn


class _StandIns:
    """Hides special tokens' names in messages from the template, and restores them afterwards."""

    def __init__(self, find: re.Pattern[str]) -> None:
        self._find = find
        self._mark = secrets.token_hex(8)  # not predictable by clients
        self._names: list[str] = []

    @property
    def used(self) -> bool:
        """Whether a name was replaced."""
        return bool(self._names)

    def put(self, value: Any) -> Any:
        """Replace the names in all strings of a value."""
        if isinstance(value, str):
            return self._find.sub(self._stand_in, value)
        if isinstance(value, list):
            return [self.put(item) for item in value]
        if isinstance(value, dict):
            return {self.put(key): self.put(item) for key, item in value.items()}
        return value

    def restore(self, text: str) -> str:
        """Restore the names in a text."""
        return re.sub(f"{self._mark}-(\\d+)-", lambda match: self._names[int(match[1])], text)

    def _stand_in(self, match: re.Match[str]) -> str:
        self._names.append(match[0])
        return f"{self._mark}-{len(self._names) - 1}-"


def _tokenize(tokenizer: Any, text: str, special: bool) -> list[int]:
    # As a batch: `encode` of one text holds the interpreter's lock to its end, 80 ms for 300 kB.
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
    return ids


def _certain_length(messages: Sequence[turn_pb2.ChatMessage]) -> int:
    """Characters of the messages that every template renders. Many leave out the reasoning of earlier responses."""
    texts = (text for message in messages for text in (message.content, *(part.text for part in message.parts))
             if message.role != "assistant" or "</think>" not in text)
    return sum(map(len, texts))


def _arguments(text: str) -> Any:
    """Parse arguments, as templates expect an object; invalid JSON stays a string."""
    try:
        return parse_json(text or "{}")
    except ValueError:
        return text


def _source(folder: Path, settings: dict[str, Any]) -> str:
    """The chat template's text."""
    file = folder / "chat_template.jinja"
    source = file.read_text() if file.exists() else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {item["name"]: item["template"] for item in source}
        source = named.get("tool_use") or named.get("default")
    return source or _PLAIN


def _environment() -> Any:
    """Jinja as chat templates expect it; see `utils/chat_template_utils.py` in transformers 5."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's text for training; here only its content counts."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return body

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None,
                separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _variables(environment: Any, source: str) -> set[str]:
    """The free variables of a template."""
    from jinja2 import meta

    return meta.find_undeclared_variables(environment.parse(source))
