"""Tries to get out of a sandbox, and tells what came of it: `python -m tests.rollouts.sandboxes.escapes`."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap
from openclaw_rl.rollouts.sandboxes.images import Images
from openclaw_rl.rollouts.sandboxes.interface import WORK, Backend, Limits, Sandbox, SandboxError, Spec
from tests.rollouts.sandboxes.attempts import ATTEMPTS, Attempt

#: Of a folder that can't be.
NO_IMAGES = Images(Path(os.devnull) / "home")
SPEC = Spec(Limits(memory=96 * 2**20, disk=8 * 2**20, processes=32))


@dataclass(frozen=True, slots=True)
class Overload:
    """Something that would use up the machine, or the server."""

    name: str
    tried: str
    attempt: Callable[[Sandbox], Awaitable[str]]  #: what came of it; AssertionError when it wasn't contained


def backend() -> Bubblewrap:
    return Bubblewrap(NO_IMAGES, "escapes")


@contextmanager
def host() -> Iterator[dict[str, object]]:
    """Something on the host to reach for."""
    os.environ["OPENCLAW_RL_TEST_SECRET"] = "s3cret"
    with tempfile.TemporaryDirectory(dir=Path.home()) as home, tempfile.TemporaryDirectory() as folder, \
            socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix, socket.socket(socket.AF_UNIX) as abstract:
        secret = Path(home) / "secret"
        secret.write_text("s3cret")
        tcp.bind(("127.0.0.1", 0))
        unix.bind(f"{folder}/host.sock")
        os.chmod(folder, 0o755)
        os.chmod(f"{folder}/host.sock", 0o777)
        abstract.bind(f"\0openclaw-{os.getpid()}")
        for listener in (tcp, unix, abstract):
            listener.listen()
        victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "openclaw-victim"])
        try:
            yield {"port": tcp.getsockname()[1], "socket": f"{folder}/host.sock", "secret": secret,
                   "abstract": f"openclaw-{os.getpid()}", "pid": victim.pid, "home": home}
            assert victim.poll() is None, "a process of the host was killed"
        finally:
            victim.kill()
            victim.wait()
            del os.environ["OPENCLAW_RL_TEST_SECRET"]


async def attempt(sandbox: Sandbox, attempt: Attempt, target: dict[str, object]) -> str:
    """What its program said last: `refused: ...` or `ESCAPED: ...`; the latter also when exit codes are wrong now."""
    finished = await sandbox.run(["python3", "-c", attempt.program(**target)], seconds=30)
    code = (await sandbox.run(["sh", "-c", "exit 1"])).code
    if code != 1:
        return f"ESCAPED: the exit code 1 is told as {code}"
    return _verdict(finished.output.decode("utf-8", "replace"))


def attempt_outside(attempt: Attempt, target: dict[str, object]) -> str:
    done = subprocess.run(["python3", "-c", attempt.program(**target)], capture_output=True, text=True, check=False)
    return _verdict(done.stdout + done.stderr)


def is_root() -> bool:
    return os.geteuid() == 0


def _verdict(said: str) -> str:
    lines = said.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if line.startswith("ESCAPED")), lines[-1])


# -------------------------------------------------------------------------------------------- using up the machine
async def _fork_bomb(sandbox: Sandbox) -> str:
    program = "b() { b | b & }; b; b; sleep 0.5; exec bash -c 'echo $(ls)'"
    finished = await sandbox.run(["bash", "-c", program], seconds=2)
    assert b"fork" in finished.output or finished.timed_out, finished
    # It can still be told to end all, and then works again.
    await sandbox.end_all()
    assert (await sandbox.run(["bash", "-c", "echo $(echo again)"])).output == b"again\n"
    return "contained: 32 processes at most; works again when all are ended"


async def _fork_bomb_of_sessions(sandbox: Sandbox) -> str:
    program = ("import os\nwhile True:\n try:\n  if os.fork(): os.setsid()\n except OSError: pass\n")
    finished = await sandbox.run(["python3", "-c", program], seconds=1)
    assert finished.timed_out
    await sandbox.end_all()
    assert (await sandbox.run(["bash", "-c", "echo $(echo again)"])).output == b"again\n"
    return "contained: the same, with sessions of their own"


async def _memory_bomb(sandbox: Sandbox) -> str:
    finished = await sandbox.run(["python3", "-c", "x = bytearray(400 << 20); print(len(x))"])
    assert finished.code == 137 or b"MemoryError" in finished.output, finished
    assert await sandbox.killed() == 1 or b"MemoryError" in finished.output
    assert (await sandbox.run(["echo", "on"])).output == b"on\n"
    return "contained: the process is killed and counted; the sandbox lives on"


async def _memory_bomb_of_many(sandbox: Sandbox) -> str:
    program = ("import os,time\nfor _ in range(12):\n"
               "    os.fork() or (bytearray(b'x') * (20 << 20), time.sleep(9), os._exit(0))\n")
    await sandbox.run(["python3", "-c", program], seconds=3)
    deadline = time.monotonic() + (20 if is_root() else 1)
    while await sandbox.killed() == 0:
        if time.monotonic() > deadline:
            assert not is_root()
            return "partly: no control group can be made, so each process has the limit, not all together"
        await asyncio.sleep(0.02)
    return "contained: processes are killed and counted; all together have one limit"


async def _computing(sandbox: Sandbox) -> str:
    program = ("import os,resource,time\nbegin=time.monotonic()\n"
               "for _ in range(27):\n if not os.fork():\n  while time.monotonic()<begin+2: pass\n  os._exit(0)\n"
               "for _ in range(27): os.wait()\n"
               "used=resource.getrusage(resource.RUSAGE_CHILDREN)\n"
               "print((used.ru_utime+used.ru_stime)/(time.monotonic()-begin),os.nice(0))")
    finished = await sandbox.run(["python3", "-c", program], seconds=60)
    cores, nice = finished.output.split()
    if int(nice) == os.nice(0):
        assert float(cores) < 1.2 * SPEC.limits.cpus, finished
        return "contained: the CPU time of one core; all sandboxes together weigh half as much as who serves users"
    assert int(nice) == min(os.nice(0) + 15, 19), finished
    return "partly: no control group can be made, so all have a low priority instead"


async def _disk(sandbox: Sandbox) -> str:
    places = f"{WORK}/f /tmp/f /dev/shm/f"
    finished = await sandbox.run(["bash", "-c", f"for f in {places}; do head -c 99M /dev/zero >$f; done; "
                                                f"du -cb {places} | tail -1"])
    assert finished.output.count(b"No space left") == 3, finished
    assert int(finished.output.split()[-2]) <= 12 * 2**20
    assert b"No space" in (await sandbox.run(["sh", "-c", f"head -c 99999 /dev/zero >{WORK}/g"])).output
    return f"contained: no space left; 8 MiB in {WORK}, 2 in /tmp and in /dev/shm"


async def _output(sandbox: Sandbox) -> str:
    finished = await sandbox.run(["cat", "/dev/zero"], seconds=30, most=1000)
    assert finished.truncated and len(finished.output) == 1000 and finished.code is None and not finished.timed_out
    return "contained: 1000 bytes kept, killed after 16 MiB"


async def _unread_output(sandbox: Sandbox) -> str:
    process = await sandbox.start(["cat", "/dev/zero"])
    await asyncio.sleep(0.2)
    assert (await sandbox.run(["echo", "on"])).output == b"on\n"
    assert len(await process.read()) <= 65536
    await process.kill()
    return "contained: the process waits; no more than a pipe and a buffer are filled"


async def _binary(sandbox: Sandbox) -> str:
    finished = await sandbox.run(["head", "-c", "5000", "/dev/urandom"])
    assert len(finished.output) == 5000
    return "contained: bytes come as they are, and are escaped where text is shown"


async def _hang(sandbox: Sandbox) -> str:
    began = time.monotonic()
    finished = await sandbox.run(["bash", "-c", "trap '' INT TERM HUP; while :; do sleep 1; done"], seconds=0.3)
    assert finished.timed_out and time.monotonic() - began < 10
    return "contained: killed at its time"


async def _links_written(sandbox: Sandbox) -> str:
    await sandbox.run(["sh", "-c", "ln -s /etc/passwd a; ln -s / b; ln -s /proc/1/root c"])
    for path in ("a", "b/etc/passwd", "b/usr/bin/ls", "../etc/passwd", "/etc/passwd", "/etc/new", "c/etc/new"):
        try:
            await sandbox.write(path, b"root::0:0::/:/bin/sh\n")
        except SandboxError:
            continue
        raise AssertionError(path)
    return "refused: links are followed inside, where system files can't be written"


async def _links_read(sandbox: Sandbox) -> str:
    await sandbox.run(["sh", "-c", "ln -s /etc/shadow a; ln -s / b; mkfifo c; ln -s /dev/zero d"])
    for path in ("a", "b/etc/shadow", "../../etc/shadow", "/root/.bashrc", "c", "d", "/dev/zero", WORK):
        try:
            await sandbox.read(path)
        except SandboxError:
            continue
        raise AssertionError(path)
    return "refused: not there, or no plain file"


async def _init(sandbox: Sandbox) -> str:
    began = time.monotonic()
    try:
        await sandbox.run(["bash", "-c", "kill -9 1 2 3; sleep 9"], seconds=20)
    except SandboxError:
        pass
    assert sandbox.problem and time.monotonic() - began < 5
    return "contained: the sandbox is ended, and told why"


async def _daemon(sandbox: Sandbox) -> str:
    marker = f"openclaw-daemon-{os.getpid()}-{time.monotonic_ns()}"
    program = f"setsid nohup bash -c 'exec -a {marker} sleep 600' >/dev/null 2>&1 & disown; sleep 0.1"
    await sandbox.run(["bash", "-c", program])
    deadline = time.monotonic() + 10
    while not _processes(f"{marker}\0"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await sandbox.close()
    deadline = time.monotonic() + 5
    while _processes(marker):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return "contained: it ends with the sandbox"


def _processes(marker: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


OVERLOADS = [
    Overload("fork bomb", "processes without end", _fork_bomb),
    Overload("fork bomb of sessions", "the same, each in a session of its own", _fork_bomb_of_sessions),
    Overload("memory bomb", "400 MiB in one process; 96 are allowed", _memory_bomb),
    Overload("memory bomb of many", "12 processes of 20 MiB", _memory_bomb_of_many),
    Overload("computing", "27 processes that compute", _computing),
    Overload("disk", "99 MB into each place that can be written", _disk),
    Overload("endless output", "cat /dev/zero", _output),
    Overload("output that nobody reads", "cat /dev/zero, held up", _unread_output),
    Overload("binary output", "random bytes", _binary),
    Overload("hanging", "a program that ignores signals", _hang),
    Overload("links: writing", "write() by links and .. to system files", _links_written),
    Overload("links: reading", "read() by links and .. of host files, devices, FIFOs", _links_read),
    Overload("first process", "killing the sandbox's first processes", _init),
    Overload("daemon", "a process that leaves its session and outlives all", _daemon),
]


async def table(make: Backend) -> list[tuple[str, str, str]]:
    """Name, what was tried, result."""
    rows: list[tuple[str, str, str]] = []
    with host() as target:
        for one in ATTEMPTS:
            sandbox = await make.make(SPEC)
            rows.append((one.name, one.tried, await attempt(sandbox, one, target)))
            await sandbox.close()
        for overload in OVERLOADS:
            sandbox = await make.make(SPEC)
            rows.append((overload.name, overload.tried, await overload.attempt(sandbox)))
            await sandbox.close()
    return rows


def main() -> None:
    print("| | tried | result |\n|---|---|---|")
    for row in asyncio.run(table(backend())):
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")


if __name__ == "__main__":
    main()
