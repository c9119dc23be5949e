"""Whether sandboxes have the programs that a kind needs."""

from __future__ import annotations

import asyncio
import time

from openclaw_rl.rollouts.sandboxes.interface import Backend, SandboxError, Spec

_AGAIN = 30.0  # seconds after which a machine without the programs is looked at again


class Programs:
    """Looks once, and again from time to time while something is missing.

    Args:
        missing: shell text that prints the names of what is not there.
        install: how it comes.
    """

    def __init__(self, backend: Backend, spec: Spec, missing: str, install: str) -> None:
        self._backend, self._spec, self._script, self._install = backend, spec, missing, install
        self._found: tuple[float, str] | None = None  # when, and what is missing
        self._looking = asyncio.Lock()

    async def problem(self) -> str:
        """Why no sandbox can be made that has them; empty when one can."""
        problem = await self._backend.problem(self._spec)
        if problem:
            return problem
        async with self._looking:
            if self._found is None or (self._found[1] and time.monotonic() - self._found[0] > _AGAIN):
                self._found = time.monotonic(), await self._missing()
        return self._found[1]

    async def _missing(self) -> str:
        try:
            sandbox = await self._backend.make(self._spec)
            try:
                said = await sandbox.run(["sh", "-c", self._script])
            finally:
                await sandbox.close()
        except SandboxError as error:
            return str(error)
        names = said.output.decode("utf-8", "replace").split()
        return f"its sandboxes have no {', '.join(names)}; {self._install}" if names or said.code else ""
