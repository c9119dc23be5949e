"""The documentation's pages: both languages, nothing stale, no alarm left out, and the command that shows them."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.commands import app
from openclaw_rl.docs import LANGUAGES, PAGES, Language, page_file, title
from openclaw_rl.docs.__main__ import generated
from openclaw_rl.docs.translations import Translations, digest
from tests.docs.blocks import README, ROOT, blocks, pages, without_comments


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_pages_are_there_and_no_others(language: Language) -> None:
    there = {file.name for file in page_file("README", language).parent.glob("*.md")}
    assert there == {f"{name}.md" for name in ("README", *PAGES)}
    front = page_file("README", language).read_text()
    assert [name for name in PAGES if f"({name}.md)" not in front] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_chinese_page_has_the_same_code_and_headings(name: str) -> None:
    def code(language: Language) -> list[tuple[str, str]]:
        return [(block.language, without_comments(block.text)) for block in blocks(page_file(name, language))]

    def levels(language: Language) -> list[str]:
        return re.findall(r"^#+(?= )", page_file(name, language).read_text(), re.M)

    assert code("zh") == code("en")
    assert levels("zh") == levels("en")


def test_the_chinese_readme_has_no_code_of_its_own() -> None:
    """All of it is in the main README or in an English page, where it is run."""
    known = "\n".join(without_comments(block.text) for file in (README, *pages("en")) for block in blocks(file))
    own = [line for block in blocks(page_file("README", "zh"), "sh", "python", "yaml")
           for line in without_comments(block.text).splitlines() if line.strip() and line not in known]
    assert not own


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["configuration", "commands"])
def test_a_generated_page_is_current_and_translated(name: str, language: Language) -> None:
    text, problems = generated(name, language)
    assert not problems, "\n".join(problems)
    assert page_file(name, language).read_text() == text, "run `python -m openclaw_rl.docs`"


def test_every_key_has_a_meaning() -> None:
    tables = page_file("configuration").read_text()
    assert not re.findall(r"^\| `\w+` \|.*\|\s*\|$", tables, re.M)
    assert "| `min_samples` | integer, ≥ 1 | `4` |" in tables


def test_a_changed_english_text_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = Translations("configuration", "zh")
    assert texts.text("mode", "Something else.") != "Something else."
    assert "translates another text" in texts.problems[0] and digest("Something else.") in texts.problems[0]
    assert texts.text("no.such.key", "New.") == "New."
    assert "no.such.key is missing" in texts.problems[1]
    assert "journal" not in Translations("configuration", "en").problems
    assert len(texts.unused()) > 100


def _alarms() -> set[str]:
    """Names of alarms in the sources: the first of a pair, in modules that make some."""
    found = set()
    for file in (ROOT / "openclaw_rl").rglob("*.py"):
        text = file.read_text()
        if not re.search(r"\bRaised\b|tuple\[str, str\]|_alarms\.report|yield \"", text) or "docs" in file.parts:
            continue
        pairs = (node.elts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Tuple) and len(node.elts) == 2)
        for name, sentence in pairs:
            if not isinstance(name, ast.Constant) or (isinstance(sentence, ast.Constant) and sentence.value):
                continue
            if re.fullmatch(r"[a-z]+(_[a-z]+)+|journal", str(name.value)):
                found.add(name.value)
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_alarm_is_explained(language: Language) -> None:
    table = page_file("troubles-and-cures", language).read_text().rpartition("\n## ")[2]
    told = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.M) for name in re.findall(r"`([a-z_]+)`", row)}
    readmes = set()
    for component in ("serving", "rollouts", "reward", "training"):
        text = (ROOT / "openclaw_rl" / component / "README.md").read_text()
        section = text[re.search(r"^#+ .*[Aa]larms$", text, re.M).start():]  # type: ignore[union-attr]
        for row in re.findall(r"^\| (`[a-z_`, .]+) \|", section.split("\n#")[0], re.M):
            readmes |= set(re.findall(r"`([a-z_]+)`", row))
    assert len(readmes) > 25
    assert readmes - told == set()
    assert _alarms() - told == set()


def test_the_command_lists_pages_and_shows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = CliRunner()
    listed = run.invoke(app, ["docs", "--lang", "en"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == list(PAGES)
    assert run.invoke(app, ["docs", "judges", "--lang", "zh"]).output == page_file("judges", "zh").read_text()
    assert run.invoke(app, ["docs", "judges.md", "--lang", "en"]).output == page_file("judges").read_text()
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert title("judges", "zh") in run.invoke(app, ["docs"]).output
    wrong = run.invoke(app, ["docs", "judge"])
    assert wrong.exit_code == 2 and "available: README, first-session" in wrong.output


def test_a_terminal_gets_it_formatted() -> None:
    main, other = pty.openpty()
    process = subprocess.Popen([str(Path(sys.executable).parent / "openclaw-rl"), "docs", "dashboard", "--lang", "en"],
                               stdout=other, stdin=subprocess.DEVNULL, env={"PAGER": "cat", "TERM": "xterm",
                                                                            "PATH": "/usr/bin:/bin"})
    os.close(other)
    output = b""
    try:
        while part := os.read(main, 65536):
            output += part
    except OSError:  # how a terminal tells its end
        pass
    os.close(main)
    assert process.wait(30) == 0
    assert b"Dashboard" in output and b"\x1b[" in output and b"](" not in output


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
def test_a_terminal_of_another_encoding_gets_what_it_can_show(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run([str(Path(sys.executable).parent / "openclaw-rl"), "docs", "algorithms", "--lang", "zh"],
                          env={"PYTHONIOENCODING": encoding, "PATH": "/usr/bin:/bin"}, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.decode(encoding)) == len(page_file("algorithms", "zh").read_text())


def test_pages_come_with_the_package() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert data["openclaw_rl.docs"] == ["en/*.md", "zh/*.md"]
