"""The entrypoint as the configuration wants it: closed on a network, HTTPS, a certificate that changes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.api.facade import PolicyClient, PolicyError
from openclaw_rl.config import Config, ConfigError
from openclaw_rl.rpc.auth.callers import client_digest
from openclaw_rl.rpc.auth.keys import KeyFile
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.chat_service import ChatService
from openclaw_rl.serving.entrypoints.openai.entrypoint import HttpEntrypoint
from openclaw_rl.serving.entrypoints.openai.https import Certificate
from openclaw_rl.serving.entrypoints.openai.metrics import Metrics
from openclaw_rl.serving.event_recorder import SCHEMA, TurnRecorder
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.outbox import Outbox
from tests.serving.entrypoints.certificates import make_certificate
from tests.serving.stub import EOS, StubEngine

ASK = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def config(host: str = "127.0.0.1", policy: dict[str, Any] | None = None, **security: Any) -> Config:
    return Config.model_validate({"components": {"policy_server": {"port": 0, "host": host, **(policy or {})}},
                                  "security": security})


@asynccontextmanager
async def opened(settings: Config, home: Home, template: ChatTemplate) -> AsyncIterator[HttpEntrypoint]:
    entrypoint = HttpEntrypoint(settings, home, {})
    store = Database(home.root / "state.db", "group", SCHEMA)
    service = ChatService(TurnRecorder(store, Outbox(store, "turns")), "stub")
    service.mark_ready(TokenPolicy(StubEngine(lambda _prompt: [EOS]), template))
    entrypoint.start(service, client_digest, Metrics())
    try:
        yield entrypoint
    finally:
        await entrypoint.stop()
        store.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_entrypoint_on_a_network_needs_a_key(home: Home, host: str) -> None:
    with pytest.raises(ConfigError, match=r"policy_server\.host: .*openclaw-rl keys add NAME --scope chat"):
        HttpEntrypoint(config(host, http_tls="off"), home, {})


def test_a_key_that_has_ended_is_none(home: Home) -> None:
    KeyFile(home.root / "keys.json").add("old", ["chat"], expires=time.time() - 1)
    with pytest.raises(ConfigError, match="keys add"):
        HttpEntrypoint(config("0.0.0.0", http_tls="off"), home, {})
    home.root.joinpath("keys.json").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"keys\.json is damaged"):
        HttpEntrypoint(config(), home, {})


def test_an_entrypoint_on_a_network_needs_https(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    KeyFile(home.root / "keys.json").add("a", ["chat"])
    with pytest.raises(ConfigError, match=r"needs HTTPS.*policy_server\.key.*openclaw-rl init.*http_tls: off"):
        HttpEntrypoint(config("0.0.0.0"), home, {})
    with caplog.at_level(logging.WARNING):
        HttpEntrypoint(config("0.0.0.0", http_tls="off"), home, {})._http._socket.close()
    assert "not encrypted" in caplog.text


async def test_an_entrypoint_on_a_network_asks_for_keys(home: Home, template: ChatTemplate) -> None:
    shown, _ = (file := KeyFile(home.root / "keys.json")).add("a", ["chat"])
    async with opened(config("0.0.0.0", http_tls="off"), home, template) as entrypoint, httpx.AsyncClient(
            base_url=entrypoint.address) as http:
        assert (await http.get("/metrics")).status_code == 401 and (await http.get("/healthz")).status_code == 200
        assert (await http.get("/metrics", headers={"Authorization": f"Bearer {shown}"})).status_code == 403
        assert (await http.post("/v1/chat/completions", json=ASK,
                                headers={"Authorization": f"Bearer {shown}"})).status_code == 200
        file.path.unlink()
        assert (await http.post("/v1/chat/completions", json=ASK)).status_code == 401
        assert [name for name, message in entrypoint.alarms() if message] == ["keys_unusable"]


async def test_an_entrypoint_on_loopback_is_open_until_there_is_a_key(home: Home, template: ChatTemplate) -> None:
    async with opened(config(), home, template) as entrypoint, httpx.AsyncClient(base_url=entrypoint.address) as http:
        assert entrypoint.address.startswith("http://") and (await http.get("/metrics")).status_code == 200
        KeyFile(home.root / "keys.json").add("a", ["chat"])
        assert (await http.get("/metrics")).status_code == 401


async def test_https_with_a_certificate_of_ones_own(home: Home, template: ChatTemplate, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    settings = config(http_certificate=str(certificate), http_key=str(key))
    async with opened(settings, home, template) as entrypoint:
        assert entrypoint.address.startswith("https://127.0.0.1:")

        async def serial() -> str:
            trusted = ssl.create_default_context(cafile=str(certificate))
            async with httpx.AsyncClient(base_url=entrypoint.address, verify=trusted) as http:
                reply = await http.post("/v1/chat/completions", json=ASK)
                assert reply.status_code == 200
                stream = reply.extensions["network_stream"].get_extra_info("ssl_object")
                assert stream.version() in ("TLSv1.2", "TLSv1.3")
                return str(stream.getpeercert()["serialNumber"])

        first = await serial()
        old = certificate.read_bytes()
        (tmp_path / "new").mkdir()
        make_certificate(tmp_path / "new")
        shutil.copy(tmp_path / "new/entrypoint.crt", certificate)  # half of the pair: the old one stays
        certificate_then = certificate.read_bytes()
        certificate.write_bytes(old)
        assert await serial() == first
        certificate.write_bytes(certificate_then)
        context = ssl.create_default_context(cafile=str(tmp_path / "new/entrypoint.crt"))
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=entrypoint.address, verify=context) as http:
                await http.get("/healthz")
        assert "can't be used" in dict(entrypoint.alarms())["http_certificate"]
        shutil.copy(tmp_path / "new/entrypoint.key", key)
        assert await serial() != first and not dict(entrypoint.alarms())["http_certificate"]


@pytest.mark.parametrize(("given", "text"), [
    ({"http_certificate": "x.crt"}, r"security\.http_key: is missing"),
    ({"http_key": "x.key"}, r"security\.http_certificate: is missing"),
    ({"http_certificate": "/nowhere/x.crt", "http_key": "/nowhere/x.key"}, "/nowhere/x.key can't be read")])
def test_certificates_that_can_not_be_used(home: Home, given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        HttpEntrypoint(config(**given), home, {})


def test_a_certificates_key_is_a_secret_and_it_ends(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, days=10)
    assert "put a new one there" in Certificate(certificate, key).problem
    assert not Certificate(certificate, key, warn_days=5).problem
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Certificate(certificate, key)
    certificate, key = make_certificate(tmp_path, "ended", days=-1)
    assert "clients refuse it" in Certificate(certificate, key).problem


async def test_what_our_own_client_says(home: Home, template: ChatTemplate, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    shown, _ = KeyFile(home.root / "keys.json").add("a", ["chat", "read"])

    def said(url: str, **options: Any) -> str:
        with PolicyClient(url, home=home, **options) as client:
            try:
                return client.chat("Hi").text or "an answer"
            except PolicyError as error:
                return str(error)

    async with opened(config(), home, template) as entrypoint:
        assert "use http:// in the address" in await asyncio.to_thread(
            said, entrypoint.address.replace("http:", "https:"))
        assert "openclaw-rl keys add" in await asyncio.to_thread(said, entrypoint.address)
    async with opened(config(http_certificate=str(certificate), http_key=str(key)), home, template) as entrypoint:
        assert "certs/ca.crt" in await asyncio.to_thread(said, entrypoint.address)
        plain = entrypoint.address.replace("https:", "http:")
        assert "use https:// in the address" in await asyncio.to_thread(said, plain)
        home.certs.mkdir(exist_ok=True)
        shutil.copy(certificate, home.certs / "ca.crt")
        monkeypatch.setenv("OPENCLAW_RL_API_KEY", shown)
        assert await asyncio.to_thread(said, entrypoint.address) == "an answer"
