"""Runs a page's shell commands, one after the other in one bash, as somebody would who reads it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.docs.blocks import ROOT, SHELL, Block, blocks, commands
from tests.docs.commands import OWN_HOME, not_run, runnable
from tests.support import quick_cli

_MARK = "\x1e"

_OPENCLAW_RL = """\
#!/usr/bin/env bash
# What changes keys and certificates, or stops the mesh, has a home of its own.
case "${{1-}}" in
  {own_home}) export OPENCLAW_RL_HOME={own} ;;
esac
case "${{1-}}${{DOCS_REAL-}}" in  # what starts processes or runs until it is ended is started itself
  local-start | stop-all | *real) program="{real}" ;;
  *) program="{quick}" ;;
esac
"$program" "$@" 2>&1 | tee "$DOCS_LAST"
code=${{PIPESTATUS[0]}}
case "${{1-}} $code" in
  "status 1") code=0 ;;  # an alarm that another test caused
  "local-start 1") grep -q "running already" "$DOCS_LAST" && code=0 ;;
  "train-now 1") grep -qi "no sample" "$DOCS_LAST" && code=0 ;;
esac
exit "$code"
"""

_FIRST_LINE = """\
#!{python}
# Runs a command until it has said its first line, then ends it as Ctrl-C does.
import os, signal, subprocess, sys, threading
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, start_new_session=True,
                           env={{**os.environ, "DOCS_REAL": "real"}})
guard = threading.Timer(60, os.killpg, (process.pid, signal.SIGKILL))
guard.start()
line = process.stdout.readline()
print(line, end="")
if process.poll() is None:
    os.killpg(process.pid, signal.SIGINT)
process.communicate()
guard.cancel()
sys.exit(0 if line.strip() else 1)
"""


class Reader:
    """Somebody who copies commands out of pages.

    Args:
        work: folder to be in.
        home: of the mesh.
        known: texts of the pages and what they are in this mesh.
        path: folders of further programs.
    """

    def __init__(self, work: Path, home: Path, known: Mapping[str, str], path: list[str]) -> None:
        self._work, self._known = work, known
        self._done: set[str] = set()
        self._bin = work / "bin"
        self._bin.mkdir()
        self._path = os.pathsep.join([str(self._bin), *path, str(Path(sys.executable).parent), os.environ["PATH"]])
        self._home = home
        for name in ("tools", "servers", "clients", "protos", "openclaw_rl", "tests"):
            (work / name).symlink_to(ROOT / name)
        (work / "question.txt").write_text("What is a heron?\n")

    def read(self, page: Path) -> list[str]:
        """Run a page's commands, but for those that were run before. Returns what went wrong."""
        todo: list[tuple[Block | None, str]] = [
            (block, runnable(command, self._known)) for block in blocks(page, *SHELL) for command in commands(block)
            if not not_run(command)]
        own = self._work / f"home-{page.parent.name}-{page.stem}"
        self._programs(own)
        uses = {name for _, command in todo for name in re.findall(r"openclaw-rl (init|keys|certs)\b", command)}
        if uses and "init" not in uses:
            todo = [(None, "openclaw-rl init"), *todo]
        todo = [(block, command) for block, command in todo
                if command not in self._done or re.search(rf"openclaw-rl ({'|'.join(OWN_HOME)})\b", command)]
        script = ["set -uo pipefail"]
        for number, (_, command) in enumerate(todo):
            script += [command, f'printf "{_MARK}%d %d{_MARK}\\n" {number} $?']
        done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=self._work, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=400, check=False,
                              env={**os.environ, "PATH": self._path, "OPENCLAW_RL_HOME": str(self._home),
                                   "DOCS_LAST": str(own) + ".last", "OPENCLAW_RL_API_KEY": "", "PAGER": "cat"})
        return list(self._wrong(todo, done.stdout))

    def _wrong(self, todo: list[tuple[Block | None, str]], output: str) -> Iterator[str]:
        parts = re.split(rf"{_MARK}(\d+) (\d+){_MARK}\n", output)
        told = {int(number): (int(code), text) for text, number, code in zip(parts[::3], parts[1::3], parts[2::3],
                                                                            strict=False)}
        for number, (block, command) in enumerate(todo):
            code, text = told.get(number, (None, parts[-1]))
            if code == 0:
                self._done.add(command)
            else:
                yield f"{block}: {command}\nended with {code}: {text[-2000:]}"

    def _programs(self, own: Path) -> None:
        real = Path(sys.executable).parent / "openclaw-rl"
        for name, text in (("openclaw-rl", _OPENCLAW_RL.format(own_home="|".join(OWN_HOME), own=shlex.quote(str(own)),
                                                               real=real, quick=quick_cli.program())),
                           ("first_line", _FIRST_LINE.format(python=sys.executable))):
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)
