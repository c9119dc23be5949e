"""Actions on a screen, as lines for xdotool.

Every word is checked here, and typed text goes to its stdin, so that nothing a policy writes ever becomes an option or
a command.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.rollouts.environments.arguments import checked, function, short
from openclaw_rl.rollouts.environments.interface import BadAction, Tool
from openclaw_rl.rollouts.tasks.task import Action

MOST_WIDTH, MOST_HEIGHT = 1920, 1200
MOST_TEXT = 2000
MOST_CHORDS = 20
MOST_OFF_KEYBOARD = 48  # characters: the number of unused keys

INSTRUCTIONS = """You work on a computer's screen through functions. Each answers with the windows and their widgets \
in words, and with a picture. Points are pixels from the left upper corner: click at those that are told. Type into a \
field only after a click on it. When the goal is reached, call submit."""

_MODIFIERS = {"ctrl": "ctrl", "control": "ctrl", "alt": "alt", "shift": "shift", "super": "super"}
_KEYS = {name.lower(): name for name in (
    "Return", "Tab", "Escape", "BackSpace", "Delete", "Insert", "Home", "End", "Page_Up", "Page_Down", "Up", "Down",
    "Left", "Right", "space", "Menu", *(f"F{i}" for i in range(1, 13)))}
_KEYS |= {"enter": "Return", "esc": "Escape", "del": "Delete", "pageup": "Page_Up", "pagedown": "Page_Down"}
_SIGNS = {"-": "minus", "+": "plus", "=": "equal", ",": "comma", ".": "period", "/": "slash", ";": "semicolon",
          "'": "apostrophe", "[": "bracketleft", "]": "bracketright", "\\": "backslash", "`": "grave",
          **{name: name for name in ("minus", "plus", "equal", "comma", "period", "slash", "semicolon")}}
KEYS_ALLOWED = ("keys such as 'Return', 'ctrl+s' or 'ctrl+a BackSpace': modifiers ctrl, alt, shift, super; then a "
                "letter, a digit, one of - = , . / ; ' [ ] \\ ` plus, F1 to F12 or " +
                ", ".join(sorted(set(_KEYS.values()) - {f"F{i}" for i in range(1, 13)})))


@dataclass(frozen=True, slots=True)
class Deed:
    """An action, ready to be performed."""

    commands: str = ""  #: for xdotool's stdin; empty for none
    typed: str = ""  #: for `xdotool type`
    done: bool = False  #: the policy declares the goal reached


def tools(width: int = MOST_WIDTH, height: int = MOST_HEIGHT) -> Sequence[Tool]:
    """Define the functions for a screen of this size in pixels."""
    x = {"type": "integer", "minimum": 0, "maximum": width - 1, "description": "pixels from the left"}
    y = {"type": "integer", "minimum": 0, "maximum": height - 1, "description": "pixels from the top"}
    return (
        function("screenshot", "Shows the screen."),
        function("click", "Clicks at a point.", ("x", "y"), x=x, y=y,
                 button={"type": "string", "enum": ["left", "middle", "right"], "default": "left"},
                 double={"type": "boolean", "default": False}),
        function("type", "Types text where the focus is; a line feed is the key Return.", ("text",),
                 text={"type": "string", "minLength": 1, "maxLength": MOST_TEXT}),
        function("keys", "Presses keys: 'Return', 'ctrl+s', or several one after the other: 'ctrl+a BackSpace'.",
                 ("keys",), keys={"type": "string", "minLength": 1, "maxLength": 300}),
        function("scroll", "Turns the mouse wheel at a point.", ("x", "y", "amount"), x=x, y=y,
                 amount={"type": "integer", "minimum": -50, "maximum": 50,
                         "description": "notches; down, or up when it is negative"}),
        function("windows", "Tells the windows and their widgets."),
        function("submit", "Says that the goal is reached."),
    )


def deed(action: Action, width: int, height: int) -> Deed:
    """Validate and prepare an action on a screen of this size.

    Raises:
        BadAction: there is no such action, or its arguments are not allowed.
    """
    found = checked(tools(width, height), action)
    if action.name == "click":
        return Deed(_click(found))
    if action.name == "scroll":
        button = 5 if found["amount"] > 0 else 4
        move = f"mousemove {found['x']} {found['y']} sleep 0.05"
        return Deed(f"{move} click --repeat {abs(found['amount'])} --delay 10 {button}" if found["amount"] else move)
    if action.name == "keys":
        return Deed(" ".join(f"key --clearmodifiers {chord}" for chord in _chords(found["keys"])))
    if action.name == "type":
        return Deed(typed=_typed(found["text"]))
    return Deed(done=action.name == "submit")


def _click(found: dict[str, Any]) -> str:
    button = {"left": 1, "middle": 2, "right": 3}[found["button"]]
    times = " --repeat 2 --delay 60" if found["double"] else ""
    return f"mousemove {found['x']} {found['y']} sleep 0.1 click{times} {button}"


def _typed(text: str) -> str:
    for at, char in enumerate(text):
        if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000:
            raise BadAction(f"`text` of `type`: character {at + 1}, {char!r}, is not allowed: printable characters, "
                            "line feeds and tabs; other keys are pressed with `keys`")
    if len(off_keyboard(text)) > MOST_OFF_KEYBOARD:
        unusual = len(off_keyboard(text))
        raise BadAction(f"`text` of `type`: {unusual} different characters that an American keyboard has "
                        f"not are not allowed: at most {MOST_OFF_KEYBOARD} in one call; type it in several")
    return text


def off_keyboard(text: str) -> list[str]:
    """Characters of a text that an American keyboard lacks, each once."""
    return sorted({char for char in text if ord(char) > 126})


def _chords(text: str) -> list[str]:
    words = text.split()
    if not 0 < len(words) <= MOST_CHORDS:
        raise BadAction(f"`keys` of `keys`: {len(words)} keys are not allowed: 1 to {MOST_CHORDS} in one call")
    return [_chord(word) for word in words]


def _chord(word: str) -> str:
    *modifiers, key = word.split("+") if not word.endswith("++") else [*word[:-2].split("+"), "+"]
    if word == "+":
        modifiers, key = [], "+"
    name = key.lower() if re.fullmatch(r"[A-Za-z0-9]", key) and modifiers else key
    if not re.fullmatch(r"[A-Za-z0-9]", key):
        name = _SIGNS.get(key, "") or _KEYS.get(key.lower(), "")
    if not name or any(modifier.lower() not in _MODIFIERS for modifier in modifiers):
        raise BadAction(f"`keys` of `keys`: {short(word)} is not allowed: {KEYS_ALLOWED}")
    return "+".join([*(_MODIFIERS[modifier.lower()] for modifier in modifiers), name])
