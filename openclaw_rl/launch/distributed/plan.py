"""Placement of the components on hosts, from the configuration alone."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from openclaw_rl.config import Config
from openclaw_rl.launch.distributed.join import address_of
from openclaw_rl.runtime.home import COMPONENTS
from openclaw_rl.runtime.identity import is_loopback

#: Keys of a component's ports, as far as it has them.
_PORTS = ("port", "grpc_port", "keys_port")


@dataclass(frozen=True)
class Plan:
    """Hosts are IP addresses, as Ray knows them.

    Attributes:
        config: the configuration it was made from.
        hosts: host by component, of those that are started.
        names: what the configuration calls a host.
        head: host of Ray's head and of the controller.
        problems: what is wrong with the configuration, a sentence each.
    """

    config: Config
    hosts: dict[str, str]
    names: dict[str, str]
    head: str
    problems: list[str] = field(default_factory=list)

    @property
    def all_hosts(self) -> list[str]:
        """Each once, the head first."""
        return list(dict.fromkeys([self.head, *self.hosts.values()]))

    def components(self, host: str) -> list[str]:
        """Components of a host."""
        return [name for name, at in self.hosts.items() if at == host]

    @property
    def mesh(self) -> str:
        """The mesh's name in Ray: the same for the same hosts and ports, so that a second start finds the first."""
        where = [f"{name} {host}:{port}" for name, host in self.hosts.items()
                 for port in ports(self.config, name).values()]
        return "openclaw-rl-" + hashlib.sha256("\n".join(where).encode()).hexdigest()[:8]


def ports(config: Config, name: str) -> dict[str, int]:
    """A component's ports by key."""
    section = getattr(config.components, name)
    return {key: port for key in _PORTS if (port := getattr(section, key, None)) is not None}


def address(config: Config, name: str, host: str) -> str:
    """HOST:PORT of a component's gRPC server."""
    own = ports(config, name)
    port = own.get("grpc_port", own["port"])
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str) -> str:
    found: tuple[str, int] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][:2]  # type: ignore[assignment]
    return found[0]


def make(config: Config, resolve: Callable[[str], str] = _resolve) -> Plan:
    """The plan, with all that is wrong with it.

    Args:
        resolve: IP address of a host's name; raises OSError for one that doesn't exist.
    """
    problems: list[str] = []
    hosts: dict[str, str] = {}
    names: dict[str, str] = {}
    known: dict[str, str] = {}

    def place(key: str, host: str) -> str | None:
        if host not in known:
            try:
                known[host] = resolve(host)
            except OSError:
                problems.append(f"{key}: {host!r} is no host that this machine knows: write its IP address, or have "
                                "its name in the DNS or in /etc/hosts")
                return None
        number = known[host]
        other = names.setdefault(number, host)
        if other != host:
            problems.append(f"{key}: {host!r} and {other!r} are the same host, {number}: write it the same way "
                            "everywhere")
        return number

    for name in COMPONENTS:
        section = getattr(config.components, name)
        if not section.enabled or section.address:
            continue
        key = f"components.{name}.host"
        if section.host in ("0.0.0.0", "::"):
            problems.append(f"{key}: {section.host!r} names no host: write the address at which the others reach it")
        elif (number := place(key, section.host)) is not None:
            hosts[name] = number
    if not hosts and not problems:
        problems.append("no component is to be started: each has `enabled: false` or an `address`")
    if len(set(hosts.values())) > 1:
        problems += [f"components.{name}.host: {getattr(config.components, name).host!r} is loopback, which no other "
                     "host can reach: write the host's own address" for name, host in hosts.items()
                     if is_loopback(host)]
    named = config.distributed.head
    head = (place("distributed.head", named) if named else None) or next(iter(hosts.values()), "")
    problems += _port_problems(config, hosts, head)
    return Plan(config, hosts, names, head, list(dict.fromkeys(problems)))


def _port_problems(config: Config, hosts: dict[str, str], head: str) -> list[str]:
    problems: list[str] = []
    wanted: dict[tuple[str, int], str] = {}
    if address_of(config) is None:
        wanted[head, config.distributed.ray_port] = "distributed.ray_port"
    for name, host in hosts.items():
        for key, port in ports(config, name).items():
            if port == 0:
                problems.append(f"components.{name}.{key}: 0 is not allowed on several hosts: the others must know the "
                                "port")
            elif (host, port) in wanted:
                problems.append(f"components.{name}.{key}: {port} is {wanted[host, port]} too, on the same host "
                                f"{host}; set another port")
            wanted.setdefault((host, port), f"components.{name}.{key}")
    return problems


def derived(plan: Plan, host: str, hosts: dict[str, str] | None = None) -> Config:
    """The configuration for a host: its own components listen on its address, the others have one.

    Args:
        hosts: host by component where it is no longer that of the plan.
    """
    return _with(plan.config, host, hosts or plan.hosts)


def _with(config: Config, host: str | None, hosts: dict[str, str]) -> Config:
    updates = {}
    for name, at in hosts.items():
        section = getattr(config.components, name)
        here = at == host
        updates[name] = section.model_copy(update={"host": at, "address": None if here else address(config, name, at)})
    security = config.security.model_copy(update={"keys": None})  # they are copied into each host's home
    return config.model_copy(update={"security": security,
                                     "components": config.components.model_copy(update=updates)})


def for_clients(config: Config, hosts: dict[str, str]) -> Config:
    """The configuration for those who run no component: each has an address."""
    return _with(config, None, hosts)


def http_address(config: Config, hosts: dict[str, str]) -> str:
    """http(s)://HOST:PORT of the OpenAI API; empty without a policy server of this mesh."""
    host = hosts.get("policy_server")
    if host is None:
        return ""
    security, policy = config.security, config.components.policy_server
    tls = security.tls if security.http_tls == "auto" else security.http_tls
    return f"http{'s' if tls != 'off' else ''}://{f'[{host}]' if ':' in host else host}:{policy.port}"
