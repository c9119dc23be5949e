"""Operations of a sandbox that need only its `start`, shared by all back ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from openclaw_rl.rollouts.sandboxes import files
from openclaw_rl.rollouts.sandboxes.interface import WORK, Finished, Process
from openclaw_rl.rollouts.sandboxes.running import run


class BaseSandbox(ABC):
    """Runs, writes and reads by means of processes started inside; see Sandbox."""

    @abstractmethod
    async def start(self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None,
                    folder: str = WORK) -> Process: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", environment: Mapping[str, str] | None = None,
                  folder: str = WORK, seconds: float = 30.0, most: int = 65536) -> Finished:
        process = await self.start(argv, environment=environment, folder=folder)
        return await run(process, stdin=stdin, seconds=seconds, most=most)

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        await files.write(self, path, data, mode)

    async def read(self, path: str, most: int = 1 << 20) -> bytes:
        return await files.read(self, path, most)
