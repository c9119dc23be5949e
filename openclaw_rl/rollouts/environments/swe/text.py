"""Display and editing of a repository's texts."""

from __future__ import annotations

from openclaw_rl.rollouts.environments.plain_text import plain

_HEAD, _TAIL = 4000, 8000  # characters of an output that is cut
_WIDEST = 500  # characters of a line
_MOST = 16_000  # characters of lines shown
_MOST_TOLD = 10


def cut(text: str) -> tuple[str, bool]:
    """Cut the middle out of a long output; returns the rest, and whether it was cut."""
    if len(text) <= _HEAD + _TAIL:
        return text, False
    left = len(text) - _HEAD - _TAIL
    return f"{text[:_HEAD]}\n[... {left:,} characters are left out ...]\n{text[-_TAIL:]}", True


def numbered(text: str, start: int, lines: int) -> tuple[str, bool]:
    """Numbered lines of a text, and whether there are more.

    Args:
        start: first line, from 1.
        lines: limit.
    """
    every = text.split("\n")
    if every[-1] == "":
        every.pop()
    if not every:
        return "(an empty file)", False
    if start > len(every):
        return f"(the file has {len(every)} lines)", False
    shown: list[str] = []
    size = 0
    for number, line in enumerate(every[start - 1:start - 1 + lines], start):
        row = f"{number:6}  {line if len(line) <= _WIDEST else line[:_WIDEST] + ' [cut]'}"
        size += len(row) + 1
        if size > _MOST:
            break
        shown.append(row)
    after = start - 1 + len(shown)
    if after < len(every):
        shown.append(f"(lines {start} to {after} of {len(every)})")
    return "\n".join(shown), after < len(every)


def edited(text: str, old: str, new: str) -> tuple[str, str]:
    """Replace `old`, which must occur exactly once; returns the new text, or an error.

    A file with CR LF line ends is edited as if it had LF, and keeps its line ends.
    """
    windows = "\r\n" in text and "\r\n" not in old
    if windows:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    found = []
    at = text.find(old)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    if len(found) == 1:
        return text.replace(old, new, 1), ""
    if not found:
        return "", "`old` is not" + _near(text, old)
    told = ", ".join(map(str, found[:_MOST_TOLD])) + (", ..." if len(found) > _MOST_TOLD else "")
    return "", f"`old` must be there exactly once, and is {len(found)} times, in lines {told}: give more of what is " \
               "around the one that is meant,"


def region(old: str, new: str) -> str:
    """The lines of `new` that differ from `old`, numbered, with three lines of context."""
    before, after = old.splitlines(), new.splitlines()
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    same_end = 0
    while same_end < min(len(before), len(after)) - same and before[-1 - same_end] == after[-1 - same_end]:
        same_end += 1
    first = max(same - 3, 0)
    return numbered(plain(new.encode()), first + 1, max(len(after) - same_end + 3 - first, 1))[0]


def _near(text: str, old: str) -> str:
    """A hint where the first line of `old` occurs, apart from spaces."""
    wanted = old.strip().split("\n")[0].strip()
    lines = [number for number, line in enumerate(text.split("\n"), 1) if wanted and wanted in line]
    return f" (line {lines[0]} has its first line, but spaces or what follows differ)" if lines else ""
