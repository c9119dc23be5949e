"""The user documentation: Markdown pages in `en` and `zh`, under the same names in both.

`configuration` and `commands` are generated, from the configuration's models and from the command line's own help
(`python -m openclaw_rl.docs`); all others are written by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

#: Pages by name, in the order in which one needs them. README is each language's map of them.
PAGES = ("first-session", "commands", "configuration", "models", "sessions-and-classes", "judges", "algorithms",
         "versions-and-rollback", "traces", "dashboard", "environments", "agent-frameworks", "http-api",
         "other-languages", "several-hosts", "security", "troubles-and-cures")


def page_file(name: str, language: Language = "en") -> Path:
    """Return the path of a page, which need not exist."""
    return FOLDER / language / f"{name}.md"


def title(name: str, language: Language = "en") -> str:
    """A page's heading."""
    first, _, _ = page_file(name, language).read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("# ").strip()
