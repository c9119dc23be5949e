"""docs: the user documentation in the terminal."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out


@app.command(epilog="Example: openclaw-rl docs troubles-and-cures; openclaw-rl docs judges --lang zh")
def docs(
    page: Annotated[str | None, typer.Argument(help="Page name; README is the index.", show_default=False)] = None,
    lang: Annotated[Literal["en", "zh"] | None, typer.Option("--lang", help="Language; default: from LC_ALL, "
                                                                            "LC_MESSAGES and LANG.",
                                                             show_default=False)] = None,
) -> None:
    """Show a page of the user documentation, or list the pages."""
    from openclaw_rl.docs import PAGES, page_file, title

    language: Literal["en", "zh"] = lang or _language()
    if page is None:
        width = max(map(len, PAGES)) + 2
        for name in PAGES:
            out.print(f"{name:<{width}}{title(name, language)}", highlight=False, markup=False)
        return
    name = page.removesuffix(".md")
    if name not in (*PAGES, "README"):
        err.print(f"no page {page!r}; available: README, {', '.join(PAGES)}", soft_wrap=True, highlight=False,
                  markup=False)
        raise typer.Exit(2)
    text = page_file(name, language).read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-R")  # else the usual pager shows the colours' codes
    with out.pager(styles=True):
        out.print(Markdown(text))


def _language() -> Literal["en", "zh"]:
    """Return the terminal's language."""
    said = next(filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return "zh" if said.lower().startswith("zh") else "en"
