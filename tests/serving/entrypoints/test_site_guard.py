"""The HTTP entrypoint against web pages, and what HTTP says of Host and of chunks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from openclaw_rl.config import Config
from openclaw_rl.rpc.auth.keys import KeyFile
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.text.template import ChatTemplate
from tests.serving.entrypoints.conftest import Entrypoint
from tests.serving.entrypoints.test_entrypoint import ASK, config, opened

PAGE = "https://chat.example.org"
JSON = {"Content-Type": "application/json"}


async def say(url: str, *lines: str, body: bytes = b"") -> bytes:
    """Send a request as it is, and return all that comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        return await asyncio.wait_for(reader.read(-1), 20)
    finally:
        writer.close()


@pytest.fixture
def settings() -> Config:
    return config(policy={"names": ["api.example.org"], "cors_origins": [PAGE.upper()]})


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


async def test_a_page_can_make_nothing_of_it_a_turn(entrypoint: Entrypoint) -> None:
    """The attack: no preflight comes before text/plain."""
    async with httpx.AsyncClient(base_url=entrypoint.url) as http:
        for path, body in (("/v1/chat/completions", ASK), ("/v1/completions", {"prompt": "Hi"}),
                           ("/v1/feedback", {"session_id": "s", "rating": "up"})):
            for headers, status in (({"Origin": "https://evil.example", "Content-Type": "text/plain"}, 403),
                                    ({"Origin": "https://evil.example", **JSON}, 403),
                                    ({"Sec-Fetch-Site": "cross-site", **JSON}, 403),
                                    ({"Content-Type": "text/plain"}, 415), ({}, 415)):
                response = await http.post(path, content=json.dumps(body), headers=headers)
                assert response.status_code == status, (path, headers)
                assert response.json()["error"]["type"] in ("invalid_request_error", "permission_error")
        assert not entrypoint.events() and not entrypoint.engine.prompts
        metrics = (await http.get("/metrics")).text
    assert 'openclaw_connections_refused_total{reason="cross_site"} 9.0' in metrics
    assert 'openclaw_connections_refused_total{reason="not_json"} 6.0' in metrics


async def test_only_names_of_this_machine_are_taken_without_a_key(settings: Config, home: Home, template: ChatTemplate
                                                                  ) -> None:
    async with opened(settings, home, template) as entrypoint, httpx.AsyncClient(base_url=entrypoint.address) as http:
        for name in ("localhost", "127.0.0.1:1", "api.example.org"):
            assert (await http.post("/v1/chat/completions", json=ASK, headers={"Host": name})).status_code == 200
        refused = await http.get("/v1/models", headers={"Host": "evil.example"})
        assert refused.status_code == 421 and "components.policy_server.names" in refused.json()["error"]["message"]
        # Who has a key is no page of a stranger: behind a proxy, a server is known by any name.
        shown, _ = KeyFile(home.root / "keys.json").add("a", ["chat", "read"])
        assert (await http.get("/v1/models", headers={"Host": "evil.example"})).status_code == 401
        assert (await http.get("/v1/models", headers={"Host": "any.example", "Authorization": f"Bearer {shown}"}
                               )).status_code == 200


async def test_pages_of_cors_origins_ask_first_and_read(settings: Config, home: Home, template: ChatTemplate) -> None:
    async with opened(settings, home, template) as entrypoint, httpx.AsyncClient(base_url=entrypoint.address) as http:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true",
                  "Access-Control-Request-Headers": "authorization,content-type,x-session-id,x-stainless-os"}
        preflight = await http.options("/v1/chat/completions", headers={"Origin": PAGE, **wanted})
        assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == PAGE
        assert set(wanted["Access-Control-Request-Headers"].split(",")) <= set(
            preflight.headers["access-control-allow-headers"].split(","))
        assert preflight.headers["access-control-allow-private-network"] == "true"
        answer = await http.post("/v1/chat/completions", json=ASK, headers={"Origin": PAGE})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
        assert "X-OpenClaw-Turn-Id" in answer.headers["access-control-expose-headers"]
        error = await http.post("/v1/chat/completions", content=b"{}", headers={"Origin": PAGE})
        assert error.status_code == 415 and error.headers["access-control-allow-origin"] == PAGE
        foreign = await http.options("/v1/chat/completions", headers={"Origin": "https://evil.example", **wanted})
        assert foreign.status_code == 400 and "access-control-allow-origin" not in foreign.headers
        assert "access-control-allow-origin" not in (await http.get("/v1/models")).headers


async def test_without_cors_origins_no_preflight_succeeds(entrypoint: Entrypoint) -> None:
    async with entrypoint.http() as http:
        preflight = await http.options("/v1/chat/completions", headers={
            "Origin": PAGE, "Access-Control-Request-Method": "POST"})
    assert preflight.status_code == 403 and "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("origin", [
    "*", "chat.example.org", "https://chat.example.org/", "https://*.example.org", "null"])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(ValueError, match=r"cors_origins[\s\S]*is not an origin: SCHEME://HOST"):
        config(policy={"cors_origins": [origin]})


@pytest.mark.parametrize("lines", [(), ("Host: 127.0.0.1", "Host: 127.0.0.1"), ("Host: 127.0.0.1, evil.example:1:2",)])
async def test_a_request_of_http_1_1_has_one_host(entrypoint: Entrypoint, lines: tuple[str, ...]) -> None:
    got = await say(entrypoint.url, "GET /v1/models HTTP/1.1", *lines, "Connection: close")
    assert got.startswith(b"HTTP/1.1 400 ") and b"bad_host" in got


async def test_http_1_0_gets_no_chunks(entrypoint: Entrypoint) -> None:
    """nginx asks so by default, and health checks without a Host."""
    healthy = await say(entrypoint.url, "GET /healthz HTTP/1.0")
    assert healthy.startswith(b"HTTP/1.1 200 ") and b"content-length: 11" in healthy
    body = json.dumps({**ASK, "stream": True}).encode()
    ask = ("POST /v1/chat/completions HTTP/{}", "Host: localhost", "Content-Type: application/json",
           f"Content-Length: {len(body)}", "Connection: close")
    head, _, old = (await say(entrypoint.url, ask[0].format("1.0"), *ask[1:], body=body)).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower() and b"connection: close" in head.lower()
    *events, done = old.decode().removesuffix("\n\n").split("\n\n")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there!" and done == "data: [DONE]"
    head, _, new = (await say(entrypoint.url, ask[0].format("1.1"), *ask[1:], body=body)).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower() and new.endswith(b"0\r\n\r\n")
