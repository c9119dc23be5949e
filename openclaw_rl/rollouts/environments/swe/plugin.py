"""Environment type `swe`: a git repository with a failing test, in a sandbox."""

from __future__ import annotations

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context, tools_schema
from openclaw_rl.rollouts.environments.programs import Programs
from openclaw_rl.rollouts.environments.swe.actions import TOOLS
from openclaw_rl.rollouts.environments.swe.environment import OBSERVATION_SCHEMA, SweEnvironment
from openclaw_rl.rollouts.environments.swe.task import check_task
from openclaw_rl.rollouts.sandboxes.factory import spec
from openclaw_rl.rollouts.sandboxes.interface import Backend, Spec, Unusable
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.runtime.rejection import Rejection

_MISSING = ("for name in git python3 bash tar realpath; do command -v $name >/dev/null || echo $name; done; "
            "python3 -I -c 'import ctypes, unittest' 2>/dev/null || echo libpython3-stdlib")
_INSTALL = ("apt-get install git python3 bash tar coreutils (Debian, Ubuntu) brings them; for an image, "
            "servers/environment/build-image swe")


class SweType:
    """See EnvironmentType."""

    def __init__(self, backend: Backend, spec: Spec) -> None:
        self.action_schema = tools_schema(TOOLS)
        self.observation_schema = OBSERVATION_SCHEMA
        self._backend = backend
        self._spec = spec
        self._programs = Programs(backend, spec, _MISSING, _INSTALL)

    @property
    def sandbox(self) -> str:
        return f"{self._backend.name}, {self._spec.image or 'programs of this machine'}"

    async def validate(self) -> Rejection[Unusable] | None:
        return await self._programs.validate()

    def check_task(self, task: Task) -> None:
        check_task(task)

    async def make(self) -> SweEnvironment:
        return SweEnvironment(self._backend, self._spec, await self._backend.make(self._spec))

    async def close(self) -> None:
        pass


def make(config: EnvironmentConfig, context: Context) -> SweType:
    """Make the type. A running check takes a sandbox of its own beside those that are leased."""
    return SweType(context.backend, spec(config))
