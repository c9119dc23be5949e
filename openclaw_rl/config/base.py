"""Building blocks of configuration sections: types, units, a strict section."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

#: The model that comes with the package index and needs no key.
EMBEDDED_MODEL = "smollm2-135m-instruct"




def _no_truth(value: Any) -> Any:
    """Python takes true for 1, and YAML takes `yes` and `on` for true: nobody means a number by them."""
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


Int = Annotated[int, BeforeValidator(_no_truth)]
Float = Annotated[float, BeforeValidator(_no_truth), Field(allow_inf_nan=False)]
Port = Annotated[Int, Field(ge=0, le=65535)]
_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


class ConfigError(Exception):
    """The configuration can't be used; the text says which file and key, and what is allowed."""


def parse_size(value: Any) -> Any:
    """Bytes of a size such as 100MB (units of 1024)."""
    if isinstance(_no_truth(value), str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?B?)\s*", value.upper())
        if not match:
            raise ValueError("a size such as 512KB, 100MB or 2GB")
        unit = match[2] if match[2].endswith("B") or not match[2] else match[2] + "B"
        return int(float(match[1]) * _UNITS[unit])
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class Component(Section):
    enabled: bool = True
    """false: `local-start` does not start it."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    address: str | None = None
    """HOST:PORT of a running instance, ours or a third party's; none is started then."""
    keys_port: Port | None = None
    """An additional gRPC port with TLS for clients that use a bearer key instead of a certificate (`openclaw-rl keys`);
    default: none. Requires security.tls."""
