"""The process of the code under test: imports and calls what `runner.py` asks for, and tells the results.

It runs in a sandbox, as `python3 -I -B`, with a pair of pipes as its stdin and stdout. Nothing in it decides whether a
test passes, so whatever the code does here (patch unittest, end the process, write to the pipes), it changes only the
values that its own functions return.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.rollouts.environments.swe.remote import Output, Peer
else:  # beside this file
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from remote import Output, Peer

    del sys.path[0], sys.modules["remote"]


class _Everything:
    """The tests may do anything with the code's objects."""

    def copied(self, value: Any) -> bool:
        return True

    def validate(self, operation: str, target: Any, arguments: list[Any]) -> str:
        return ""


def main() -> None:
    """Serve until the runner ends."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    peer = Peer(reader, writer, _Everything())
    sys.stdout = sys.__stdout__ = Output(peer.written, "out")  # type: ignore[assignment, misc]
    sys.stderr = sys.__stderr__ = Output(peer.written, "err")  # type: ignore[assignment, misc]
    os.chdir(sys.argv[1])
    # At the end, so that no file there shadows one of Python's library.
    sys.path.append(sys.argv[1])
    sys.argv[:] = [""]
    peer.serve()
    os._exit(0)  # whatever threads the code left running


if __name__ == "__main__":
    main()
