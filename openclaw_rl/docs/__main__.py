"""Regenerate the generated parts of pages: python -m openclaw_rl.docs [--check]

What stands before the mark in a page is written by hand and stays. Texts that lack a translation, or have one of
another English text than there is now, are told with the digest that their entry in zh/PAGE.yaml has to have.
"""

from __future__ import annotations

import sys

from openclaw_rl.docs import LANGUAGES, Language, commands, configuration, page_file

_MAKERS = {"configuration": configuration.tables, "commands": commands.tables}
MARK = "<!-- From here on generated: python -m openclaw_rl.docs -->"


def generated(name: str, language: Language) -> tuple[str, list[str]]:
    """Return a page's expected text, and problems of its translation."""
    head, _, _ = page_file(name, language).read_text(encoding="utf-8").partition(MARK)
    tables, problems = _MAKERS[name](language)
    return f"{head.rstrip()}\n\n{MARK}\n\n{tables.rstrip()}\n", problems


def main() -> int:
    """Write the pages, or with --check compare only. Returns 1 if a page or a translation is stale."""
    check = "--check" in sys.argv[1:]
    failed = False
    for name in _MAKERS:
        for language in LANGUAGES:
            text, problems = generated(name, language)
            file = page_file(name, language)
            stale = file.read_text(encoding="utf-8") != text
            if stale and check:
                print(f"{file} is not what `python -m openclaw_rl.docs` makes")
            elif stale:
                file.write_text(text, encoding="utf-8")
                print(f"wrote {file}")
            print("\n".join(problems), end="\n" if problems else "")
            failed |= bool(problems) or (stale and check)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
