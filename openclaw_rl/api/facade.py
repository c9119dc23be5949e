"""The Python API: talk to the policy, and manage the components that learn from it.

    client = PolicyClient("http://localhost:30000")
    print(client.chat("What is a heron?"))
    client.chat("Shorter, please.")          # the same conversation: this is what the first answer is judged by

    trainer = Trainer.start()                # the running one, or a new one
    print(trainer.update_count, get_component_stats()["training"])
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import httpx

from openclaw_rl.config import Config, load_config
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.v1.component_pb2 import ComponentStatus


class PolicyError(Exception):
    """The policy server refused a request or can't be reached; `status` is the HTTP status, None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Reply:
    """One answer; `str(reply)` is its text."""

    text: str
    turn_id: str
    session_id: str
    policy_version: int | None

    def __str__(self) -> str:
        return self.text


def _trusted(home: Home) -> ssl.SSLContext:
    """The CAs of the system, and the mesh's own where it is there."""
    from openclaw_rl.runtime.identity import certificates_folder
    from openclaw_rl.runtime.running_config import running_config

    context = ssl.create_default_context()
    authority = certificates_folder(running_config(home), home) / "ca.crt"
    if authority.exists():
        context.load_verify_locations(authority)
    return context


def _first_key(home: Home) -> str:
    """The key that distributed-start made for the first client; empty when it is not here."""
    from openclaw_rl.launch.distributed.start import first_key_file

    try:
        return first_key_file(home).read_text().strip()
    except OSError:
        return ""


class PolicyClient:
    """A conversation with the policy over its OpenAI-compatible API.

    It keeps the messages, so that each answer is judged by what is said next.
    """

    def __init__(self, base_url: str | None = None, *, api_key: str | None = None, model: str | None = None,
                 system: str | None = None, timeout: float = 600, home: Home | None = None) -> None:
        """The certificate of an https:// address may be of the mesh's CA in `home`, or of one that the system trusts.

        Args:
            base_url: http://HOST:PORT, with or without /v1; None takes the running mesh's of `home`.
            api_key: when the server asks for one; default OPENCLAW_RL_API_KEY, or the first of OPENCLAW_RL_API_KEYS, or
                for the running mesh of `home` the key that distributed-start made there.
            model: sent with each request; None asks the server for the one that it has.
            system: a system message that opens each session.
            timeout: seconds without anything from the server.
        """
        from openclaw_rl.runtime import mesh_file

        home = home or Home.default()
        key = api_key or os.environ.get("OPENCLAW_RL_API_KEY", "").strip() or os.environ.get(
            "OPENCLAW_RL_API_KEYS", "").split(",")[0].strip()
        mesh = mesh_file.read(home) if base_url is None else None
        self._on_hosts = mesh is not None
        if base_url is None:
            from openclaw_rl.client.openai_address import http_address

            base_url = http_address(home) or "http://127.0.0.1:30000"
            key = key or (_first_key(home) if mesh is not None else "")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._http = httpx.Client(base_url=self.base_url, timeout=httpx.Timeout(timeout, connect=5),
                                  headers={"Authorization": f"Bearer {key}"} if key else {}, trust_env=False,
                                  verify=_trusted(home) if base_url.startswith("https") else True)
        self._model = model
        self._system = system
        self.messages: list[dict[str, Any]] = []
        self.session_id = ""
        self.last: Reply | None = None
        self.new_session()

    def new_session(self) -> None:
        """Forget the conversation; the next message opens a new one. The old one's last answer is judged when its
        session ends."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []
        self.session_id = ""
        self.last = None

    def chat(self, text: str, **options: Any) -> Reply:
        """Say something and get the whole answer.

        Args:
            options: further fields of the request, such as temperature, max_tokens, turn_type, session_done.

        Raises:
            PolicyError: refused, or no connection. The conversation is as it was before.
        """
        for _ in self.stream(text, **options):
            pass
        assert self.last is not None
        return self.last

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Say something and get the answer piece by piece; `last` is the whole of it afterwards.

        Raises:
            PolicyError: refused, or no connection. The conversation is as it was before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        body = {"model": self.model, "messages": messages, "stream": True, **options}
        if self.session_id:
            body.setdefault("session_id", self.session_id)
        pieces: list[str] = []
        session = self.session_id
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                _raise_for_status(response)
                headers = response.headers
                for event in _events(response):
                    session = event.get("session_id") or session
                    for choice in event.get("choices", ()):
                        if piece := (choice.get("delta") or {}).get("content"):
                            pieces.append(piece)
                            yield piece
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        version = headers.get("x-openclaw-policy-version", "")
        reply = Reply("".join(pieces), headers.get("x-openclaw-turn-id", ""),
                      session or headers.get("x-session-id", ""), int(version) if version.isdigit() else None)
        self.messages = [*messages, {"role": "assistant", "content": reply.text}]
        self.session_id = reply.session_id
        self.last = reply

    @property
    def model(self) -> str:
        """Name of the model that requests ask for."""
        if self._model is None:
            try:
                response = self._http.get("/v1/models")
                _raise_for_status(response)
            except httpx.HTTPError as error:
                raise self._unreachable(error) from None
            self._model = str(response.json()["data"][0]["id"])
        return self._model

    def feedback(self, score: float | None = None, comment: str = "", *, turn_id: str | None = None) -> str:
        """Say directly what you think of an answer.

        Args:
            score: -1 (bad) to +1 (good); None with a comment alone.
            turn_id: the answer; default the last one.

        Returns:
            Id of the feedback.

        Raises:
            PolicyError: there is no answer yet, or the server refused it.
        """
        turn = turn_id or (self.last.turn_id if self.last else "")
        if not turn:
            raise PolicyError("there is no answer yet to give feedback on")
        body: dict[str, Any] = {"turn_id": turn}
        if score is not None:
            body["score"] = score
        if comment:
            body["comment"] = comment
        try:
            response = self._http.post("/v1/feedback", json=body)
            _raise_for_status(response)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return str(response.json().get("feedback_id", ""))

    def _unreachable(self, error: httpx.HTTPError) -> PolicyError:
        if "WRONG_VERSION_NUMBER" in str(error):
            return PolicyError(f"{self.base_url} speaks plain HTTP: use http:// in the address")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return PolicyError(f"{self.base_url} shows a certificate that is not trusted here ({error}): its CA is the "
                               "mesh's certs/ca.crt, which belongs into this home (`openclaw-rl mesh join`)")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return PolicyError(f"nothing answers at {self.base_url}; " + (
                "`openclaw-rl status` tells what runs, and `openclaw-rl distributed-start` where the mesh was started "
                "starts it again" if self._on_hosts else "start it with `openclaw-rl local-start`"))
        return PolicyError(f"{self.base_url}: the answer broke off ({error or type(error).__name__})")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            return
        if data:
            event = json.loads(data)
            if "error" in event:
                raise PolicyError(str(event["error"].get("message", event["error"])))
            yield event


def _raise_for_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:500]
    if response.status_code == 401:
        message = f"{message}; `openclaw-rl keys add` makes one: give it as api_key, or in OPENCLAW_RL_API_KEY"
    raise PolicyError(str(message), response.status_code)


class _Component:
    """A component of this machine's mesh, attached to."""

    name: ClassVar[str]

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home.default()

    @classmethod
    def start(cls, config: Config | str | os.PathLike[str] | None = None, *, home: Home | None = None,
              timeout: float = 180) -> Self:
        """Attach to the running component, or start one under the mesh's supervisor; it outlives this process, and
        `openclaw-rl stop-all` or `stop()` ends it.

        Args:
            config: for a mesh that does not run yet: a configuration or its file; default the home's config.yaml.
            timeout: seconds without any progress after which the start is given up.

        Raises:
            StartError: it can't be started; the text says why.
            ConfigError: the configuration can't be used.
        """
        from rich.console import Console

        from openclaw_rl.launch.start import start_one
        from openclaw_rl.runtime.running_config import running_config

        component = cls(home)
        if config is None:
            config = running_config(component.home)
        elif not isinstance(config, Config):
            config = load_config(os.fspath(config))
        start_one(component.home, config, cls.name, Console(quiet=True), timeout)
        return component

    def stop(self) -> None:
        """End it. One that was started elsewhere, without the mesh's supervisor, is left alone.

        Raises:
            StartError: it belongs to a mesh on several hosts, which would start it again.
        """
        from openclaw_rl.launch.checks import StartError
        from openclaw_rl.launch.supervisor import Supervisor
        from openclaw_rl.runtime import mesh_file

        if mesh_file.read(self.home) is not None:
            raise StartError(f"{self.name} belongs to a mesh on several hosts, which keeps it: `openclaw-rl stop-all` "
                             "ends all of it")

        supervisor = Supervisor(self.home)
        if supervisor.running():
            supervisor.stop(self.name)

    @property
    def status(self) -> ComponentStatus:
        """Its own word: state, detail, counters, gauges.

        Raises:
            MeshError: it does not answer.
        """
        from openclaw_rl.client import ComponentServiceClient
        from openclaw_rl.runtime.running_config import running_config

        address = getattr(running_config(self.home).components, self.name).address
        with ComponentServiceClient(address, component=self.name, home=self.home) as client:
            return client.get_status(timeout=5).status

    def _count(self, counter: str) -> int:
        return int(self.status.counters.get(counter, 0))


class EnvServer(_Component):
    """The environment server."""

    name = "env_server"

    @property
    def total_interactions(self) -> int:
        """Turns that it has, of every class."""
        return self._count("total_interactions")


class PRMJudge(_Component):
    """The judge."""

    name = "prm_judge"

    @property
    def total_judgments(self) -> int:
        """Judgements that it made."""
        return self._count("judgements")


class Trainer(_Component):
    """The trainer."""

    name = "trainer"

    @property
    def update_count(self) -> int:
        """Versions that it made."""
        return self._count("updates")

    def wait_for_update(self, beyond: int | None = None, timeout: float = 300) -> int:
        """Wait until there are more updates than `beyond` (default: than now).

        Returns:
            Their number.

        Raises:
            TimeoutError: there were not.
        """
        beyond = self.update_count if beyond is None else beyond
        deadline = time.monotonic() + timeout
        while (count := self.update_count) <= beyond:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no update in {timeout:.0f} s: {self.status.detail}")
            time.sleep(0.2)
        return count


def get_component_stats(home: Home | None = None) -> dict[str, Any]:
    """What the mesh is doing: `policy_qps` (requests per second), `prm_queue` (transitions that wait for votes),
    `training` (True while a step runs), `policy_version`, and `components`, the state of each. A figure whose
    component does not answer is 0, and its state tells so."""
    from openclaw_rl.launch.status import report

    mesh = report(home or Home.default())
    return {
        "policy_qps": mesh.gauge("policy_server", "qps") or 0.0,
        "prm_queue": int(mesh.gauge("prm_judge", "queue") or 0),
        "training": bool(mesh.gauge("trainer", "training")),
        "policy_version": mesh.policy_version,
        "components": {component.name: component.state for component in mesh.components},
    }
