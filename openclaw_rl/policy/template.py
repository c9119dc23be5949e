"""From messages and tools to prompt token ids, by the model's own tokenizer and chat template.

Reads the files of a Hugging Face folder with tokenizers and jinja2: transformers would do the same, but to import it
takes 6 s of a core and 240 MB, at every start of the policy server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from openclaw_rl.mesh import errors
from openclaw_rl.policy import tools as hermes
from openclaw_rl.policy.text import TokenBytes
from openclaw_rl.v1 import turn_pb2

#: For models that come without a template: a plain transcript.
_PLAIN = ("{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
          "{% if add_generation_prompt %}Assistant:{% endif %}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given. `opening` is the beginning of a tool call that `ids` ends with; mostly empty."""

    ids: list[int]
    opening: str = ""


class ChatTemplate:
    """One model's tokenizer and chat template. Its methods may run on any thread, one at a time per call."""

    def __init__(self, folder: Path) -> None:
        """Load from a model's folder: tokenizer.json, tokenizer_config.json and, where there is one,
        chat_template.jinja.

        Raises:
            ValueError, OSError: the files can't be used.
        """
        from jinja2 import TemplateError
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.tokens = TokenBytes(self._tokenizer.to_str())
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        source = _source(folder, settings)
        self._names = {key: value["content"] if isinstance(value, dict) else value for key, value in settings.items()
                       if key.endswith("_token") and value}
        environment = _environment()
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"{folder}: the chat template can't be used: {error}") from None
        self.knows_tools = "tools" in _variables(environment, source)
        # A template that names neither the role nor its tag renders tool results as if they were chat.
        self.knows_tool_role = re.search(r"""['"]tool['"]|tool_response|ipython""", source) is not None
        self.knows_tool_calls = "tool_calls" in source

    def chat(self, messages: Sequence[turn_pb2.ChatMessage], tools: Sequence[turn_pb2.ToolDefinition] = (),
             tool_choice: str = "auto") -> Prompt:
        """Render a conversation, up to where the response begins.

        A tool choice that forces a call puts the call's beginning into the prompt, so that what is recorded as
        sampled is exactly what was sampled.

        Raises:
            MeshError: INVALID_ARGUMENT, the model's template refuses the messages; it says why.
        """
        from jinja2 import TemplateError

        offered = tools if tool_choice != "none" else []
        try:
            text = self._template.render(
                messages=self._conversation(messages, offered), add_generation_prompt=True, documents=None,
                tools=[hermes.tool_json(tool) for tool in offered] or None, **self._names)
        except (TemplateError, TypeError, KeyError) as error:
            raise errors.invalid("messages", ", ".join(message.role for message in messages),
                                 f"what the model's chat template takes: {error}") from None
        opening = hermes.forced_opening(offered, tool_choice)
        return Prompt(self.encode(text + opening), opening)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text; `special`: with the tokens that the model wants before a fresh text."""
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def _conversation(self, messages: Sequence[turn_pb2.ChatMessage],
                      tools: Sequence[turn_pb2.ToolDefinition]) -> list[dict[str, Any]]:
        turns = [self._message(message) for message in messages]
        if tools and not self.knows_tools:
            told = hermes.describe(tools)
            if turns[0]["role"] == "system":
                turns[0]["content"] = f"{turns[0]['content']}\n\n{told}"
            else:
                turns.insert(0, {"role": "system", "content": told})
        if self.knows_tool_role:
            return turns
        merged: list[dict[str, Any]] = []
        for i, turn in enumerate(turns):
            # Results of several calls are one message: many templates insist on turns that alternate.
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


def _arguments(text: str) -> Any:
    """Arguments as an object, as templates expect them; a broken text stays a text."""
    try:
        return json.loads(text or "{}")
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
    """Jinja as chat templates expect it; what transformers 5 sets up in `utils/chat_template_utils.py`."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant wrote, for training; here it is just its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

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
    """The variables that a template reads from outside."""
    from jinja2 import meta

    return meta.find_undeclared_variables(environment.parse(source))
