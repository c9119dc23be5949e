"""An animated SVG of a recording: every state of every line is a text that is seen for its time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import pyte

from tools.recording.cast import Cast

#: Size of a character cell and of the margin, pixels of the picture.
_CELL, _LINE, _MARGIN = 8.43, 19.0, 14.0
#: Seconds for which the end stays before it begins anew.
_STAY = 6.0
#: States of a line that last shorter are left out, seconds: nobody sees them.
_SHORTEST = 0.12
_COLOURS = {"default": "#d8dee9", "red": "#ff7b72", "green": "#7ee787", "brightblack": "#8b949e", "cyan": "#a5d6ff",
            "typed": "#79c0ff"}
_PROMPTS = ("$ ", "you> ")


@dataclass
class Line:
    """What a row of the terminal shows from `begin` to `end`, in seconds; None: to the end of the recording."""

    row: int
    text: str
    colour: str
    begin: float
    end: float | None = None


def svg(cast: Cast) -> str:
    """Draw a recording. It repeats, and a viewer that does not animate shows its end."""
    lines, scrolls = _lines(cast)
    moves = [(at, f"0 {-rows * _LINE:.0f}") for at, rows in scrolls]
    length = cast.events[-1][0] + _STAY
    width, height = cast.width * _CELL + 2 * _MARGIN, cast.height * _LINE + 2 * _MARGIN
    size = f'{width:.0f}" height="{height:.0f}'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(cast.title)}</title>",
        "<style>text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}" + "".join(f".{name}{{fill:{colour}}}" for name, colour in _COLOURS.items()) + "</style>",
        f'<rect width="{size}" rx="8" fill="#0d1117"/>',
        f'<svg x="{_MARGIN}" y="{_MARGIN}" width="{cast.width * _CELL:.0f}" height="{cast.height * _LINE:.0f}">',
        f'<g transform="translate({moves[-1][1]})">' + _animated(
            'animateTransform attributeName="transform" type="translate"', moves, length),
        *(_drawn(line, length) for line in lines), "</g></svg></svg>", ""])


def _lines(cast: Cast) -> tuple[list[Line], list[tuple[float, int]]]:
    """All states of all lines, and the rows that are scrolled out, by time."""
    screen = pyte.Screen(cast.width, 2000)  # so many rows that it never scrolls: that is done here
    stream = pyte.Stream(screen)
    now: dict[int, Line] = {}
    done: list[Line] = []
    scrolls = [(0.0, 0)]
    for at, text in _merged(cast.events):
        screen.dirty.clear()
        stream.feed(text.replace("\x1b[2m", "\x1b[90m"))  # pyte knows grey, but not dim
        for row in screen.dirty:
            shown = "".join(screen.buffer[row][column].data for column in range(cast.width)).rstrip()
            colour = _colour(shown, screen.buffer[row][0].fg)
            if row in now and (now[row].text, now[row].colour) == (shown, colour):
                continue
            if row in now:
                done.append(now.pop(row))
                done[-1].end = at
            if shown:
                now[row] = Line(row, shown, colour, at)
        if (out := max(screen.cursor.y - cast.height + 1, 0)) != scrolls[-1][1]:
            scrolls.append((at, out))
    return [*done, *now.values()], scrolls


def _merged(events: list[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Events that follow too quickly to be told apart, as one."""
    begin, text = 0.0, ""
    for at, piece in events:
        if text and at - begin >= _SHORTEST:
            yield begin, text
            text = ""
        begin, text = (begin, text + piece) if text else (at, piece)
    yield begin, text


def _colour(shown: str, first: str) -> str:
    """The first cell's, which is the whole line's: a conversation has no others."""
    if f"{shown} ".startswith(_PROMPTS):
        return "typed"
    return first if first in _COLOURS else "default"


def _drawn(line: Line, length: float) -> str:
    """A text that is hidden before and after its time. It is as long as in the terminal, whatever the font."""
    states = [(0.0, "hidden"), (line.begin, "visible")] if line.begin else [(0.0, "visible")]
    if line.end is not None:
        states.append((line.end, "hidden"))
    still = ' visibility="hidden"' if line.end is not None else ""
    return (f'<text class="{line.colour}" y="{line.row * _LINE + 14:.0f}" textLength="{len(line.text) * _CELL:.1f}"'
            f'{still}>{escape(line.text)}' + (_animated('animate attributeName="visibility"', states, length)
                                              if len(states) > 1 else "") + "</text>")


def _animated(what: str, states: list[tuple[float, str]], length: float) -> str:
    """An element that takes each value at its second, again and again."""
    values = ";".join(value for _, value in states)
    times = ";".join(f"{at / length:.5g}" for at, _ in states)
    return (f'<{what} calcMode="discrete" values="{values}" keyTimes="{times}" dur="{length:.2f}s" '
            'repeatCount="indefinite"/>')
