"""Membership in a mesh: what each call tells of it, in both directions, and the refusal of those of another mesh.

Two meshes meet by accident: one starts on the ports of another, an address or a record is out of date. A component
names its mesh and itself with each call (request metadata) and each answer (response headers), so both sides notice:
the one that calls before it has sent anything, the one that is called before it has read anything. The one that calls
has a wrong address or neighbour, which is an alarm. The one that is called is well: it counts what it refuses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc

from openclaw_rl.rpc.auth.authorize import OPEN_SERVICES, TABLE
from openclaw_rl.rpc.errors import MeshError, from_rpc_error
from openclaw_rl.runtime import mesh_id, runtime
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.config import Config

#: Metadata with the id of the mesh, and with the component's name, of a caller and of who answers.
MESH_KEY, COMPONENT_KEY = "openclaw-mesh", "openclaw-component"
#: Seconds for which a foreign neighbour is an alarm and a foreign caller is told of; both retry every few seconds.
REMEMBERED = 60.0

logger = logging.getLogger(__name__)

Metadata = Iterable[tuple[str, str | bytes]] | None


class Membership:
    """Who this component or client is, and in which mesh.

    Args:
        mesh: id of the mesh.
        component: one of `home.COMPONENTS`, "" for a client.
        clock: seconds, never going back.

    Attributes:
        metadata: what is told with each call and answer.
        refused: calls of other meshes that this component has refused.
    """

    def __init__(self, mesh: str, component: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.mesh, self.component = mesh, component
        self.metadata: tuple[tuple[str, str], ...] = ((MESH_KEY, mesh),)
        if component:
            self.metadata += ((COMPONENT_KEY, component),)
        self.refused = 0
        self._clock = clock
        self._caller: tuple[str, float] | None = None  # the last one that was refused, and when
        self._logged: float | None = None  # when a refusal was last logged
        self._foreign: dict[str, tuple[str, float]] = {}  # neighbour -> that another mesh answers for it, and when

    def admit(self, metadata: Metadata, method: str, *, certified: bool) -> None:
        """Admit or refuse a call by what it says of itself.

        Clients may say nothing. A stream of the ring or of weights, which belong to components, must name the mesh,
        unless a certificate does.

        Args:
            metadata: of the call.
            method: full name, such as /openclaw_rl.v1.PolicyService/Chat.
            certified: the caller has shown a certificate or key of this mesh.

        Raises:
            MeshError: WRONG_MESH; or WRONG_ROLE, the caller says it is a component which has no business here.
        """
        if method.startswith(OPEN_SERVICES):
            return
        mesh, component = _named(metadata)
        rpc, rule = method.rpartition("/")[2], TABLE.get(method)
        internal = rule is not None and rule.scope is None
        if mesh and mesh != self.mesh:
            caller = component or "a client"
            self._refuse(f"{caller} of the mesh {mesh} calls {rpc} here and is refused: correct the address of "
                         f"{self.component} in its configuration, or stop it")
            raise self._wrong(mesh, f"{caller} of the mesh {mesh} calls {self.component} of the mesh {self.mesh}: "
                              f"correct its address of {self.component}; `openclaw-rl status` tells the addresses of a "
                              "mesh. Nothing was taken")
        if internal and not mesh and not certified:
            raise self._wrong("", f"{rpc} is for components of the mesh {self.mesh}, and the caller names none: send "
                              f"the metadata {MESH_KEY}: {self.mesh} (grpcurl -H), or set {mesh_id.VARIABLE}")
        if rule is not None and internal and component and component not in rule.roles:
            raise MeshError(grpc.StatusCode.PERMISSION_DENIED, "WRONG_ROLE",
                            f"{rpc} is for {', '.join(sorted(rule.roles))}; the caller says it is {component}",
                            metadata={"role": component})

    def check_peer(self, headers: Metadata, expected: str = "", address: str = "") -> None:
        """Refuse to go on with a server by what it says of itself. One that says nothing (of contract 1.0) passes.

        Args:
            headers: of its response.
            expected: the component that must be there; "" for any.
            address: HOST:PORT, for the words.

        Raises:
            MeshError: WRONG_MESH or WRONG_COMPONENT.
        """
        mesh, component = _named(headers)
        where = f" at {address}" if address else ""
        if mesh and mesh != self.mesh:
            text = (f"{component or 'the component'}{where} is of the mesh {mesh}, not of this mesh {self.mesh}: "
                    f"correct the address of {expected or 'the component'}, or end what has taken its port; nothing "
                    "was sent")
            self._foreign[expected] = text, self._clock()
            raise self._wrong(mesh, text)
        if component and expected and component != expected:
            raise MeshError(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_COMPONENT",
                            f"{component} answers{where}, not {expected}: correct the address",
                            metadata={"expected": expected, "found": component})
        if mesh:
            self._foreign.pop(expected, None)

    def note(self, error: MeshError, expected: str = "") -> None:
        """Note what ended a call to `expected`, for the alarm: a server refuses before it says who it is."""
        if error.reason == "WRONG_MESH":
            self._foreign[expected] = error.message, self._clock()

    def alarms(self) -> Sequence[Raised]:
        """The alarm `wrong_mesh`, until the right neighbour answers, or for a minute after the last attempt."""
        now = self._clock()
        return [("wrong_mesh", text) for text, at in tuple(self._foreign.values()) if now - at <= REMEMBERED]

    def refusals(self) -> str:
        """A remark about foreign callers of the last minute, "" without any. It is no alarm: nothing is wrong here."""
        if self._caller is None or self._clock() - self._caller[1] > REMEMBERED:
            return ""
        return f"{self._caller[0]} ({self.refused} calls of other meshes refused)"

    def _refuse(self, text: str) -> None:
        now = self._clock()
        self.refused += 1
        self._caller = text, now
        if self._logged is None or now - self._logged >= REMEMBERED:
            self._logged = now
            logger.warning("%s", self.refusals())

    def _wrong(self, found: str, message: str) -> MeshError:
        return MeshError(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_MESH", message,
                         metadata={"expected": self.mesh, "found": found})


def of_component(config: Config, home: Home, name: str, trust_domain: str = "") -> Membership:
    """The membership of a component that is about to run; makes the home's id when it has none.

    Args:
        trust_domain: of its certificate.

    Raises:
        ConfigError: the id that it is given can't be one, or the home's is damaged.
        OSError: the home's can't be written.
    """
    return Membership(mesh_id.configured(config, trust_domain) or mesh_id.make(home), name)


def of_client(home: Home | None = None, credentials: object = None) -> Membership | None:
    """The membership of a client: the current component's, else that of the mesh in `home`; None before that has one.

    Args:
        credentials: that it uses in place of those of the home.

    Raises:
        ConfigError: the mesh's configuration or id can't be used.
    """
    if runtime.current().identified:
        return current()
    home = home or Home.default()
    mesh = _configured(home, credentials) or mesh_id.read(home)
    return Membership(mesh) if mesh else None


def id_of(home: Home) -> str:
    """The id of the mesh in a home, made if it has none.

    Raises:
        ConfigError, OSError: as `of_component`.
    """
    return _configured(home) or mesh_id.make(home)


def _configured(home: Home, credentials: object = None) -> str:
    from openclaw_rl.rpc.auth.current import for_client
    from openclaw_rl.runtime.running_config import running_config

    owner = getattr(credentials or for_client(home), "identity", None)
    return mesh_id.configured(running_config(home), owner.mesh if owner is not None else "")


def current() -> Membership | None:
    """The membership of the current component or client."""
    return cast("Membership | None", runtime.current().membership)


def current_mesh() -> str:
    """The id of the current component's mesh; "" outside of any."""
    ours = current()
    return ours.mesh if ours is not None else ""


async def confirm(call: Any, expected: str = "", address: str = "", ours: Membership | None = None) -> None:
    """Wait for the headers of a stream of grpc.aio, and refuse to go on when another mesh answers. How a call ended
    that has none is left to who reads it.

    Args:
        expected, address: as of `Membership.check_peer`.
        ours: default the current membership; without one nothing is waited for.

    Raises:
        MeshError: WRONG_MESH or WRONG_COMPONENT; the call is cancelled.
    """
    ours = ours or current()
    if ours is None:
        return
    headers = await call.initial_metadata()
    try:
        ours.check_peer(headers, expected, address)
    except MeshError:
        call.cancel()
        raise


def note(error: Exception, expected: str) -> None:
    """`Membership.note` of the current membership, for an error of gRPC or of the mesh; nothing for any other."""
    if (ours := current()) is not None and isinstance(error, grpc.RpcError | MeshError):
        ours.note(error if isinstance(error, MeshError) else from_rpc_error(error), expected)


def _named(metadata: Metadata) -> tuple[str, str]:
    """The mesh and the component that metadata names, "" where it names none."""
    found = {MESH_KEY: "", COMPONENT_KEY: ""}
    for key, value in metadata or ():
        if key in found:
            found[key] = value if isinstance(value, str) else value.decode("latin-1")
    return found[MESH_KEY][:80], found[COMPONENT_KEY][:80]
