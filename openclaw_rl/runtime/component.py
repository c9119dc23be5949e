"""Life cycle of a component: made, started, ready, drained, closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from openclaw_rl.runtime.runtime import Runtime
from openclaw_rl.v1 import component_pb2

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class Service(NamedTuple):
    """A gRPC service of a component."""

    add: Callable[[Any, Any], None]  #: the generated `add_...Servicer_to_server`
    servicer: Any
    name: str  #: full, such as "openclaw_rl.v1.JudgeService"


class Listener(NamedTuple):
    """Address of a component's gRPC server; port 0 is any free one."""

    host: str
    port: int


class Component(ABC):
    """Base of the four components; `rpc.component_run` runs one.

    A constructor opens state, puts the parts together, and sets `listener` and `forget`. Whatever has to be closed is
    registered with `runtime.resources` as soon as it exists, so that a failure at any point leaves nothing open.

    Args:
        runtime: the component's own.
        mounted: `application` is served by another program, so no HTTP port is opened.

    Raises:
        ConfigError, OSError, StorageError: the component can't run; the text says what to do.
    """

    name: ClassVar[str]  #: one of `home.COMPONENTS`
    #: False: health is NOT_SERVING until `ready` has returned.
    serves_at_once: ClassVar[bool] = True
    #: `status` reads files, so it is called on another thread than the event loop's.
    status_blocks: ClassVar[bool] = False

    #: Where to serve gRPC.
    listener: Listener
    #: Deletes a session from all that the component keeps.
    forget: Callable[[component_pb2.ForgetRequest], Awaitable[component_pb2.ForgetResponse]]
    #: http(s)://HOST:PORT, "" without HTTP.
    http_address: str = ""
    #: HTTP API for another program's web server, after `start`.
    application: ASGIApp | None = None

    def __init__(self, runtime: Runtime, *, mounted: bool = False) -> None:
        self.runtime, self.mounted = runtime, mounted

    @abstractmethod
    def services(self) -> Iterable[Service]:
        """The component's gRPC services, besides ComponentService."""

    @abstractmethod
    def status(self) -> component_pb2.ComponentStatus:
        """State, detail, figures and alarms; name, addresses and the like are added by the server."""

    async def start(self) -> None:  # noqa: B027
        """Begin the background work; the gRPC server listens already."""

    async def ready(self) -> None:  # noqa: B027
        """Return once the component can work; an error ends it."""

    async def drain(self, grace: float) -> None:  # noqa: B027
        """End the running work within `grace` seconds."""
