"""Requests of other sites' web pages are told from those of programs and of our own pages."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from openclaw_rl.rpc.auth.web_pages import HostNames, validate_host, validate_json, validate_site

HERE = "127.0.0.1:30000"


@pytest.mark.parametrize("host", [
    "localhost", "localhost:30000", "LOCALHOST.", "a.localhost:1", "127.0.0.1", "127.9.9.9:30000", "[::1]:30000",
    "api.example.org", "API.example.org.:443", "policy_1:30000"])
def test_names_that_are_ours(host: str) -> None:
    assert validate_host(Headers({"host": host})) is None
    assert HostNames.of(["API.example.org", "policy_1"], True, "names").validate(host) is None


@pytest.mark.parametrize("host", [
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.1.2.3:30000", "[2001:db8::1]", "2130706433",
    "0x7f000001", "0.0.0.0", "localhost@evil.example"])
def test_names_that_may_be_anybody_s(host: str) -> None:
    rejection = validate_host(Headers({"host": host})) or HostNames.of((), True, "x.names").validate(host)
    assert rejection is not None
    if rejection.code == "unknown_host":
        assert host in rejection.message and "x.names" in rejection.message


def test_addresses_are_ours_where_we_listen_on_them() -> None:
    assert HostNames.of((), False, "names").validate("10.1.2.3:30080") is None
    assert HostNames.of((), False, "names").validate("evil.example") is not None


@pytest.mark.parametrize("hosts", [(), (HERE, HERE), ("",), ("a b",), ("http://a",), ("a/b",), ("a:b",), ("a:1:2",),
                                   ("[::1",), ("\xe9.example",), ("a@b",)])
def test_a_request_has_one_host(hosts: tuple[str, ...]) -> None:
    rejection = validate_host(Headers(raw=[(b"host", host.encode("latin-1")) for host in hosts]))
    assert rejection is not None and rejection.code == "bad_host"


def test_http_1_0_needs_no_host() -> None:
    assert validate_host(Headers({}), "1.0") is None and validate_host(Headers({"host": "a b"}), "1.0") is not None


@pytest.mark.parametrize("headers", [
    {},  # SDKs, curl
    {"sec-fetch-mode": "cors"},  # fetch of Node.js
    {"origin": f"http://{HERE}"}, {"origin": f"https://{HERE}"},  # our own pages, the latter behind a proxy with TLS
    {"origin": f"http://{HERE}", "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"},
    {"origin": "https://chat.example.org", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}])
def test_who_may_ask(headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        assert validate_site(Headers({"host": HERE, **headers}), method, False,
                             frozenset({"https://chat.example.org"})) is None


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:3000"}, {"origin": ""},
    {"origin": "https://chat.example.org.evil.example"}, {"origin": "http://chat.example.org"},
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    {"origin": "https://evil.example", "sec-fetch-site": "same-origin"}])
def test_pages_that_may_not(headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        rejection = validate_site(Headers({"host": HERE, **headers}), method, False,
                                  frozenset({"https://chat.example.org"}), "cors_origins")
        assert rejection is not None and rejection.code == "cross_site" and "cors_origins" in rejection.message


def test_a_link_may_be_followed_and_a_form_not_sent() -> None:
    headers = Headers({"host": HERE, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
    assert validate_site(headers, "GET", False) is None and validate_site(headers, "POST", False) is not None


def test_an_https_listener_has_no_http_pages() -> None:
    assert validate_site(Headers({"host": HERE, "origin": f"http://{HERE}"}), "POST", True) is not None


def test_json_is_declared() -> None:
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/problem+json"):
        assert validate_json(Headers({"content-type": kind})) is None
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx",
                 "text/plain,application/json", "text/plain; application/json"):
        rejection = validate_json(Headers({"content-type": kind}))
        assert rejection is not None and rejection.code == "not_json" and "application/json" in rejection.message
    assert validate_json(Headers({})) is not None
