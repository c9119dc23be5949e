"""Output of sandboxes as text that is safe to show."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain(data: bytes) -> str:
    """Decode bytes: invalid UTF-8 and control characters except tabs and line feeds become U+FFFD, CR LF becomes LF."""
    return _CONTROLS.sub("\ufffd", data.decode("utf-8", "replace").replace("\r\n", "\n"))


def ending(data: bytes, most: int = 500) -> str:
    """The end of the output, for an error message."""
    return plain(data).strip()[-most:]
