"""Links between the repository's Markdown files lead somewhere."""

from __future__ import annotations

import functools
import re
import urllib.parse
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, tracked


def _prose(file: Path) -> str:
    """Markdown without its code."""
    text = re.sub(r"^(\s*)(```+).*?^\s*\2\s*$", "", file.read_text(encoding="utf-8"), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


@functools.cache
def anchors(file: Path) -> set[str]:
    """What `#...` may name in a page, as git hosts make it of headings."""
    found: dict[str, int] = {}
    text = re.sub(r"^(\s*)(```+).*?^\s*\2\s*$", "", file.read_text(encoding="utf-8"), flags=re.S | re.M)
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} +(.*?)\s*#*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(slug, -1) + 1
        found[slug] = count
        names.add(f"{slug}-{count}" if count else slug)
    return names


def problem(file: Path, target: str) -> str:
    """What is wrong with a link; empty when nothing is."""
    path, _, anchor = urllib.parse.unquote(target).partition("#")
    there = (file.parent / path).resolve() if path else file
    if not there.exists():
        return f"{target}: there is no {there}"
    if ROOT not in [there, *there.parents]:
        return f"{target}: is outside of the repository"
    if anchor and there.suffix == ".md" and anchor not in anchors(there):
        return f"{target}: no heading makes #{anchor}; there are {', '.join(sorted(anchors(there)))}"
    return ""


@pytest.mark.parametrize("file", tracked(".md"), ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", _prose(file))
    wrong = [text for target in targets if not re.match(r"[a-z][a-z+.-]*:", target) and (text := problem(file, target))]
    assert not wrong, "\n".join(wrong)


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    readme = ROOT / "README.md"
    assert "there is no" in problem(readme, "nowhere/README.md")
    assert "no heading makes" in problem(readme, "openclaw_rl/reward/README.md#nothing")
    assert not problem(readme, "openclaw_rl/reward/README.md#alarms")
