"""Interfaces of sandboxes and of the back ends that make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from openclaw_rl.runtime.rejection import Rejection

#: The writable folder of a sandbox, of the size of its `disk`; processes start there.
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
    """A sandbox can't be made, or became unusable (killed, out of memory, ...); the text says why and, if possible,
    how to repair it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of all processes of a sandbox together."""

    memory: int  #: bytes
    disk: int  #: bytes of written files
    processes: int
    cpus: float = 1.0  #: CPU time, in cores


@dataclass(frozen=True, slots=True)
class Spec:
    """Specification of a sandbox."""

    limits: Limits
    image: str | None = None  #: None: this machine's own programs, read-only (bubblewrap)
    environment: Mapping[str, str] = field(default_factory=dict)  #: environment variables of all its processes


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a process that has ended, or was killed."""

    code: int | None  #: exit code; None if it was killed for its time or its output
    output: bytes  #: stdout and stderr, interleaved
    truncated: bool = False  #: there was more output; its end is left out
    timed_out: bool = False


class Process(Protocol):
    """A process in a sandbox. stdout and stderr are merged."""

    @property
    def code(self) -> int | None:
        """Exit code, 128 + N after signal N; None while it runs, or if the sandbox ended with it."""
        ...

    async def wait(self) -> int | None:
        """Wait for its end; returns its `code`."""

    async def write(self, data: bytes) -> None:
        """Write to its stdin.

        Raises:
            SandboxError: it has ended.
        """

    def end_input(self) -> None:
        """Close its stdin."""

    async def read(self, most: int = 65536) -> bytes:
        """Read its output as soon as there is some; empty once it, and everything that inherited its stdout, has ended.
        Unread output blocks the process, so that nothing grows."""

    async def kill(self) -> None:
        """Kill it and what it has started; no error if it has ended."""

    def close(self) -> None:
        """Close its pipes, without ending what still runs. Implied by `kill`."""


class Sandbox(Protocol):
    """A sandbox. Once it is closed or has died, every method but `close` raises SandboxError."""

    @property
    def problem(self) -> str:
        """Why it became unusable; empty while it works."""
        ...

    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> Process:
        """Start a process beside others."""

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None,
                  folder: str = WORK, seconds: float = 30.0, most: int = 65536) -> Finished:
        """Run a process to its end.

        Args:
            seconds: limit after which it is killed. After its end, output of background processes that inherited its
                stdout is read for a second at most.
            most: bytes of output to keep.
        """

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file, and make its folders. A relative path is one in WORK.

        Raises:
            SandboxError: it can't be written; the sandbox may still be usable.
        """

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        """Read the first `most` bytes of a file.

        Raises:
            SandboxError: it can't be read; the sandbox may still be usable.
        """

    async def end_all(self) -> None:
        """Kill all its processes, including background ones; the sandbox stays usable."""

    async def pause(self) -> None:
        """Stop all its processes, including background ones; those started afterwards run."""

    async def resume(self) -> None:
        """Continue all its processes."""

    async def killed(self) -> int:
        """Number of processes killed by the memory limit so far; 0 if unknown."""

    async def close(self) -> None:
        """End all its processes and delete its files; any number of times, never raises."""


class Backend(Protocol):
    """A back end that makes sandboxes."""

    @property
    def name(self) -> str:
        """`bubblewrap`, `docker`, or `auto` until one is chosen."""
        ...

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        """Check whether such a sandbox can be made; the message of a rejection says how to repair it."""

    async def make(self, spec: Spec) -> Sandbox:
        """Make a sandbox.

        Raises:
            SandboxError: it can't be made.
        """
