"""Interfaces of sandboxes and of the back ends that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from openclaw_rl.runtime.rejection import Rejection

#: The folder in a sandbox that may be written, of the size of its `disk`; processes begin there.
WORK = "/work"


class Unusable(StrEnum):
    """Why sandboxes, or environments in them, can't be made on this machine."""

    MISCONFIGURED = "misconfigured"
    IMAGE_ABSENT = "image_absent"  #: nobody has built or pulled it
    IMAGE_BROKEN = "image_broken"
    PROGRAM_MISSING = "program_missing"
    NO_ENGINE = "no_engine"  #: no container engine answers
    NOT_PERMITTED = "not_permitted"  #: the kernel forbids it
    HOST_ERROR = "host_error"
    UNREACHABLE = "unreachable"  #: a remote server does not answer
    FAULT = "fault"  #: of a plug-in


class SandboxError(Exception):
    """A sandbox can't be made, or can't be used any more (it was killed, ran out of memory, ...); the text says why
    and, where somebody can do something, what."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all processes of a sandbox together."""

    memory: int  #: bytes
    disk: int  #: bytes of the files that may be written
    processes: int


@dataclass(frozen=True, slots=True)
class Spec:
    """What a sandbox is to be."""

    limits: Limits
    image: str | None = None  #: None: this machine's own programs, read-only (bubblewrap)
    environment: Mapping[str, str] = field(default_factory=dict)  #: variables of all its processes


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that has ended, or was ended."""

    code: int | None  #: exit code; None when it was killed for its time or its output
    output: bytes  #: stdout and stderr as they came
    truncated: bool = False  #: there was more; the end is left out
    timed_out: bool = False


class Process(Protocol):
    """A process in a sandbox. stdout and stderr come as one."""

    @property
    def code(self) -> int | None:
        """Its exit code, 128 + N after signal N; None while it runs, and when the sandbox ended with it."""
        ...

    async def wait(self) -> int | None:
        """Wait until it has ended: its `code`."""

    async def write(self, data: bytes) -> None:
        """Write to its stdin.

        Raises:
            SandboxError: it has ended.
        """

    def end_input(self) -> None:
        """Nothing more comes on its stdin."""

    async def read(self, most: int = 65536) -> bytes:
        """What it has written, as soon as there is something; empty when it, and all that it left behind with its
        stdout, has ended. What isn't read waits: the process is held up, and nothing grows."""

    async def kill(self) -> None:
        """End it and what it has started; no error when it has ended."""

    def close(self) -> None:
        """Give back its pipes; what still runs is not ended. Of a process that was killed it's done already."""


class Sandbox(Protocol):
    """One sandbox. Closed once; then, or when it died, every method but `close` raises SandboxError."""

    @property
    def problem(self) -> str:
        """Why it can't be used any more; empty while it can."""
        ...

    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> Process:
        """Start a process that lives on beside others."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None,
                  folder: str = WORK, seconds: float = 30.0, most: int = 65536) -> Finished:
        """Run a process to its end.

        Args:
            seconds: then it is killed. When it has ended, what it left in the background with its stdout is listened
                to for a second at most.
            most: bytes of output that are kept.
        """

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Make a file, and the folders that it is in. A relative path is one in WORK.

        Raises:
            SandboxError: it can't be written; the sandbox may live on.
        """

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        """The first `most` bytes of a file.

        Raises:
            SandboxError: it can't be read; the sandbox may live on.
        """

    async def end_all(self) -> None:
        """End all its processes, also what they have left in the background; the sandbox lives on."""

    async def pause(self) -> None:
        """Stop all its processes, also what they have left in the background; those started afterwards run."""

    async def resume(self) -> None:
        """Let all its processes go on."""

    async def killed(self) -> int:
        """Processes that the limit of memory has ended so far; 0 where nobody counts."""

    async def close(self) -> None:
        """End all its processes and delete its files; any number of times, never raises."""


class Backend(Protocol):
    """Makes sandboxes."""

    @property
    def name(self) -> str:
        """`bubblewrap`, `docker`, or `auto` while none was chosen."""
        ...

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        """Check whether such a sandbox can be made; the message of a rejection says how to repair it."""

    async def make(self, spec: Spec) -> Sandbox:
        """A new sandbox.

        Raises:
            SandboxError: it can't be made.
        """
