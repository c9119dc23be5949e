"""Access to a sandbox's files by programs inside, so that no link leads out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from openclaw_rl.rollouts.sandboxes.interface import WORK, Finished, SandboxError

_SECONDS = 30.0
_WRITE = ('case $1 in */*) mkdir -p -- "${1%/*}" || exit 1;; esac; '
          '[ ! -d "$1" ] || { echo "it is a folder"; exit 1; }; '
          'cat >"$1" && chmod "$2" -- "$1"')
_READ = ('[ -f "$1" ] || { [ -e "$1" ] && echo "it is no plain file" || echo "there is no such file"; exit 3; }; '
         'head -c "$2" -- "$1"')


class Runs(Protocol):
    """The part of a sandbox that is needed here."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 30.0,
                  most: int = 65536) -> Finished:
        """See Sandbox.run."""


async def write(sandbox: Runs, path: str, data: bytes, mode: int) -> None:
    """See Sandbox.write."""
    _check(path)
    finished = await sandbox.run(["sh", "-c", _WRITE, "write", path, f"{mode & 0o777:o}"], stdin=data,
                                 seconds=_SECONDS, most=2000)
    _raise(finished, path, "written")


async def read(sandbox: Runs, path: str, most: int) -> bytes:
    """See Sandbox.read."""
    _check(path)
    finished = await sandbox.run(["sh", "-c", _READ, "read", path, str(most)], seconds=_SECONDS, most=most + 2000)
    _raise(finished, path, "read")
    return finished.output[:most]


def _check(path: str) -> None:
    if not path or "\0" in path or path.endswith("/"):
        raise SandboxError(f"{path!r} is not the path of a file; a relative one is in {WORK}")


def _raise(finished: Finished, path: str, what: str) -> None:
    if finished.timed_out:
        raise SandboxError(f"{path} was not {what} in {_SECONDS:g} s")
    if finished.code:
        output = finished.output.decode("utf-8", "replace").strip()[-300:]
        raise SandboxError(f"{path} can't be {what}: {output or f'exit code {finished.code}'}")
