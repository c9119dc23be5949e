"""The private parts of uvicorn that connection.py and http.py rely on; pyproject.toml caps its version."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from pathlib import Path

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import Server, ServerState

ROOT = Path(__file__).parents[3]


def test_the_version_is_capped_and_installed() -> None:
    bounds = re.search(r'"uvicorn>=0\.\d+,<0\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert bounds, "a new minor version may rename what is listed below: raise the cap together with this test"
    assert int(importlib.metadata.version("uvicorn").split(".")[1]) < int(bounds[1])


@pytest.mark.parametrize("method", [
    "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url", "on_header",
    "on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "pause_writing", "resume_writing",
    "timeout_keep_alive_handler", "_unset_keepalive_if_required"])
def test_methods_of_the_protocol(method: str) -> None:
    assert inspect.isfunction(getattr(HttpToolsProtocol, method))


async def test_attributes_of_the_protocol() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Never called."""

    config = uvicorn.Config(app, http=HttpToolsProtocol, ws="none", log_config=None, lifespan="off")
    config.load()
    protocol = HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.on_message_begin()
    assert {"parser", "flow", "transport", "cycle", "pipeline", "url", "headers"} <= vars(protocol).keys()
    assert isinstance(ServerState().connections, set)


def test_a_cycle_of_request_and_response() -> None:
    parameters = inspect.signature(RequestResponseCycle.__init__).parameters
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert {"message_event", "transport", "flow", "on_response"} <= parameters.keys()
    for attribute in ("disconnected", "response_started", "response_complete", "message_event"):
        assert f"self.{attribute} = " in source, attribute
    assert "self.chunked_encoding: bool | None = None" in source and "self.expected_content_length = 0" in source
    assert "self.scope, self.receive, self.send" in inspect.getsource(RequestResponseCycle.run_asgi)


def test_flow_control() -> None:
    assert {"pause_reading", "resume_reading", "pause_writing", "resume_writing"} <= vars(FlowControl).keys()
    assert "self.read_paused = " in inspect.getsource(FlowControl.__init__)


def test_the_server() -> None:
    assert inspect.iscoroutinefunction(Server.startup) and hasattr(Server, "capture_signals")
    assert list(inspect.signature(Server.startup).parameters) == ["self", "sockets"]
    source = inspect.getsource(Server.__init__)
    for attribute in ("server_state", "started", "should_exit"):
        assert f"self.{attribute} = " in source, attribute
