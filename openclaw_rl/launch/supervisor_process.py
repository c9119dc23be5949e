"""The supervisor's process: `python -m openclaw_rl.launch.supervisor_process --home FOLDER`.

Nothing that it does can end it: its logs lose what they can't write, and a standby takes its place when it is killed.
The standby is a shell that waits for the end of a pipe, so it needs no memory and has nothing that could fail.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openclaw_rl.config import load_config
from openclaw_rl.launch import jaeger, supervisor
from openclaw_rl.launch.children import Child, ChildState, Program
from openclaw_rl.launch.rotating_log import RotatingHandler
from openclaw_rl.runtime.home import COMPONENTS, Home, write_atomically

logger = logging.getLogger(__name__)

#: Ends well when it is told so; when its input ends, the supervisor was killed. The pause keeps one that can't start
#: from trying without end.
_STANDBY = 'read -r word && exit 0; sleep 1; exec "$@"'
#: Seconds between two starts of a standby that ends by itself.
_STANDBY_PAUSE = 1.0
#: And between two tries where there can be none, such as in an image without a shell.
_NO_STANDBY_PAUSE = 60.0


class SupervisorProcess:
    """Keeps the components of one mesh running.

    Args:
        home: of the mesh.
        wanted: components to start at once: those of a supervisor that was killed.
        exited: components that had been asked to end before it was, and stay down.
    """

    def __init__(self, home: Home, wanted: Collection[str] = (), exited: Collection[str] = ()) -> None:
        self._home, self._wanted, self._exited = home, set(wanted), set(exited)
        self._sockets = supervisor.socket_folder(home)
        self._children: dict[str, Child] = {}
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._standby: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep_standby, name="standby", daemon=True)

    def run(self) -> None:
        """Serve until asked to end, or by SIGTERM or SIGINT."""
        path = supervisor.socket_path(self._home)
        path.unlink(missing_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._keeper.start()
        threading.Thread(target=_Server(str(path), self.answer).serve_forever, name="socket", daemon=True).start()
        for name in sorted(self._wanted):
            self.start(name)
        self._stopping.wait()
        with self._lock:
            children = list(self._children.values())
        logger.info("ending %s", ", ".join(child.name for child in children) or "without a component")
        with ThreadPoolExecutor(len(children) or 1) as pool:
            list(pool.map(Child.stop, children))
        self._end_standby()
        # Nobody takes our place any more, and what is removed here is ours until the lock is free.
        supervisor.remove_files(self._home)

    # What is asked over the socket

    def answer(self, call: str, name: str) -> Any:
        """Answer one call. Raises ValueError when it can't be; the text says why."""
        if call == "pid":
            return os.getpid()
        if call == "processes":
            return [child.report() for child in self._children.values()] + [
                ChildState(name, "EXITED" if name in self._exited else "STOPPED").json()
                for name in COMPONENTS if name not in self._children]
        if call == "shutdown":
            self._stopping.set()
            return None
        if name not in (*COMPONENTS, jaeger.NAME):
            raise ValueError("there is no such component")
        if call == "start":
            return self.start(name)
        if call == "stop":
            return self.stop(name)
        raise ValueError("there is no such call")

    def start(self, name: str) -> None:
        with self._lock:
            if self._stopping.is_set():
                raise ValueError("the supervisor is ending")
            self._wanted.add(name)
            self._exited.discard(name)
            child = self._children.get(name)
            if child is None or child.state.state == "STOPPED":
                self._children[name] = Child(self.program(name), self._home, self._sockets, self._save)
            else:
                child.restart()
        self._save()

    def stop(self, name: str) -> None:
        with self._lock:
            self._wanted.discard(name)
            self._exited.discard(name)
            child = self._children.get(name)
        self._save()
        if child is not None:
            child.stop()

    def program(self, name: str) -> Program:
        """What a component, or Jaeger, runs."""
        home, traced = self._home, jaeger.read(self._home)
        if name == jaeger.NAME:
            if traced is None:
                raise ValueError("there is no record of its ports")
            return Program(name, traced.command, lambda: {**os.environ, **traced.variables(),
                                                          **supervisor.marks(name, home)}, notifies=False)
        file = home.run / "config.yaml"
        more = jaeger.COMPONENT_VARIABLES if traced else {}
        return Program(name, lambda: supervisor.component_command(name, file),
                       lambda: {**os.environ, **supervisor.environment(load_config(file), name), **more,
                                **supervisor.marks(name, home)})

    def _save(self) -> None:
        """Write down what the one that takes our place has to know."""
        with self._saving:
            standby = self._standby.pid if self._standby is not None else 0
            exited = self._exited | {name for name, child in list(self._children.items())
                                     if name in self._wanted and child.state.state == "EXITED"}
            state = {"pid": os.getpid(), "standby": standby, "wanted": sorted(self._wanted - exited),
                     "exited": sorted(exited)}
            try:
                write_atomically(supervisor.state_file(self._home), json.dumps(state).encode())
            except OSError as error:
                logger.error("%s can't be written: %s", supervisor.state_file(self._home), error)

    # The standby

    def _keep_standby(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._lock:
                    if self._stopping.is_set():
                        return
                    self._standby = subprocess.Popen(
                        ["/bin/sh", "-c", _STANDBY, "openclaw-rl-standby", *supervisor.command(self._home)],
                        stdin=subprocess.PIPE, cwd=self._home.root, start_new_session=True)
            except OSError as error:
                logger.error("the standby can't be started: %s", error)
                self._stopping.wait(_NO_STANDBY_PAUSE)
            else:
                self._save()
                self._standby.wait()
                if self._stopping.is_set():
                    return
                logger.warning("the standby has ended (%s) and is started again", self._standby.returncode)
            self._stopping.wait(_STANDBY_PAUSE)

    def _end_standby(self) -> None:
        with self._lock:
            standby = self._standby
        if standby is not None and standby.stdin is not None:
            with contextlib.suppress(OSError):
                standby.stdin.write(b"stop\n")
                standby.stdin.close()
        self._keeper.join(10)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers one JSON object a line with another: {"call", "name"} with {"result"} or {"error"}."""

    daemon_threads = True

    def __init__(self, path: str, answer: Callable[[str, str], Any]) -> None:
        self.answer = answer
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.info("a caller has gone", exc_info=True)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        for line in self.rfile:
            try:
                call = json.loads(line)
                answer = {"result": self.server.answer(call["call"], call.get("name", ""))}
            except Exception as error:
                if not isinstance(error, ValueError):
                    logger.exception("a call over the socket")
                answer = {"error": str(error)}
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _only_one(home: Home) -> bool:
    """Hold the lock until this process ends; False when another one does."""
    path = home.run / "supervisor.lock"
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), path.stat()):
                return True
        os.close(lock)  # the one that held it has removed the file


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_rl.launch.supervisor_process",
                                     description="Keep the components of a mesh on this machine running.")
    parser.add_argument("--home", required=True, type=Path, help="folder of the mesh")
    parser.add_argument("--module", default=supervisor.COMPONENT_MODULE, help="what a component's process runs")
    args = parser.parse_args(argv)
    os.umask(0o077)
    home, supervisor.COMPONENT_MODULE = Home(args.home), args.module
    handler = RotatingHandler(home.logs / "supervisor.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if not _only_one(home):
        print(f"a supervisor of {home.root} runs already", file=sys.stderr)
        return 1
    try:
        state = json.loads(supervisor.state_file(home).read_text())
        wanted, exited = list(state["wanted"]), list(state["exited"])
    except (OSError, ValueError, KeyError, TypeError):
        wanted, exited = [], []
    if wanted:
        logger.error("the supervisor was killed; its standby takes its place and starts %s again", ", ".join(wanted))
        from openclaw_rl.launch import leftovers

        leftovers.end_orphans(home)
    logger.info("supervisor of %s, pid %d", home.root, os.getpid())
    try:
        SupervisorProcess(home, wanted, exited).run()
    except Exception:
        logger.exception("the supervisor ends")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
