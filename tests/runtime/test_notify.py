"""What a component tells its supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_rl.runtime import notify
from openclaw_rl.runtime.notify import NotifySocket


def test_the_supervisor_hears_all_that_was_sent_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, str]] = []
    receiver = NotifySocket(tmp_path / "x.notify", heard.append)
    monkeypatch.setenv(notify.SOCKET_VARIABLE, str(receiver.path))
    notify.progress("loading\nthe model")
    notify.ready()
    receiver.flush()
    assert heard == [{"STATUS": "loading the model"}, {"READY": "1"}]
    notify.failed("line one\nline two = ünïcode")
    notify.stopping()
    receiver.close()
    assert notify.failure(heard[2]) == "line one\nline two = ünïcode" and heard[3] == {"STOPPING": "1"}
    assert heard[2]["STATUS"] == "Failed: line one line two = ünïcode", "systemd shows that"
    assert not receiver.path.exists()
    assert notify.failure({}) == notify.failure({notify.FAILURE: "{"}) == ""


def test_one_that_does_not_listen_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(notify.SOCKET_VARIABLE, raising=False)
    notify.ready()
    monkeypatch.setenv(notify.SOCKET_VARIABLE, str(tmp_path / "nobody"))
    notify.ready()
    assert "the supervisor was not told READY" in caplog.text
    monkeypatch.setattr(NotifySocket, "_listen", lambda self: None)
    receiver = NotifySocket(tmp_path / "deaf", lambda message: None)
    monkeypatch.setenv(notify.SOCKET_VARIABLE, str(receiver.path))
    for _ in range(1000):  # more than the kernel keeps
        notify.progress("x")
    assert "the supervisor was not told STATUS" in caplog.text
    receiver._socket.close()
