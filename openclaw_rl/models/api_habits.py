"""What a model behind an API does not take, learned from its refusals."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

import openai

logger = logging.getLogger(__name__)

#: Two names of one field: OpenAI's newer models refuse the first, many other servers the second.
_NAMES = ("max_tokens", "max_completion_tokens")


class ApiHabits:
    """Adapts requests to what one model takes.

    A field under its other name says the same, and one that the client did not ask for can be left out. Whatever else
    is refused, the client is told.

    Args:
        model: its name, for messages.
        optional: fields that requests have without a client's wish.

    Attributes:
        notes: what was learned, for an operator.
    """

    def __init__(self, model: str, optional: Collection[str] = ()) -> None:
        self.notes: list[str] = []
        self._model, self._optional = model, frozenset(optional)
        self._renamed: dict[str, str] = {}
        self._left_out: set[str] = set()

    def adapt(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with other names for some of its fields, and without some."""
        if not self._renamed and not self._left_out:
            return request
        return {self._renamed.get(name, name): value for name, value in request.items() if name not in self._left_out}

    def learn(self, error: openai.BadRequestError, sent: dict[str, Any]) -> bool:
        """Learn from a refusal of an adapted request; whether one that is adapted anew may be taken."""
        refused = [name for name in sent if _refuses(error, name)]
        for name in refused:
            other = _NAMES[1 - _NAMES.index(name)] if name in _NAMES else ""
            if other and name not in self._renamed.values():
                self._renamed = {name: other}
                self._note(f"takes {other} in place of {name}")
                return True
            if name in self._optional:
                self._left_out.add(name)
                self._note(f"takes no {name}")
                return True
        return False

    def _note(self, what: str) -> None:
        note = f"{self._model} {what}"
        if note not in self.notes:  # requests at the same time are refused alike
            logger.warning("%s", note)
            self.notes.append(note)


def _refuses(error: openai.BadRequestError, name: str) -> bool:
    """Whether the error is about a field."""
    if isinstance(error.param, str) and error.param:
        return error.param.split(".")[0] == name
    # Such as "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    words = re.findall(r"\w+", str(error))
    return name in words and (name not in _NAMES or next(word for word in words if word in _NAMES) == name)
