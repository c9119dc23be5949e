"""Environment type `gui`: a screen with a window manager and an application, in a sandbox."""

from __future__ import annotations

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.gui.actions import tools
from openclaw_rl.rollouts.environments.gui.display import ENVIRONMENT
from openclaw_rl.rollouts.environments.gui.environment import GuiEnvironment
from openclaw_rl.rollouts.environments.gui.scripts import MISSING
from openclaw_rl.rollouts.environments.gui.task import check_task
from openclaw_rl.rollouts.environments.gui.tree import OBSERVATION_SCHEMA
from openclaw_rl.rollouts.environments.interface import Context, tools_schema
from openclaw_rl.rollouts.environments.programs import Programs
from openclaw_rl.rollouts.sandboxes.factory import spec
from openclaw_rl.rollouts.sandboxes.interface import Backend, Spec, Unusable
from openclaw_rl.rollouts.tasks.task import Task
from openclaw_rl.runtime.rejection import Rejection

_INSTALL = ("apt-get install xvfb jwm xdotool x11-utils scrot python3-tk fonts-dejavu-core (Debian, Ubuntu) brings "
            "them; for an image, servers/environment/build-image gui")


class GuiType:
    """See EnvironmentType."""

    def __init__(self, backend: Backend, spec: Spec) -> None:
        self.action_schema = tools_schema(tools())
        self.observation_schema = OBSERVATION_SCHEMA
        self._backend = backend
        self._spec = spec
        self._programs = Programs(backend, spec, MISSING, _INSTALL)

    @property
    def sandbox(self) -> str:
        return f"{self._backend.name}, {self._spec.image or 'programs of this machine'}"

    async def validate(self) -> Rejection[Unusable] | None:
        return await self._programs.validate()

    def check_task(self, task: Task) -> None:
        check_task(task)

    async def make(self) -> GuiEnvironment:
        made = GuiEnvironment(lambda: self._backend.make(self._spec))
        try:
            await made.start()
        except BaseException:
            await made.close()
            raise
        return made

    async def close(self) -> None:
        pass


def make(config: EnvironmentConfig, context: Context) -> GuiType:
    """Make the type. A screen takes about 3 MiB of `disk`, and its programs about 40 MiB of `memory`."""
    return GuiType(context.backend, spec(config, ENVIRONMENT))
