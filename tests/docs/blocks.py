"""Code in Markdown: fenced blocks, the commands in them, and what may differ between two languages."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.docs import PAGES, page_file

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SHELL = ("sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is that of its first line."""

    file: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        name = self.file.relative_to(ROOT) if ROOT in self.file.parents else self.file.name
        return f"{name}:{self.line}"


def pages(language: str) -> list[Path]:
    """The documentation in one language."""
    return [page_file(name, language) for name in ("README", *PAGES)]  # type: ignore[arg-type]


def documents() -> list[Path]:
    """What a reader may copy commands out of; the Chinese pages have the same code (test_pages.py)."""
    return [README, *pages("en")]


def blocks(file: Path, *languages: str) -> list[Block]:
    """Fenced blocks of these languages; of all without one."""
    found, fence, start, language, lines = [], "", 0, "", []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*(```+)\s*(\w*)\s*$", line)
        if not fence and mark:
            fence, language, start, lines = mark[1], mark[2], number + 1, []
        elif fence and line.strip() == fence:
            if not languages or language in languages:
                found.append(Block(file, start, language, "\n".join(lines)))
            fence = ""
        elif fence:
            lines.append(line)
    return found


def commands(block: Block) -> list[str]:
    """A shell block's commands as they were typed, each with its continuation lines; of `console` only what follows a
    prompt."""
    found: list[str] = []
    going_on = False
    for line in block.text.splitlines():
        if going_on:
            found[-1] += "\n" + line
        elif block.language == "console":
            if not line.startswith("$ "):
                continue
            found.append(line[2:])
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line)
        else:
            continue
        code, quote = without_comment(found[-1])
        going_on = bool(quote) or code.endswith("\\") or _opened(code)
    return found


def without_comment(command: str) -> tuple[str, str]:
    """A command without the remark behind it, and the quotation mark that is still open at its end."""
    quote = ""
    for i, char in enumerate(command):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (i == 0 or command[i - 1].isspace()):
            return command[:i].rstrip(), ""
    return command, quote


def _opened(text: str) -> bool:
    """A loop or the like goes on in the next line."""
    words = re.findall(r"(?:^|[;\s])(for|while|do|done|if|fi)(?=[;\s]|$)", text)
    return words.count("for") + words.count("while") > words.count("done") or words.count("if") > words.count("fi")


def calls(command: str, program: str) -> Iterator[list[str]]:
    """Arguments of each call of a program in a command, without redirections."""
    lexer = shlex.shlex(without_comment(command)[0].replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token in ("|", ";", "&&", "||", "&", "(", ")"):
            while words and re.fullmatch(r"\w+=.*", words[0], re.S):
                words.pop(0)
            if words and words[0] == program:
                yield list(_before_redirection(words[1:]))
            words = []
        else:
            words.append(token)


def _before_redirection(words: list[str]) -> Iterator[str]:
    for word in words:
        if word in ("<", ">", ">>", "<<<"):
            return
        yield word


def without_comments(text: str) -> str:
    """Code with what may be in another language left out."""
    return "\n".join(re.sub(r"(^|\s+)# .*$", "", line).rstrip() for line in text.splitlines())


def tracked(*suffixes: str) -> list[Path]:
    """Files of the repository with one of these endings."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [file for name in listed.split("\0") if name.endswith(suffixes) and (file := ROOT / name).is_file()]
