"""Parts of a text between tags, in time that grows with the text's length whatever the text is.

A pattern such as `<(a|b)>.*?</\\1>` does the same, but searches the rest of the text once more for every opening tag
that has no closing one: 256 kB of those cost it 15 s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator


class Tagged:
    """Finds the parts of texts that stand between two tags.

    Args:
        names: of the tags, without angle brackets.
        attributes: pattern of what may stand between a name and its bracket, of bounded length.
        ignore_case: `</Chat>` closes `<chat>`.
        line_end: the end of a line behind a part belongs to it.
    """

    def __init__(self, *names: str, attributes: str = "", ignore_case: bool = False, line_end: bool = False) -> None:
        flags = re.IGNORECASE if ignore_case else re.NOFLAG
        self._opening = re.compile(rf"<({'|'.join(map(re.escape, names))})\b{attributes}>", flags)
        self._closing = {name: re.compile(re.escape(f"</{name}>") + "\n?" * line_end, flags) for name in names}
        self._names = {name.lower() if ignore_case else name: name for name in names}
        self._ignore_case = ignore_case

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Iterate over the places of such parts, tags included: from an opening tag to the first closing one of its
        name behind it. An opening tag that is never closed is text like any other."""
        unclosed: set[str] = set()  # names of which no closing tag follows
        at = 0
        while (match := self._opening.search(text, at)) is not None:
            name = self._names[match[1].lower() if self._ignore_case else match[1]]
            closing = None if name in unclosed else self._closing[name].search(text, match.end())
            if closing is None:
                unclosed.add(name)
                at = match.start() + 1
            else:
                at = closing.end()
                yield match.start(), at

    def remove(self, text: str, instead: str = "") -> str:
        """Put `instead` in the place of each such part."""
        pieces, at = [], 0
        for begin, end in self.spans(text):
            pieces += [text[at:begin], instead]
            at = end
        return "".join([*pieces, text[at:]])
