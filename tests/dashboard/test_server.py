"""Where the dashboard listens, with what certificate, and what the command says when it can't."""

from __future__ import annotations

import builtins
import gzip
import re
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from typer.testing import CliRunner

from openclaw_rl.cli.certs import make_certificates
from openclaw_rl.cli.commands import app
from openclaw_rl.config import Config, ConfigError
from openclaw_rl.dashboard.server import listen
from openclaw_rl.runtime.home import Home
from tests.dashboard.rig import serving


def test_a_port_that_is_in_use_is_told_with_what_to_do(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            listen(Config(), home, "127.0.0.1", port)
        done = CliRunner().invoke(app, ["dashboard", "--port", str(port)], env={"OPENCLAW_RL_HOME": str(home.root)})
    assert done.exit_code != 0 and "--port" in str(done.exception or done.output)


def test_an_address_that_is_not_ours_is_told(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        listen(Config(), home, "192.0.2.1", 0, plain=True)


def test_on_a_network_it_speaks_https_or_is_told_not_to(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"plain HTTP on .*--plain-http"):
        listen(Config(), home, "0.0.0.0", 0)
    listener = listen(Config(), home, "0.0.0.0", 0, plain=True)
    assert listener.url == f"http://127.0.0.1:{listener.port}"
    listener.socket.close()
    make_certificates(home)
    listener = listen(Config(), home, "0.0.0.0", 0)
    assert listener.certificate is not None and listener.url.startswith("https://127.0.0.1:")
    listener.socket.close()


def test_on_loopback_it_speaks_https_where_the_mesh_is_encrypted(home: Home) -> None:
    config = Config.model_validate({"security": {"tls": "on"}})
    with pytest.raises(ConfigError, match="openclaw-rl init"):
        listen(config, home, "127.0.0.1", 0)
    make_certificates(home)
    listener = listen(config, home, "127.0.0.1", 0)
    assert listener.certificate is not None
    listener.socket.close()


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **fields: Any) -> Any:
        if name.split(".")[0] == "nicegui":
            raise ImportError(name)
        return real(name, *args, **fields)

    monkeypatch.setattr(builtins, "__import__", without)
    done = CliRunner().invoke(app, ["dashboard"], env={"OPENCLAW_RL_HOME": str(tmp_path)})
    assert done.exit_code == 1 and "pip install 'openclaw-rl[dashboard]'" in done.output


@pytest.mark.parametrize(("options", "variables", "opened"), [
    ([], {"DISPLAY": ":0"}, True), (["--no-browser"], {"DISPLAY": ":0"}, False), ([], {}, False),
    ([], {"DISPLAY": ":0", "CI": "true"}, False), ([], {"DISPLAY": ":0", "SSH_CONNECTION": "1.2.3.4"}, False)])
def test_a_browser_is_opened_where_somebody_can_see_it(monkeypatch: pytest.MonkeyPatch, home: Home, options: list[str],
                                                       variables: dict[str, str], opened: bool) -> None:
    links: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "CI", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**variables, "OPENCLAW_RL_HOME": str(home.root)}.items():
        monkeypatch.setenv(name, value)
    
    def browser(address: str) -> None:
        assert "token" not in address  # all users see the arguments of programs
        file = Path(url2pathname(urlsplit(address).path))
        assert file.stat().st_mode & 0o777 == 0o600
        links.append(file.read_text())

    monkeypatch.setattr("webbrowser.open", browser)

    def serve(config: Config, home: Home, listener: Any, ready: Any) -> None:
        listener.socket.close()
        ready(f"{listener.url}/login#token")
        deadline = time.monotonic() + 5
        while opened and not links and time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr("openclaw_rl.dashboard.server.serve", serve)
    done = CliRunner().invoke(app, ["dashboard", "--port", "0", *options])
    assert done.exit_code == 0 and "/login#token" in done.output and len(links) == opened
    assert all("url=http://127.0.0.1:" in link and '/login#token"' in link for link in links)
    assert not list((home.root / "dashboard").glob("open-*"))


def test_http_1_0_gets_no_chunks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9112, 6.1. nginx asks so by default, and for compressed files, whose lengths nobody knows."""
    def get(port: int, path: str, encoding: str = "gzip") -> tuple[str, bytes]:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAccept-Encoding: {encoding}\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
        return head.decode().lower(), body

    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # NiceGUI compresses nothing in a test
    with serving(home) as served:
        assert served.port is not None
        head, page = get(served.port, "/", "identity")
        answers = [(head, page), *(get(served.port, path) for path in re.findall(r'"(/[^"]+\.js)"', page.decode()))]
    assert all(head.startswith("http/1.1 200") and "transfer-encoding" not in head for head, _ in answers), answers
    assert any("content-length" not in head and gzip.decompress(body) for head, body in answers)
