"""Check that sandboxes have the programs that an environment type needs."""

from __future__ import annotations

import asyncio
import time

from openclaw_rl.rollouts.sandboxes.interface import Backend, SandboxError, Spec, Unusable
from openclaw_rl.runtime.rejection import Rejection

_RECHECK = 30.0  # seconds after which a machine that lacks programs is checked again


class Programs:
    """Checks once, and again from time to time while something is missing.

    Args:
        missing: shell text that prints the names of missing programs.
        install: how to install them.
    """

    def __init__(self, backend: Backend, spec: Spec, missing: str, install: str) -> None:
        self._backend, self._spec, self._script, self._install = backend, spec, missing, install
        self._checked: tuple[float, Rejection[Unusable] | None] | None = None  # when, and the result
        self._lock = asyncio.Lock()

    async def validate(self) -> Rejection[Unusable] | None:
        """Check whether a sandbox with the programs can be made."""
        if rejection := await self._backend.validate(self._spec):
            return rejection
        async with self._lock:
            if self._checked is None or (self._checked[1] and time.monotonic() - self._checked[0] > _RECHECK):
                self._checked = time.monotonic(), await self._look()
        return self._checked[1]

    async def _look(self) -> Rejection[Unusable] | None:
        try:
            sandbox = await self._backend.make(self._spec)
            try:
                finished = await sandbox.run(["sh", "-c", self._script])
            finally:
                await sandbox.close()
        except SandboxError as error:
            return Rejection(Unusable.HOST_ERROR, str(error))
        names = finished.output.decode("utf-8", "replace").split()
        if not names and not finished.code:
            return None
        return Rejection(Unusable.PROGRAM_MISSING, f"its sandboxes have no {', '.join(names)}; {self._install}")
