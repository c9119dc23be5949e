"""Certificates of a mesh on several hosts: each private key is made on its host and stays there; a signing request
comes here and a certificate goes back."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed.host import Host, HostError
from openclaw_rl.launch.distributed.plan import Plan
from openclaw_rl.rpc.auth import ca
from openclaw_rl.runtime import identity
from openclaw_rl.runtime.home import COMPONENTS, Home

#: Folder in a host's home for Ray's certificates. They come from a CA of their own: who may be a client of the mesh
#: may not join its Ray cluster, where he could run anything.
RAY_FOLDER = "certs/ray"
#: The role under which they are made; Ray knows none.
_RAY_ROLE = "operator"


def _ends_soon(home: Home, days: int) -> bool:
    """The operator's certificate is there and has less than so many days left."""
    file = home.certs / "operator.crt"
    return file.exists() and ca.expiry(file) - datetime.datetime.now(datetime.UTC) < datetime.timedelta(days=days)


def provide(home: Home, plan: Plan, reached: Mapping[str, Host], homes: Mapping[str, str | None], ray: bool
            ) -> None:
    """Give each host the certificates of the components that run there, or may run there later, and this home the
    operator's.

    Args:
        homes: folder by host; None is ~/.openclaw-rl there.
        ray: also those for a Ray cluster of ours.

    Raises:
        CertificateError: no CA, or it can't sign.
        HostError: a host can't be asked; the text names all of them.
    """
    config = plan.config
    authorities: dict[str, Path] = {}
    if identity.wanted(config) and config.security.certs is None:  # the user's own are where he put them
        ca.make_authority(home.certs)
        ca.issue(home.certs, "operator", replace=_ends_soon(home, config.security.warn_days))
        authorities["certs"] = home.certs
    if ray:
        authorities[RAY_FOLDER] = home.certs / "ray-ca"
        ca.make_authority(authorities[RAY_FOLDER], "ray")

    def one(host: Host) -> None:
        roles = {"certs": list(COMPONENTS) if config.distributed.elsewhere else plan.components(host.name),
                 RAY_FOLDER: [_RAY_ROLE]}
        wanted = {folder: roles[folder] for folder in authorities if roles[folder]}
        if not wanted:
            return
        names = list(dict.fromkeys([host.name, plan.names.get(host.name, host.name)]))
        requests = host.call("request", home=homes[host.name], roles=wanted)
        host.call("install", home=homes[host.name], certificates={
            folder: {role: ca.sign(authorities[folder], request.encode(), role, names).decode()
                     for role, request in some.items()} for folder, some in requests.items()},
            authorities={folder: (authorities[folder] / "ca.crt").read_text() for folder in requests})

    _, errors = hosts.on_all(reached, one)
    if errors:
        raise HostError("; ".join(f"{name}: {why}" for name, why in errors.items()))
