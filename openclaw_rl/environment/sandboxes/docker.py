"""Sandboxes by an engine of containers that speaks the Docker API (docker, podman)."""

from __future__ import annotations

from openclaw_rl.environment.sandboxes.base import Sandbox, SandboxError, Spec


class Docker:
    """Makes them."""

    name = "docker"

    def __init__(self, label: str) -> None:
        self._label = label

    async def problem(self, spec: Spec) -> str:
        return "no engine of containers answers"

    async def make(self, spec: Spec) -> Sandbox:
        raise SandboxError(await self.problem(spec))


def remove_leftovers(label: str) -> int:
    return 0
