"""The credentials of the calling component or client. TLS is imported only where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from openclaw_rl.runtime import identity, runtime
from openclaw_rl.runtime.home import COMPONENTS, Home

if TYPE_CHECKING:
    from openclaw_rl.config import Config
    from openclaw_rl.rpc.auth.tls import Credentials


def credentials() -> Credentials | None:
    """The credentials of the current component; None for plain text."""
    return cast("Credentials | None", runtime.current().credentials)


def for_client(home: Home | None = None) -> Credentials | None:
    """Credentials of a client: the current component's, else the operator's certificate of `home` when the mesh's
    configuration there wants TLS.

    Raises:
        ConfigError: as `tls.credentials`.
    """
    if runtime.current().identified:
        return credentials()
    from openclaw_rl.runtime.running_config import running_config

    home = home or Home.default()
    config = running_config(home)
    if not identity.wanted(config):
        return None
    from openclaw_rl.rpc.auth import tls

    return tls.credentials(config, home, _own_role(config, home))


def _own_role(config: Config, home: Home) -> str:
    """The operator's; on a host that was given only a component's, that one's, which is enough for `status`."""
    folder = identity.certificates_folder(config, home)
    there = [role for role in ("operator", *COMPONENTS)
             if (folder / f"{role}.crt").exists() and (folder / f"{role}.key").exists()]
    return there[0] if there else "operator"
