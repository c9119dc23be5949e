"""Bytes out of a sandbox as text that can be shown anywhere."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain(data: bytes) -> str:
    """What is no UTF-8, and control characters but tabs and line feeds, become U+FFFD; CR LF becomes LF."""
    return _CONTROLS.sub("\ufffd", data.decode("utf-8", "replace").replace("\r\n", "\n"))


def ending(data: bytes, most: int = 500) -> str:
    """The end of it, for an error."""
    return plain(data).strip()[-most:]
