"""Jaeger beside the mesh, for `local-start --jaeger`: run by the same supervisor, on ports of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.config import Config
from openclaw_rl.runtime.home import Home, write_atomically

#: Name of its process at the supervisor.
NAME = "jaeger"
#: The version that tools/outside-tools builds, which names the folder of its binary.
VERSION = "2.13.0"
#: Its configuration, whose ports are variables.
CONFIG_FILE = Path(__file__).with_name("jaeger.yaml")
#: Seconds that it has to come up.
_START_SECONDS = 15.0


class NoJaeger(Exception):
    """Jaeger can't be started; the text says what to do."""


@dataclass(frozen=True)
class Jaeger:
    """One Jaeger: its binary and its ports."""

    binary: str
    query: int  #: HTTP: query API, and the UI when the binary has one
    query_grpc: int
    health: int
    otlp_grpc: int
    otlp_http: int

    @property
    def address(self) -> str:
        """URL of the user interface."""
        return f"http://127.0.0.1:{self.query}"

    @property
    def endpoint(self) -> str:
        """URL to which the components send spans."""
        return f"http://127.0.0.1:{self.otlp_grpc}"

    def variables(self) -> dict[str, str]:
        """Variables of its own process."""
        ports = {f"JAEGER_{name.upper()}_PORT": str(getattr(self, name))
                 for name in ("query", "query_grpc", "health", "otlp_grpc", "otlp_http")}
        # Otherwise it sends spans of its own to whatever is on port 4317.
        return ports | {"OTEL_TRACES_SAMPLER": "always_off"}

    def command(self) -> list[str]:
        """Its command line."""
        return [self.binary, f"--config=file:{CONFIG_FILE}"]

    def ready(self) -> bool:
        """Return whether it takes spans and answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.health}/status", timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def wait(self, log: Path) -> None:
        """Wait until it is ready.

        Raises:
            NoJaeger: it is not.
        """
        deadline = time.monotonic() + _START_SECONDS
        while not self.ready():
            if time.monotonic() > deadline:
                raise NoJaeger(f"Jaeger does not come up; see {log}")
            time.sleep(0.05)


#: What the components' processes get besides, when there is a Jaeger: it takes no metrics, and spans by gRPC.
COMPONENT_VARIABLES = {"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                       "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}


def find() -> str | None:
    """The binary: on PATH, beside this environment's tools, or where tools/outside-tools keeps it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for name in ("jaeger", str(Path(sys.prefix) / "tools/jaeger"),
                 str(cache / f"openclaw-rl-tools/jaeger-{VERSION}/jaeger")):
        if found := shutil.which(name):
            return str(Path(found).absolute())
    return None


def prepare(config: Config) -> Jaeger:
    """A Jaeger to be started, on free ports.

    Raises:
        NoJaeger: it is not installed, or the mesh does not trace.
    """
    if not config.telemetry.enabled or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise NoJaeger("--jaeger would stay empty: telemetry is disabled (telemetry.enabled, OTEL_SDK_DISABLED)")
    binary = find()
    if binary is None:
        raise NoJaeger(
            "Jaeger is not installed. One of:\n"
            "  the official release, which has the UI: put `jaeger` of version 2 from "
            "github.com/jaegertracing/jaeger/releases on PATH\n"
            "  from source, without UI but with the whole query API: tools/outside-tools in a checkout builds it "
            "(needs Go, takes about 7 minutes)\n"
            "  one that runs already, such as its container image: set telemetry.endpoint to its OTLP address instead "
            "of --jaeger")
    return Jaeger(binary, *_free_ports(5))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def traced_to(config: Config, jaeger: Jaeger | None) -> Config:
    """The configuration with spans going to this Jaeger."""
    if jaeger is None:
        return config
    telemetry = config.telemetry.model_copy(update={"endpoint": jaeger.endpoint, "protocol": "grpc"})
    return config.model_copy(update={"telemetry": telemetry})


def write(home: Home, jaeger: Jaeger) -> None:
    """Record it in the run folder."""
    write_atomically(home.run / f"{NAME}.json", json.dumps(asdict(jaeger)).encode())


def read(home: Home) -> Jaeger | None:
    """Read the record of the one that was started with this mesh; None without one."""
    try:
        data: dict[str, Any] = json.loads((home.run / f"{NAME}.json").read_text())
        return Jaeger(**data)
    except (OSError, ValueError, TypeError):
        return None


def remove(home: Home) -> None:
    """Remove the record."""
    with contextlib.suppress(OSError):
        (home.run / f"{NAME}.json").unlink(missing_ok=True)
