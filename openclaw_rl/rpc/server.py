"""The gRPC server of a component: its services, health, reflection, and a graceful end."""

from __future__ import annotations

import asyncio
import errno
import importlib.metadata
import logging
import os
import signal
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from openclaw_rl.config import ConfigError
from openclaw_rl.observability import telemetry
from openclaw_rl.observability.metrics import observe_status
from openclaw_rl.rpc import membership
from openclaw_rl.rpc.auth import current
from openclaw_rl.rpc.auth.authorize import Authorizer
from openclaw_rl.rpc.channel import COMMON_OPTIONS
from openclaw_rl.rpc.component_service import ComponentServicer
from openclaw_rl.rpc.contract import CONTRACT_VERSION
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.hosted_server import HostServer, Registrar
from openclaw_rl.rpc.interceptor import ErrorInterceptor
from openclaw_rl.rpc.messages import now
from openclaw_rl.rpc.reflection import add_reflection
from openclaw_rl.runtime import identity, notify, redact, runtime
from openclaw_rl.runtime.alarms import Alarms, Raised
from openclaw_rl.runtime.home import Home, RunRecord, read_record, remove_record, write_record
from openclaw_rl.runtime.loop_monitor import LoopMonitor
from openclaw_rl.runtime.runtime import activated
from openclaw_rl.v1 import component_pb2, component_pb2_grpc

if TYPE_CHECKING:
    from openclaw_rl.rpc.auth.tls import Credentials

logger = logging.getLogger(__name__)

COMPONENT_SERVICE = component_pb2.DESCRIPTOR.services_by_name["ComponentService"].full_name

#: Calls that one connection may have open at the same time.
MAX_STREAMS = 1024

#: Of a gRPC server that has a component's services.
OPTIONS = [
    *COMMON_OPTIONS,
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second listener
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # take the keepalive of our channels
    # What one connection may take. Further streams wait at their client; of metadata, gRPC takes 16 KB at most, and of
    # a compressed message it inflates no more than the largest message.
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", 20_000),
]

#: Variable with the name that the mesh has for this host; without it the host's own is told.
HOST_VARIABLE = "OPENCLAW_RL_HOST"
#: Seconds between two looks at the alarms, for the health "SERVICE/alarms".
ALARM_SECONDS = 2.0


class ComponentServer:
    """One component's server.

    Args:
        name: one of `home.COMPONENTS`.
        host, port: where to listen; port 0 means any free one.
        home: where its address is recorded.
        status: gives state, detail, counters and the like; the server fills in what it knows itself (name, pid,
            addresses, package version, start). It is also asked every ALARM_SECONDS: while there is an alarm, health
            says NOT_SERVING for each "SERVICE/alarms", and for "alarms"; the services themselves stay as they are.
        on_drain: ends the running work within so many seconds; awaited once, before the server stops. Streams that
            are still open afterwards are ended with UNAVAILABLE.
        host_server: the server of another program, which the services are added to; None makes one.
        signals: SIGTERM and SIGINT end it; never inside another program's server.
        loop_monitor: of the loop that the component runs on; its figure and its alarm are part of the status.
        status_blocks: `status` reads files, so it is called on another thread.

    Calls are handled with the surroundings (`runtime.current`) of who makes it.
    """

    def __init__(self, name: str, host: str, port: int, home: Home,
                 status: Callable[[], component_pb2.ComponentStatus],
                 on_drain: Callable[[float], Awaitable[None]] | None = None, host_server: HostServer | None = None, *,
                 signals: bool = True, loop_monitor: LoopMonitor | None = None, status_blocks: bool = False) -> None:
        self.name = name
        self.http_address = ""  #: http://HOST:PORT; set it before start()
        self.address = ""  #: HOST:PORT, known after start()
        self.keys_address = ""  #: HOST:PORT for clients with a bearer key and no certificate; "" where there is none
        self.stop_requested = asyncio.Event()  #: somebody wants the component to end
        #: Removes a session from all that the component keeps; set it before start().
        self.on_forget: Callable[[component_pb2.ForgetRequest], Awaitable[component_pb2.ForgetResponse]] | None = None
        self.home = home
        self._host, self._port = host, port
        self._status, self._on_drain = status, on_drain
        self._status_blocks = status_blocks
        self._credentials: Credentials | None = None
        self._grace = 30.0
        self._started_at = now()
        self._draining = False
        self._serving = True
        self._names: list[str] = []
        self._alarms = Alarms()
        self._alarm_watch: asyncio.Task[None] | None = None
        self._host_server = host_server
        if host_server is not None:
            host_server.claim(name)
        self._health = (host_server and host_server.health) or health.aio.HealthServicer()
        self._ambient = runtime.current()
        self._loop_monitor = loop_monitor
        self._interceptor = ErrorInterceptor(ambient=self._ambient)
        self._signals = (signal.SIGTERM, signal.SIGINT) if signals and host_server is None else ()
        self._server: Any = (Registrar(host_server.server, self._interceptor) if host_server is not None
                             else grpc.aio.server(interceptors=[self._interceptor], options=OPTIONS))
        self.add(component_pb2_grpc.add_ComponentServiceServicer_to_server, ComponentServicer(self), COMPONENT_SERVICE)

    @property
    def service_names(self) -> tuple[str, ...]:
        """Full names of its services, for reflection."""
        return tuple(self._names)

    def add(self, add_servicer: Callable[[Any, Any], None], servicer: Any, service_name: str) -> None:
        """Serve `servicer` too; `service_name` is full, such as "openclaw_rl.v1.JudgeService"."""
        add_servicer(servicer, self._server)
        self._names.append(service_name)

    async def start(self) -> str:
        """Listen and record the address.

        Returns:
            HOST:PORT; empty inside another program's server, which tells it by `listening`.

        Raises:
            OSError: it can't listen there; the text names the address and says what to do.
            ConfigError: it has no credentials and others on the network could connect.
        """
        if self._host_server is None:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
            add_reflection((*self._names, health.SERVICE_NAME), self._server)
            port = self._listen()
            await self._server.start()
            self.address = _join(self._host, port)
        else:
            if self._host_server.health is None:
                health_pb2_grpc.add_HealthServicer_to_server(self._health, self._host_server.server)
            self._authorize()
        observe_status(self.status)
        await self.set_serving(self._serving)
        await self._tell_alarms()
        self._alarm_watch = asyncio.create_task(self._watch_alarms(), name="alarms")
        if self._host_server is not None:
            return ""
        write_record(self.home, RunRecord(self.name, os.getpid(), self._reachable(port), self.http_address))
        logger.info("%s serves gRPC on %s%s%s", self.name, self.address, ", with TLS" if self._credentials else "",
                    f", and with bearer keys on {self.keys_address}" if self.keys_address else "")
        if self._serving:
            notify.ready()
        return self.address

    def listening(self, address: str) -> None:
        """Inside another program's server: record the address (HOST:PORT) at which that listens now."""
        self.address = address
        write_record(self.home, RunRecord(self.name, os.getpid(), address, self.http_address))
        logger.info("%s serves gRPC on %s, in another program's server", self.name, address)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """What another program's server needs for the port of this component; None where the mesh is plain text."""
        return self._credentials.server() if self._credentials is not None else None

    def _authorize(self) -> Credentials | None:
        """Ask callers who they are, where the mesh has certificates. Returns ours."""
        credentials = self._credentials = current.credentials()
        if credentials is not None:
            self._interceptor.authorizer = Authorizer(lambda: credentials.identity, credentials.keys,
                                                      credentials.limits)
        return credentials

    def _listen(self) -> int:
        """Open the ports. Returns the main one."""
        credentials = self._authorize()
        if credentials is None:
            if not identity.is_loopback(self._host):
                raise ConfigError(f"{self.name} does not listen on {self._host} without credentials: anybody on the "
                                  "network could read and change everything. Run `openclaw-rl init`, which makes "
                                  "certificates, and let security.tls be auto or on; or listen on 127.0.0.1")
            return self._bound(self._port, self._server.add_insecure_port)
        port = self._bound(self._port, self._server.add_secure_port, credentials.server())
        if credentials.keys_port is not None:
            other = self._bound(credentials.keys_port, self._server.add_secure_port,
                                credentials.server(certified=False))
            self.keys_address = _join(self._host, other)
        return port

    def _bound(self, port: int, add: Callable[..., int], *credentials: grpc.ServerCredentials) -> int:
        try:
            return add(_join(self._host, port), *credentials)
        except RuntimeError:
            raise self._why_not_bound(port) from None

    def set_serving(self, serving: bool) -> asyncio.Future[Any]:
        """Tell the health of all services. It needn't be awaited. Before start(): what start() shall tell."""
        self._serving = serving
        if serving and self._alarm_watch is not None:  # recorded, too
            notify.ready()
        # The health "" is that of the whole server, which may be another program's.
        hosted = self._host_server is not None and self._host_server.health is not None
        names = self._names if hosted else ["", *self._names]
        return asyncio.gather(*(self._health.set(name, _health(serving)) for name in names))

    async def _watch_alarms(self) -> None:
        while True:
            await asyncio.sleep(ALARM_SECONDS)
            if self._interceptor.authorizer is not None:
                self._interceptor.authorizer.end_revoked()
            await self._tell_alarms()

    async def _tell_alarms(self) -> None:
        try:
            well = not (await self.current_status()).alarms
        except Exception:  # that is no reason to stop looking
            logger.exception("asking for the alarms of %s", self.name)
            well = False
        for name in ("alarms", *(f"{name}/alarms" for name in self._names)):
            await self._health.set(name, _health(well))

    def request_stop(self, grace: float | None = None) -> None:
        """Make `run_until_stopped` go on to the end; `grace` in seconds."""
        if grace is not None:
            self._grace = grace
        self._draining = True
        self.stop_requested.set()

    async def run_until_stopped(self) -> None:
        """Serve until SIGTERM, SIGINT or Drain; then end gracefully: health, running work, server, record."""
        loop = asyncio.get_running_loop()
        for number in self._signals:
            loop.add_signal_handler(number, self.request_stop)
        try:
            await self.stop_requested.wait()
            logger.info("%s is stopping", self.name)
            notify.stopping()
            await self.set_serving(False)
            if self._on_drain is not None:
                try:
                    await asyncio.wait_for(self._on_drain(self._grace), self._grace)
                except Exception:
                    logger.exception("ending the running work of %s", self.name)
        finally:
            await self.stop(min(self._grace, 5))
            for number in self._signals:
                loop.remove_signal_handler(number)

    async def stop(self, grace: float = 5) -> None:
        """Stop serving: streams end, other calls have `grace` seconds. The record goes."""
        self.request_stop()
        if self._alarm_watch is not None:
            self._alarm_watch.cancel()
        await self.set_serving(False)
        self._interceptor.end_streams()
        if self._host_server is None:
            await self._server.stop(grace)
        record = read_record(self.home, self.name)
        if record is not None and record.pid == os.getpid():
            remove_record(self.home, self.name)

    async def current_status(self) -> component_pb2.ComponentStatus:
        """`status`, without blocking the event loop."""
        return await asyncio.to_thread(self.status) if self._status_blocks else self.status()

    def status(self) -> component_pb2.ComponentStatus:
        """The component's whole status."""
        with activated(self._ambient):
            return self._whole_status()

    def _whole_status(self) -> component_pb2.ComponentStatus:
        status = component_pb2.ComponentStatus()
        raised: list[Raised] = []
        try:
            status.CopyFrom(self._status())
        except (MeshError, sqlite3.Error) as error:  # figures of a store that can't be read now are missing
            status.state = component_pb2.COMPONENT_STATE_RUNNING
            raised.append(("state_unusable", str(error)))
        status.name = self.name
        status.pid = os.getpid()
        status.address = self.address
        status.http_address = self.http_address
        status.package_version = importlib.metadata.version("openclaw-rl")
        status.contract_version = CONTRACT_VERSION
        status.started_at.CopyFrom(self._started_at)
        status.host = os.environ.get(HOST_VARIABLE) or socket.gethostname()
        if self._loop_monitor is not None:
            status.gauges["event_loop_held_seconds"] = self._loop_monitor.recent
            status.gauges["event_loop_longest_held_seconds"] = self._loop_monitor.longest
            raised += self._loop_monitor.alarms()
        if self._credentials is not None:
            status.secure = True
            status.certificate_expires_at.FromDatetime(self._credentials.expires)
            raised += self._credentials.problems()
        ours = membership.current()
        if ours is not None:
            raised += ours.alarms()
            status.gauges["foreign_calls_refused"] = ours.refused
            status.detail = "; ".join(filter(None, [status.detail, ours.refusals()]))
        self._alarms.report(status, raised)
        telemetry.report(status)
        if self._draining:
            status.state = component_pb2.COMPONENT_STATE_DRAINING
        redact.current().message(status)
        status.mesh_id = ours.mesh if ours is not None else ""  # no secret, whatever it looks like
        return status

    def _reachable(self, port: int) -> str:
        """What others on this machine connect to: a wildcard is no address."""
        return _join({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host), port)

    def _why_not_bound(self, port: int) -> OSError:
        where = _join(self._host, port)
        advice = f"{self.name} can't listen on {where}"
        try:
            family, kind, proto, _, address = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind, proto) as probe:
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return OSError(error.errno, f"{advice}: the port is in use. Stop what uses it, or configure another "
                                            "port (0 means any free one)")
            return OSError(error.errno, f"{advice}: {error.strerror}. Check the configured host and port")
        return OSError(errno.EADDRNOTAVAIL, f"{advice}. Check the configured host and port")


def _health(well: bool) -> health_pb2.HealthCheckResponse.ServingStatus.ValueType:
    return health_pb2.HealthCheckResponse.SERVING if well else health_pb2.HealthCheckResponse.NOT_SERVING


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
