"""What never goes through a proxy."""

from __future__ import annotations

import urllib.request

import pytest

from openclaw_rl.config import Config
from openclaw_rl.runtime.proxies import hosts_of, proxy_of, spare, without_password


@pytest.mark.parametrize("said", [{}, {"no_proxy": "a.example"}, {"NO_PROXY": "a.example, ::1"},
                                  {"no_proxy": "a.example", "NO_PROXY": "b.example"}])
def test_loopback_and_the_meshs_hosts_are_spared_besides_what_was_said(said: dict[str, str]) -> None:
    environ = dict(said)
    spare(["10.0.0.4"], environ)
    assert environ["no_proxy"] == environ["NO_PROXY"]
    names = environ["no_proxy"].split(",")
    assert {"localhost", "127.0.0.1", "::1", "10.0.0.4"} <= set(names) and len(set(names)) == len(names)
    assert all(part.strip() in names for value in said.values() for part in value.split(","))
    again = dict(environ)
    spare(["10.0.0.4"], again)
    assert again == environ


def test_a_star_stays_one() -> None:
    environ = {"NO_PROXY": "*"}
    spare(["10.0.0.4"], environ)
    assert environ == {"NO_PROXY": "*", "no_proxy": "*"}


def test_hosts_of_a_mesh() -> None:
    config = Config.model_validate({"components": {
        "prm_judge": {"address": "judge.example:50053"}, "trainer": {"policy_servers": ["[fd00::7]:50051"]}}})
    assert {"judge.example", "[fd00::7]", "127.0.0.1"} <= set(hosts_of(config))


def test_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "getproxies_environment", lambda: {"https": "http://p:1", "all": "socks5://q:2",
                                                                         "no": "spared.example"})
    assert proxy_of("https://api.example/v1") == "http://p:1"
    assert proxy_of("http://api.example/v1") == "socks5://q:2"
    assert [proxy_of(f"https://{host}:8/v1") for host in ("127.0.0.1", "[::1]", "localhost", "spared.example")] == [
        None] * 4


def test_no_password_in_a_message() -> None:
    assert without_password("http://me:se@cret@proxy:8") == "http://***@proxy:8"
    assert without_password("proxy:8") == "proxy:8"
