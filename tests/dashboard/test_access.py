"""Who gets in: keys, sessions, guesses, other sites' pages, names that point here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw_rl.dashboard.access import GUESSES, SESSION_SECONDS, Access, ApiError, NotAllowed, secret_in
from openclaw_rl.dashboard.guard import Guard, cookie_name
from openclaw_rl.rpc.auth.keys import KeyFile, KeyRing


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """Keys in a file and what guards with them."""

    def __init__(self, folder: Path, loopback: bool, *names: str) -> None:
        self.file = KeyFile(folder / "keys.json")
        self.shown = {scope: self.file.add(scope, [scope])[0] for scope in ("chat", "read", "admin")}
        self.clock = Clock()
        self.access = Access(KeyRing(folder / "keys.json"), loopback, b"s" * 32, self.clock,
                             folder / "ended")
        self.seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.seen.append(scope["state"]["visitor"])
            if scope["type"] == "websocket":
                await send({"type": "websocket.accept"})
                return
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
            await send({"type": "http.response.body", "body": b"inside"})

        self.guard = Guard(app, self.access, names, False, 30080)

    async def get(self, path: str = "/", client: str = "127.0.0.1", base: str = "http://127.0.0.1:30080",
                  method: str = "GET", **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.guard, client=(client, 5))
        async with httpx.AsyncClient(transport=transport, base_url=base, trust_env=False) as http:
            return await http.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def signed_in(self, shown: str) -> str:
        return f"{cookie_name(30080)}={self.access.sign_in(shown, '10.0.0.9')}"


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "local").mkdir()
    yield Desk(tmp_path / "local", loopback=True)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "remote").mkdir()
    yield Desk(tmp_path / "remote", loopback=False)


REMOTE = {"client": "10.0.0.9", "base": "http://10.0.0.1:30080"}


async def test_this_machine_s_people_read_without_a_key_and_act_with_one(local: Desk) -> None:
    assert (await local.get()).text == "inside"
    assert local.seen[-1].reads and local.seen[-1].words and not local.seen[-1].acts
    with pytest.raises(NotAllowed):
        local.seen[-1].require_acts()
    await local.get(cookie=local.signed_in(local.shown["read"]))
    assert not local.seen[-1].acts
    for shown in (local.shown["admin"], local.access.token):
        await local.get(cookie=local.signed_in(shown))
        local.seen[-1].require_acts()


async def test_others_need_a_key_for_everything(remote: Desk) -> None:
    assert (await remote.get(**REMOTE)).status_code == 401
    sent = await remote.get("/turns?q=a&b=%2F", **REMOTE, accept="text/html")
    assert sent.status_code == 303 and sent.headers["location"] == "/login?next=%2Fturns%3Fq%3Da%26b%3D%252F"
    assert (await remote.get("/login", **REMOTE)).status_code == 200
    assert (await remote.get("/loginx", **REMOTE)).status_code == 401
    for scope, may in (("read", (True, False, False)), ("admin", (True, True, True))):
        await remote.get(**REMOTE, cookie=remote.signed_in(remote.shown[scope]))
        visitor = remote.seen[-1]
        assert (visitor.reads, visitor.words, visitor.acts) == may and visitor.name == scope


async def test_loopback_is_no_right_at_a_public_listener_or_behind_a_proxy(local: Desk, remote: Desk) -> None:
    assert (await remote.get(client="127.0.0.1")).status_code == 401
    assert (await local.get(x_forwarded_for="8.8.8.8")).status_code == 401


def test_a_key_that_reads_nothing_opens_nothing(local: Desk) -> None:
    for shown in (local.shown["chat"], "", "ocl_wrong", local.access.token[:-1], "\udcff\x00" * 50):
        with pytest.raises(ApiError) as caught:
            local.access.sign_in(shown, "10.0.0.2")
        assert caught.value.status == 401


def test_wrong_guesses_are_few_and_lock_nobody_out(local: Desk) -> None:
    for _ in range(GUESSES):
        with pytest.raises(ApiError, match="invalid key"):
            local.access.sign_in("ocl_guess", "10.0.0.3")
    with pytest.raises(ApiError) as caught:
        local.access.sign_in("ocl_guess", "10.0.0.3")
    assert caught.value.status == 429 and "Retry-After" in caught.value.headers
    for right in (local.shown["admin"], local.access.token):
        local.access.sign_in(right, "10.0.0.3")


async def test_who_comes_to_a_dashboard_with_a_name_may_have_come_through_a_proxy(tmp_path: Path) -> None:
    named = Desk(tmp_path, True, "panel.example.org")
    for base in ("http://127.0.0.1:30080", "http://localhost", "http://panel.example.org"):
        assert (await named.get(base=base)).status_code == 401
    assert (await named.get(cookie=named.signed_in(named.access.token))).status_code == 200


def test_who_signed_out_is_out_after_a_restart_too(local: Desk, tmp_path: Path) -> None:
    first, other = (local.access.sign_in(local.shown["admin"], "a") for _ in range(2))
    local.access.sign_out(first)
    file = tmp_path / "local" / "ended"
    assert file.stat().st_mode & 0o777 == 0o600
    again = Access(local.access.ring, True, b"s" * 32, local.clock, file)
    assert again.session(first) is None and again.session(other) is not None
    file.write_text("nonsense")
    assert Access(local.access.ring, True, b"s" * 32, local.clock, file).session(other) is None


async def test_a_session_ends_with_its_key_its_time_and_its_reader(remote: Desk) -> None:
    cookies = {name: remote.signed_in(remote.shown[name]) for name in ("read", "admin")}
    await remote.get(**REMOTE, cookie=cookies["admin"])
    page = remote.seen[-1]
    assert page.acts
    remote.file.revoke("admin")
    assert not page.acts and not page.reads  # a page that is open still asks each time
    assert (await remote.get(**REMOTE, cookie=cookies["admin"])).status_code == 401
    again = remote.signed_in(remote.shown["read"])
    remote.access.sign_out(cookies["read"].partition("=")[2])
    assert (await remote.get(**REMOTE, cookie=cookies["read"])).status_code == 401
    assert (await remote.get(**REMOTE, cookie=again)).status_code == 200
    remote.clock.now += SESSION_SECONDS + 1
    assert (await remote.get(**REMOTE, cookie=again)).status_code == 401


async def test_a_cookie_that_was_changed_is_none(remote: Desk) -> None:
    name, _, value = remote.signed_in(remote.shown["admin"]).partition("=")
    body, _, signature = value.partition(".")
    other = Access(remote.access.ring, False, b"x" * 32).sign_in(remote.shown["admin"], "a")
    for forged in (other, f"{body}.", f"{body}.{signature[::-1]}", f"{body[:-4]}AAAA.{signature}", "é.é", "." * 500):
        assert remote.access.session(forged) is None
    assert (await remote.get(**REMOTE, cookie=f"{name}={other}")).status_code == 401


@pytest.mark.parametrize("base", ["http://evil.example.com", "http://127.0.0.1.evil.example", "http://10.1.2.3:30080"])
async def test_a_name_that_points_here_is_refused(local: Desk, base: str) -> None:
    assert (await local.get(base=base)).status_code == 421
    assert not local.seen


@pytest.mark.parametrize("base", ["http://localhost:30080", "http://[::1]:30080", "http://127.3.2.1:9", "http://LOCALHOST"])
async def test_this_machine_s_names_are_known(local: Desk, base: str) -> None:
    assert (await local.get(base=base)).status_code == 200


@pytest.mark.parametrize("headers", [
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://localhost:30080"}, {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}])
async def test_other_sites_pages_get_nothing(local: Desk, headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        assert (await local.get(method=method, **headers)).status_code == 403
    assert not local.seen
    assert await _socket(local, **headers) == 4403


async def _socket(desk: Desk, **headers: str) -> int:
    """Open a WebSocket; 0, or the code that it is closed with."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(b"host", b"127.0.0.1:30080"), *((k.replace("_", "-").encode(), v.encode()) for k, v in headers.items())]
    await desk.guard({"type": "websocket", "path": "/_nicegui_ws/socket.io/", "headers": raw, "query_string": b"",
                      "client": ("127.0.0.1", 5)}, receive, send)
    return int(sent[0].get("code", 0))


async def test_sockets_of_our_own_pages_open_and_of_strangers_do_not(local: Desk, remote: Desk) -> None:
    assert await _socket(local, origin="http://127.0.0.1:30080") == 0
    assert await _socket(remote, origin="http://127.0.0.1:30080") == 4403
    cookie = remote.signed_in(remote.shown["read"])
    assert await _socket(remote, origin="http://127.0.0.1:30080", cookie=cookie) == 0


async def test_what_goes_out_forbids_foreign_and_inline_scripts(local: Desk) -> None:
    first, second = await local.get(), await local.get()
    policy = first.headers["content-security-policy"]
    scripts = next(part for part in policy.split(";") if "script-src" in part)
    assert "'unsafe-inline'" not in scripts and "http" not in scripts and "*" not in policy
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert policy != second.headers["content-security-policy"]  # the number is a new one for each page
    assert first.headers["cache-control"] == "no-store" and first.headers["x-content-type-options"] == "nosniff"


def test_the_secret_is_kept_and_nobody_else_reads_it(tmp_path: Path) -> None:
    first = secret_in(tmp_path / "dashboard")
    file = tmp_path / "dashboard" / "secret"
    assert secret_in(tmp_path / "dashboard") == first and file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert secret_in(tmp_path / "dashboard") != first
    file.write_bytes(b"short")
    assert len(secret_in(tmp_path / "dashboard")) == 32
    (tmp_path / "plain").write_text("")
    assert len(secret_in(tmp_path / "plain" / "x")) == 32


async def test_a_reader_who_went_away_is_no_error(local: Desk) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError(said)

    local.guard.app = broken
    said = "No response returned."
    with pytest.raises(AssertionError):  # httpx misses the response, nothing else is wrong
        await local.get()
    said = "something else"
    with pytest.raises(RuntimeError, match="something else"):
        await local.get()
