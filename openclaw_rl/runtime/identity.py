"""Need for encryption, by the configuration of a mesh."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl.runtime.home import COMPONENTS, Home

if TYPE_CHECKING:
    from openclaw_rl.config import Config


def certificates_folder(config: Config, home: Home) -> Path:
    """Folder of the certificates."""
    return config.security.certs.expanduser().absolute() if config.security.certs else home.certs


def wanted(config: Config) -> bool:
    """The mesh's gRPC is encrypted.

    Raises:
        ConfigError: `security.tls: off` where others on the network could connect.
    """
    from openclaw_rl.config import ConfigError

    network = exposed(config)
    if config.security.tls == "off" and (network or config.mode == "distributed"):
        where = "mode: distributed" if config.mode == "distributed" else network[0]
        raise ConfigError(f"security.tls: off is not allowed with {where}: anybody on the network could read and "
                          "change everything. Remove the line (and run `openclaw-rl init`, which makes certificates), "
                          "or listen on 127.0.0.1 only")
    keys = [name for name in COMPONENTS if getattr(config.components, name).keys_port is not None]
    encrypted = config.security.tls == "on" or (config.security.tls == "auto"
                                           and bool(config.mode == "distributed" or network or remote(config)))
    if keys and not encrypted:
        raise ConfigError(f"components.{keys[0]}.keys_port: bearer keys are not sent in plain text: set security.tls: "
                          "on")
    return encrypted


def exposed(config: Config) -> list[str]:
    """The components that listen on more than loopback, as the configuration says it: "components.trainer.host: IP"."""
    return [f"components.{name}.host: {section.host}" for name in COMPONENTS
            if (section := getattr(config.components, name)).enabled and not section.address
            and not is_loopback(section.host)]


def remote(config: Config) -> list[str]:
    """The components on other machines, likewise."""
    addresses = {f"components.{name}.address": getattr(config.components, name).address for name in COMPONENTS}
    addresses["components.policy_server.weights_from"] = config.components.policy_server.weights_from
    return [f"{key}: {address}" for key, address in addresses.items()
            if address and not is_loopback(address.rpartition(":")[0])]


def is_loopback(host: str) -> bool:
    """Only this machine can connect to the address. A name is none, but for `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def why(config: Config) -> str:
    """The reason for TLS, as the begin of a sentence."""
    if config.security.tls == "on":
        return "security.tls is on"
    if config.mode == "distributed":
        return "mode: distributed needs certificates"
    return f"{[*exposed(config), *remote(config)][0]} is on the network, which needs certificates"
