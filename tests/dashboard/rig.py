"""The real command and a real browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from openclaw_rl.runtime.home import Home


class Served:
    """A running `openclaw-rl dashboard`."""

    def __init__(self, home: Home, *args: str, env: dict[str, str] | None = None) -> None:
        command = [str(Path(sys.executable).parent / "openclaw-rl"), "dashboard", "--no-browser", *args]
        if "--port" not in args:
            command += ["--port", "0"]
        self.process = subprocess.Popen(command, env={**os.environ, "OPENCLAW_RL_HOME": str(home.root), **(env or {})},
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors: list[str] = []
        assert self.process.stdout is not None and self.process.stderr is not None
        stderr = self.process.stderr
        self._reader = threading.Thread(target=lambda: self.errors.extend(stderr), daemon=True)
        self._reader.start()
        self.out = ""
        for line in self.process.stdout:
            self.out += line
            if "/login#" in line:
                break
        found = re.search(r"(https?://\S+)/login#(\S+)", self.out)
        assert found, f"the dashboard did not start: {self.out}{''.join(self.errors)}"
        self.url, self.token = found[1], found[2]
        self.port = urlsplit(self.url).port

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        """End it; its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(20)
        self._reader.join(5)
        return code


@contextmanager
def serving(home: Home, *args: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    served = Served(home, *args, env=env)
    try:
        yield served
    finally:
        if served.process.poll() is None:
            served.stop()


class Watched:
    """A browser's page, and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc)
                if request.url.startswith(("http", "ws")) else None)

    def sideways(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def browse(chromium: Any) -> Iterator[Any]:
    """Opens pages: browse(url, width=, height=, dark=, language=) gives a Watched."""
    contexts = []

    def opened(url: str, width: int = 1280, height: int = 900, dark: bool = False, language: str = "en-US",
               context: Any = None, **more: Any) -> Watched:
        if context is None:
            context = chromium.new_context(viewport={"width": width, "height": height}, locale=language,
                                           color_scheme="dark" if dark else "light", **more)
            context.set_default_timeout(60_000)
            contexts.append(context)
        watched = Watched(context.new_page())
        watched.page.goto(url)
        return watched

    yield opened
    for context in contexts:
        context.close()
