"""Translations of the dashboard: locale/LANGUAGE.yaml, flat files of `key: text`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

#: Language by its tag, in its own words. The first one is what a browser with none of them gets.
LANGUAGES = {"en": "English", "zh": "中文"}

_FOLDER = Path(__file__).parent / "locale"


@cache
def texts(language: str) -> dict[str, str]:
    """All sentences of a language: those of LANGUAGE.yaml and of every *.LANGUAGE.yaml beside it.

    Raises:
        ValueError: a key is there twice.
    """
    found: dict[str, str] = {}
    for file in sorted([_FOLDER / f"{language}.yaml", *_FOLDER.glob(f"*.{language}.yaml")]):
        for key, text in (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).items():
            if key in found:
                raise ValueError(f"{file}: {key} is there twice")
            found[key] = str(text)
    return found


def language() -> str:
    """The language of the page that is being built or updated."""
    from nicegui import ui

    try:
        return str(ui.context.client.request.state.language)
    except (RuntimeError, AttributeError):  # outside of any page
        return next(iter(LANGUAGES))


def t(key: str, /, **values: Any) -> str:
    """The sentence `key` in the page's language, its {names} replaced by the values.

    An unknown key is shown as it is, so that a missing sentence never breaks a page.
    """
    text = texts(language()).get(key) or texts(next(iter(LANGUAGES))).get(key) or key
    try:
        return text.format(**values) if values else text
    except (KeyError, IndexError, ValueError):
        return text


def chosen(cookie: str, accept: str) -> str:
    """The language of a request.

    Args:
        cookie: what the reader chose before; may be anything.
        accept: the header Accept-Language.
    """
    if cookie in LANGUAGES:
        return cookie
    wanted: list[tuple[float, str]] = []
    for part in accept[:1000].split(","):
        tag, _, more = part.strip().partition(";")
        try:
            weight = float(more.strip().removeprefix("q=")) if more else 1.0
        except ValueError:
            continue
        wanted.append((-weight, tag.lower().split("-")[0]))
    return next((tag for _, tag in sorted(wanted, key=lambda w: w[0]) if tag in LANGUAGES), next(iter(LANGUAGES)))
