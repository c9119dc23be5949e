"""Certificates of a mesh on several hosts: each private key is made on its host and stays there; a signing request
comes here and a certificate goes back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...config import Config
from ...home import COMPONENTS, Home
from ...mesh import ca, identity
from . import host as hosts
from .host import Host, HostError
from .plan import Plan

#: Folder in a host's home for Ray's certificates. They come from a CA of their own: who may be a client of the mesh
#: may not join its Ray cluster, where he could run anything.
RAY_FOLDER = "certs/ray"
#: The role under which they are made; Ray knows none.
_RAY_ROLE = "operator"


def provide(home: Home, plan: Plan, reached: Mapping[str, Host], homes: Mapping[str, str]) -> None:
    """Give each host the certificates of the components that run there, or may run there later, and this home the
    operator's.

    Args:
        homes: folder by host.

    Raises:
        CertificateError: no CA, or it can't sign.
        HostError: a host can't be asked; the text names all of them.
    """
    config = plan.config
    if not identity.wanted(config) or config.security.certs is not None:
        return  # the user's own certificates are where he put them
    ca.make_authority(home.certs)
    ca.issue(home.certs, "operator")
    everywhere = list(COMPONENTS) if config.distributed.elsewhere else None

    def one(host: Host) -> None:
        roles = everywhere or plan.components(host.name)
        _certify(host, home.certs, "certs", homes[host.name], roles, _names(plan, host.name))

    _on_all(reached, one)


def provide_ray(home: Home, plan: Plan, reached: Mapping[str, Host], homes: Mapping[str, str]) -> dict[str, str]:
    """Give each host its certificate for a Ray cluster of ours; their folders. Raises as `provide`."""
    authority = home.certs / "ray-ca"
    ca.make_authority(authority, "ray")
    return _on_all(reached, lambda host: _certify(host, authority, RAY_FOLDER, homes[host.name], [_RAY_ROLE],
                                                  _names(plan, host.name)))


def _certify(host: Host, authority: Path, folder: str, home: str, roles: list[str], names: list[str]) -> str:
    if not roles:
        return ""
    requests: dict[str, str] = host.call("request", home=home, folder=folder, roles=roles)
    signed = {role: ca.sign(authority, request.encode(), role, names).decode() for role, request in requests.items()}
    place: str = host.call("install", home=home, folder=folder, certificates=signed,
                           authority=(authority / "ca.crt").read_text())
    return place


def _names(plan: Plan, host: str) -> list[str]:
    return list(dict.fromkeys([host, plan.names.get(host, host)]))


def _on_all(reached: Mapping[str, Host], one: object) -> dict[str, str]:
    done, errors = hosts.on_all(reached, one)  # type: ignore[arg-type]
    if errors:
        raise HostError("; ".join(f"{name}: {why}" for name, why in errors.items()))
    return done


def expected(config: Config) -> bool:
    """The mesh's own CA signs."""
    return identity.wanted(config) and config.security.certs is None
