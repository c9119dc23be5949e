"""Recordings of a terminal in asciinema's format: https://docs.asciinema.org/manual/asciicast/v2/"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Cast:
    """What a terminal showed.

    Attributes:
        events: seconds since the start, and what was written then.
    """

    width: int
    height: int
    title: str = ""
    events: list[tuple[float, str]] = field(default_factory=list)

    def cut(self, pause: float, piece: float) -> Cast:
        """The same with less waiting: a wait of a second and more takes `pause` seconds at most, a shorter one, such as
        that for the next piece of an answer, `piece`. Nothing else is changed."""
        made, now, last = Cast(self.width, self.height, self.title), 0.0, 0.0
        for at, text in self.events:
            wait = at - last
            now += min(wait, pause if wait >= 1 else piece)
            made.events.append((now, text))
            last = at
        return made

    def write(self, file: Path) -> None:
        header = {"version": 2, "width": self.width, "height": self.height, "title": self.title}
        lines = [json.dumps(header), *(json.dumps([round(at, 3), "o", text], ensure_ascii=False)
                                       for at, text in self.events)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(file: Path) -> Cast:
    """Read a recording.

    Raises:
        ValueError: it is none of version 2.
    """
    first, *rest = file.read_text(encoding="utf-8").splitlines()
    header = json.loads(first)
    if header.get("version") != 2:
        raise ValueError(f"{file}: version {header.get('version')!r} of the format; 2 is read")
    events = [json.loads(line) for line in rest]
    return Cast(header["width"], header["height"], header.get("title", ""),
                [(float(at), text) for at, kind, text in events if kind == "o"])
