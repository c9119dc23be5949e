"""A policy version as SGLang's `weight_version`, which is a text."""

from __future__ import annotations


def tag(version: int) -> str:
    """The text for a version."""
    return str(version)


def parse(text: object) -> int:
    """The version of a text; -1 when it is none of ours, such as SGLang's `default`."""
    return int(text) if isinstance(text, str) and text.isdecimal() else -1
