"""From messages and tools to prompt token ids, by the model's own tokenizer and chat template.

Needs transformers, which is imported when a tokenizer is loaded, not before: an API model goes without.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
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
        """Load from a model's folder; takes about a second.

        Raises:
            ValueError, OSError: the tokenizer's files can't be used.
        """
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        self.tokens = TokenBytes(self._tokenizer.backend_tokenizer.to_str())
        self._template = self._tokenizer.chat_template or _PLAIN
        if isinstance(self._template, dict):  # several by name
            self._template = self._template.get("tool_use") or self._template["default"]
        self.knows_tools = "tools" in _variables(self._template)
        # A template that names neither the role nor its tag renders tool results as if they were chat.
        self.knows_tool_role = re.search(r"""['"]tool['"]|tool_response|ipython""", self._template) is not None
        self.knows_tool_calls = "tool_calls" in self._template

    def chat(self, messages: Sequence[turn_pb2.ChatMessage], tools: Sequence[turn_pb2.ToolDefinition] = (),
             tool_choice: str = "auto") -> Prompt:
        """Render a conversation, up to where the response begins.

        A tool choice that forces a call puts the call's beginning into the prompt, so that what is recorded as
        sampled is exactly what was sampled.

        Raises:
            MeshError: INVALID_ARGUMENT, the model's template refuses the messages; it says why.
        """
        import jinja2

        offered = tools if tool_choice != "none" else []
        try:
            text = self._tokenizer.apply_chat_template(
                self._conversation(messages, offered), chat_template=self._template, add_generation_prompt=True,
                tokenize=False, tools=[hermes.tool_json(tool) for tool in offered] or None)
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise errors.invalid("messages", ", ".join(message.role for message in messages),
                                 f"what the model's chat template takes: {error}") from None
        opening = hermes.forced_opening(offered, tool_choice)
        return Prompt(self.encode(text + opening), opening)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text; `special`: with the tokens that the model wants before a fresh text."""
        return self._tokenizer(text, add_special_tokens=special, return_attention_mask=False)["input_ids"]

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


def _variables(template: str) -> set[str]:
    """The variables that a template reads from outside."""
    import jinja2.ext
    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Extensions as transformers has them; `generation` blocks are its own and mean nothing here.
    environment = ImmutableSandboxedEnvironment(extensions=[jinja2.ext.loopcontrols])
    try:
        return set(meta.find_undeclared_variables(environment.parse(template)))
    except jinja2.TemplateError:
        return set(re.findall(r"\b(?:tools|messages)\b", template))
