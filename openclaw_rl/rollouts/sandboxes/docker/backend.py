"""Sandboxes by a container engine that speaks the Docker API (docker, podman)."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from openclaw_rl.rollouts.sandboxes.docker.calls import call
from openclaw_rl.rollouts.sandboxes.docker.sandbox import DockerSandbox
from openclaw_rl.rollouts.sandboxes.images import absent
from openclaw_rl.rollouts.sandboxes.interface import WORK, Sandbox, SandboxError, Spec, Unusable
from openclaw_rl.runtime.rejection import Rejection

logger = logging.getLogger(__name__)

#: Marks a mesh's containers, so that leftovers are found.
LABEL = "openclaw-rl.home"
_USER = "1000:1000"
_TIMEOUT = 60  #: seconds for a call
_PERIOD = 100_000  #: microseconds in which a container has its CPU time
_SHARES = 128  #: an eighth of the default, so that who serves users comes first
#: Ends when told to, and takes in processes whose parents have ended.
_MAIN = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
_RESERVE = 16  #: processes beyond the sandbox's limit, so that it can still be told to end them


class Docker:
    """Makes containers. The SDK (extra `environments`) blocks, so it is called in threads, and loaded on first use."""

    name = "docker"

    def __init__(self, label: str) -> None:
        self._label = label
        self._client: Any = None
        self._base_url = ""
        self._features: dict[str, Any] = {}  #: what the engine says about itself
        self._images: set[str] = set()  #: seen to be there

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        if spec.image is None:
            return Rejection(Unusable.MISCONFIGURED, "`image` is missing: docker makes sandboxes from an image only, "
                                                     "such as openclaw/terminal-env:latest")
        if self._client is None and (rejection := await call(self._connect)):
            return rejection
        if spec.image in self._images:
            return None
        return await call(self._validate_image, spec.image)

    async def make(self, spec: Spec) -> Sandbox:
        if rejection := await self.validate(spec):
            raise SandboxError(rejection.message)
        try:
            container = await call(self._start, spec)
        except Exception as error:  # requests', urllib3's and the SDK's own
            self._images.discard(spec.image or "")
            self._client = None if not isinstance(error, _api_error()) else self._client
            raise SandboxError(f"the container engine can't make a sandbox: {_text(error)}") from error
        return DockerSandbox(self._client, self._base_url, container)

    def _connect(self) -> Rejection[Unusable] | None:
        try:
            client, self._base_url = connect()
            self._features = client.info()
            self._client = client
        except EngineAbsent as error:
            return Rejection(Unusable.NO_ENGINE, str(error))
        except Exception as error:
            return Rejection(Unusable.NO_ENGINE, f"the container engine does not answer: {_text(error)}")
        return None

    def _validate_image(self, image: str) -> Rejection[Unusable] | None:
        try:
            self._client.inspect_image(image)
        except Exception as error:
            if isinstance(error, _api_error()) and getattr(error, "status_code", 0) == 404:
                return Rejection(Unusable.IMAGE_ABSENT, absent(image, "docker"))
            self._client = None
            return Rejection(Unusable.NO_ENGINE, f"the container engine does not answer: {_text(error)}")
        self._images.add(image)
        return None

    def _cpu_limits(self, cpus: float) -> dict[str, int]:
        """As far as the engine has them: a rootless one may be given no CPU controller."""
        limits: dict[str, int] = {}
        if self._features.get("CpuCfsQuota"):
            limits |= {"cpu_period": _PERIOD, "cpu_quota": max(int(cpus * _PERIOD), 1000)}
        return limits | ({"cpu_shares": _SHARES} if self._features.get("CPUShares") else {})

    def _start(self, spec: Spec) -> str:
        client, limits = self._client, spec.limits
        small = max(limits.disk // 4, 1 << 20)
        memory = limits.memory + limits.disk + small  # what is written into tmpfs is memory too
        host = client.create_host_config(
            network_mode="none", read_only=True, cap_drop=["ALL"], security_opt=["no-new-privileges"],
            mem_limit=memory, memswap_limit=memory, pids_limit=limits.processes + _RESERVE, shm_size=small,
            **self._cpu_limits(limits.cpus),
            tmpfs={WORK: f"size={limits.disk},mode=1777,exec", "/tmp": f"size={small},mode=1777,exec"})
        container: str = client.create_container(
            spec.image, _MAIN, user=_USER, working_dir=WORK, hostname="sandbox", host_config=host,
            labels={LABEL: self._label}, entrypoint=[],
            environment={"HOME": WORK, "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb",
                         **spec.environment})["Id"]
        try:
            client.start(container)
        except Exception:
            with contextlib.suppress(Exception):
                client.remove_container(container, force=True)
            raise
        return container


class EngineAbsent(Exception):
    """No engine answers; the text lists those tried."""


def connect() -> tuple[Any, str]:
    """Connect to the first engine that answers: that of DOCKER_HOST, else one of the usual sockets of docker and
    podman. Returns the SDK's low-level client and the address.

    Raises:
        EngineAbsent: none does.
    """
    try:
        from docker import APIClient
    except ImportError:
        raise EngineAbsent("the package docker is not installed: pip install 'openclaw-rl[environments]'") from None
    named = os.environ.get("DOCKER_HOST")
    if named and os.environ.get("DOCKER_TLS_VERIFY"):
        raise EngineAbsent("a container engine over TLS (DOCKER_TLS_VERIFY) can't be used; name a unix socket")
    tried = []
    for url in [named] if named else [f"unix://{path}" for path in _sockets() if path.exists()]:
        client = None
        try:
            # Podman answers with the version of docker's API that it knows.
            client = APIClient(base_url=url, version="auto", timeout=_TIMEOUT)
            client.ping()
            return client, url
        except Exception as error:
            tried.append(f"{url}: {_text(error)}")
            if client is not None:
                client.close()
    asked = "; ".join(tried) or "none of the usual sockets of docker and podman is there"
    raise EngineAbsent(f"no container engine answers ({asked}); start docker or podman, name its socket by "
                       "DOCKER_HOST, or set `backend: bubblewrap`")


def remove_leftovers(label: str) -> int:
    """Remove the containers of a mesh whose environment server is gone; returns their number. Blocks."""
    try:
        client, _ = connect()
    except EngineAbsent:
        return 0
    removed = 0
    try:
        for container in client.containers(all=True, filters={"label": f"{LABEL}={label}"}):
            with contextlib.suppress(Exception):  # gone meanwhile, or being removed
                client.remove_container(container["Id"], force=True, v=True)
                removed += 1
    except Exception as error:
        logger.warning("left-over containers can't be listed: %s", _text(error))
    finally:
        client.close()
    return removed


def _sockets() -> list[Path]:
    run = os.environ.get("XDG_RUNTIME_DIR")
    own = [Path(run) / "docker.sock", Path(run) / "podman/podman.sock"] if run else []
    return [Path("/var/run/docker.sock"), *own, Path("/run/podman/podman.sock")]


def _api_error() -> type[Exception]:
    from docker.errors import APIError

    error: type[Exception] = APIError
    return error


def _text(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip()[:300]
