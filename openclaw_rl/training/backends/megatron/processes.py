"""Processes of a group: torchrun and its ranks, their connections, their output and their end."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.runtime.process import kill_marked
from openclaw_rl.training.backends.interface import BackendLost
from openclaw_rl.training.backends.megatron.frames import (
    FOLDER_VARIABLE,
    RENDEZVOUS_FILE,
    SOCKET_FILE,
    TOKEN_VARIABLE,
    BadFrame,
    Channel,
    Closed,
)

logger = logging.getLogger(__name__)

WORKER = "openclaw_rl.training.backends.megatron.worker"
_AGENT = "openclaw_rl.training.backends.megatron.launcher"
_POLL = 0.2
#: Seconds for a connection's first frame, for an end in good order, and until one that was killed is gone.
_HELLO, _CLOSE, _KILLED = 10.0, 5.0, 10.0
_LINE = 4000  # characters of a line in the log
_LEVELS = {"WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.ERROR, "DEBUG": logging.DEBUG}


class Processes:
    """Ranks under torchrun, each of which has connected.

    Args:
        world: how many.
        threads: of each.
        seconds: for their start.
        gpu: each has one; else none sees any.
        worker: the module that is a rank; see worker.main.

    Attributes:
        channels: to each rank.
        pids: of each rank.

    Raises:
        BackendLost: they did not come up; nothing is left of them.
    """

    def __init__(self, world: int, threads: int, seconds: float, *, gpu: bool = False,
                 worker: str = WORKER) -> None:
        self.channels: dict[int, Channel] = {}
        self.pids: dict[int, int] = {}
        self._world, self._token = world, secrets.token_hex(32)
        self._folder = Path(tempfile.mkdtemp(prefix="openclaw-rl-"))  # nobody else can look into it
        self._exit: dict[str, Any] = {}  # what torchrun says of the rank that failed
        self._agent: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(self._folder / SOCKET_FILE))
                listener.listen(2 * world)
                listener.settimeout(_POLL)
                self._agent = self._start(worker, self._environment(threads, gpu))
                self._accept(listener, time.monotonic() + seconds, seconds)
        except OSError as error:
            self.end()
            raise BackendLost(f"the Megatron group can't be started: {error}") from None
        except BaseException:
            self.end()
            raise
        logger.info("the Megatron group of %d runs, pids %s", world,
                 ", ".join(str(pid) for _, pid in sorted(self.pids.items())))

    def _start(self, worker: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", _AGENT, str(self._folder), "--nnodes=1", f"--nproc-per-node={self._world}",
                   "--max-restarts=0", "--monitor-interval=0.5", "--local-addr=127.0.0.1", "--rdzv-backend=c10d",
                   f"--rdzv-endpoint={self._folder / RENDEZVOUS_FILE}", "--rdzv-conf=store_type=file", "-m", worker]
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env=environment, start_new_session=True)
        assert agent.stdout is not None and agent.stderr is not None
        self._read(agent.stdout, self._note_exit)
        self._read(agent.stderr, partial(_tell, "torchrun:"))
        return agent

    def _environment(self, threads: int, gpu: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("TORCHELASTIC_", "MASTER_")) and name not in (
                    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        return kept | {
            FOLDER_VARIABLE: str(self._folder), TOKEN_VARIABLE: self._token, "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # One machine: nothing listens where another could talk to it. torchrun's own store would, and unpickles.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), _loopback()),
            **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})}

    def _accept(self, listener: socket.socket, until: float, seconds: float) -> None:
        logs: set[int] = set()
        while len(self.channels) + len(logs) < 2 * self._world:
            self.check()
            if time.monotonic() > until:
                raise BackendLost(f"{self._world - len(self.channels)} of the {self._world} ranks of the Megatron group"
                                  f" did not come up within {seconds:g} s "
                                  "(components.trainer.megatron.start_timeout)")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            channel = Channel(connection)
            try:
                rank, use = self._hello(channel)
            except (Closed, BadFrame, KeyError, TimeoutError) as error:
                logger.warning("refused a connection to the Megatron group: %s", error)
                channel.close()
                continue
            if use == "log":
                connection.settimeout(None)
                self._read(connection.makefile("rb"), partial(_tell, f"rank {rank}"))
                connection.close()  # the file has it
                logs.add(rank)
            else:
                self.channels[rank], self.pids[rank] = channel, _peer(connection)

    def _hello(self, channel: Channel) -> tuple[int, str]:
        hello, _ = channel.receive(_HELLO)
        if not hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
            raise BadFrame("its token is wrong")
        rank: int = hello["rank"]
        if rank not in range(self._world):
            raise BadFrame(f"there is no rank {rank}")
        return rank, str(hello["use"])

    def check(self) -> None:
        """See whether torchrun runs.

        Raises:
            BackendLost: it ended.
        """
        if self._agent is None or self._agent.poll() is not None:
            raise self.gone(None, "its last words are in the trainer's log")

    def run(self) -> bool:
        """Whether torchrun and all ranks run."""
        if self._agent is None or self._agent.poll() is not None:
            return False
        try:
            return all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in self.pids.values())
        except psutil.Error:
            return False

    def gone(self, rank: int | None, error: str) -> BackendLost:
        """Return why a rank whose connection broke (or torchrun, None) has ended, as far as torchrun says."""
        if self._agent is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._agent.wait(_CLOSE)
        for reader in self._readers[:1]:
            reader.join(1)
        rank = self._exit.get("rank", rank)
        who = "torchrun" if rank is None else f"rank {rank}"
        who += f" (pid {self.pids[rank]})" if rank in self.pids else ""
        code = self._exit.get("exit_code")
        if code is None:
            why = f"ended: {error}"
        elif code < 0:
            why = f"was ended by {signal.Signals(-code).name}"
            why += "; when nobody sent it, the system was out of memory" if code == -signal.SIGKILL else ""
        else:
            why = f"ended with {code}; its last words are in the trainer's log"
        return BackendLost(f"{who} of the Megatron group {why}")

    def end(self, *, orderly: bool = False) -> None:
        """End the ranks and what they started. May be called again.

        Args:
            orderly: they wait for commands, so they can end by themselves.
        """
        agent, self._agent = self._agent, None
        if agent is not None and orderly:
            with contextlib.suppress(Closed, TimeoutError):
                for channel in self.channels.values():
                    channel.send({"do": "close"}, seconds=1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.wait(_CLOSE)
        for channel in self.channels.values():
            channel.close()  # by which the ranks end
        self.channels.clear()
        if agent is not None:
            assert agent.stdin is not None
            agent.stdin.close()  # by which torchrun does
            kill_marked(TOKEN_VARIABLE, self._token, _KILLED)  # what is left of the group
            agent.wait()
        for reader in self._readers:
            reader.join(1)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self, stream: IO[bytes], tell: Callable[[str], None]) -> None:
        def read() -> None:
            with contextlib.suppress(OSError, ValueError), stream:
                while raw := stream.readline(_LINE):
                    if text := raw.decode(errors="replace").rstrip():
                        tell(text)

        thread = threading.Thread(target=read, daemon=True, name="megatron-log")
        thread.start()
        self._readers.append(thread)

    def _note_exit(self, line: str) -> None:
        try:
            said = parse_json(line)
        except ValueError:
            said = None
        if isinstance(said, dict) and isinstance(said.get("exit_code"), int):
            self._exit = said
        else:
            _tell("torchrun:", line)


def _tell(who: str, line: str) -> None:
    logger.log(_LEVELS.get(line.partition(" ")[0], logging.INFO), "%s %s", who, line)


def _peer(connection: socket.socket) -> int:
    """Return the pid of the process at the other end, from the kernel."""
    return int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)


def _loopback() -> str:
    """Return the name of the interface that has 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return str(name)
    return "lo"
