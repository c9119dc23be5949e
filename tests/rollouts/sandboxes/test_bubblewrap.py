from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from openclaw_rl.rollouts.sandboxes import factory as make
from openclaw_rl.rollouts.sandboxes import host_processes
from openclaw_rl.rollouts.sandboxes.bubblewrap import backend as module
from openclaw_rl.rollouts.sandboxes.bubblewrap import cgroups, seccomp
from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap
from openclaw_rl.rollouts.sandboxes.bubblewrap.cover import Bind, Cover, mount_points, with_mounts
from openclaw_rl.rollouts.sandboxes.docker import backend as docker
from openclaw_rl.rollouts.sandboxes.images import Images, Manifest
from openclaw_rl.rollouts.sandboxes.interface import WORK, Limits, Sandbox, SandboxError, Spec
from openclaw_rl.rollouts.sandboxes.running import others_paused
from tests.rollouts.sandboxes.escapes import NO_IMAGES, SPEC, _processes
from tests.support.required import left_out


def left(label: str) -> list[Path]:
    """Folders and control groups on the host."""
    place = cgroups.find(label)
    folders = [Path(tempfile.gettempdir()), *({place.memory, place.pids} if place is not None else ())]
    return [found for folder in folders for found in folder.glob(f"openclaw-rl-{label}-*")]


async def test_a_process_runs_to_its_end(sandbox: Sandbox) -> None:
    finished = await sandbox.run(["sh", "-c", 'cat; echo "$A" >&2; pwd; id -u; exit 7'], stdin=b"in\n",
                                 environment={"A": "it's\ntwo $lines"}, folder="/tmp")
    assert finished.output == b"in\nit's\ntwo $lines\n/tmp\n1000\n"
    assert finished.code == 7 and not finished.truncated and not finished.timed_out


async def test_arguments_come_as_they_are(sandbox: Sandbox) -> None:
    words = ["", "a b", "'", '"', "$HOME", "`id`", "new\nline", "\\", "-n", "é", "*", "\t", "!x", "\udcff"]
    finished = await sandbox.run(["printf", "%s\\0", *words])
    assert finished.output == b"".join(os.fsencode(word) + b"\0" for word in words)


async def test_much_goes_in_and_comes_out(sandbox: Sandbox) -> None:
    data = os.urandom(3_000_000)
    finished = await sandbox.run(["cat"], stdin=data, most=4_000_000)
    assert finished.output == data and not finished.truncated
    finished = await sandbox.run(["cat"], stdin=data, most=1000)
    assert finished.output == data[:1000] and finished.truncated and finished.code == 0


async def test_processes_live_beside_one_another(sandbox: Sandbox) -> None:
    first, second = await sandbox.start(["cat"]), await sandbox.start(["cat"])
    await first.write(b"one")
    await second.write(b"two")
    assert (await first.read(), await second.read()) == (b"one", b"two")
    await first.kill()
    with pytest.raises(SandboxError):
        await first.write(b"x")
    await second.write(b"three")
    assert await second.read() == b"three"
    second.end_input()
    assert await second.read() == b"" and await second.wait() == 0
    assert (await sandbox.run(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])).code == 0


async def test_a_killed_process_takes_its_children_along(sandbox: Sandbox) -> None:
    finished = await sandbox.run(["sh", "-c", "sleep 611 & sleep 612"], seconds=0.3)
    assert finished.timed_out and finished.code is None
    assert b"sleep" not in (await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/comm"])).output


async def test_what_is_left_in_the_background_lives_on(sandbox: Sandbox) -> None:
    began = time.monotonic()
    finished = await sandbox.run(["sh", "-c", "sleep 600 & echo done"], seconds=20)
    assert finished.output == b"done\n" and finished.code == 0 and time.monotonic() - began < 15
    assert (await sandbox.run(["sh", "-c", "until grep -qx sleep /proc/[0-9]*/comm; do :; done"])).code == 0
    await sandbox.end_all()
    assert b"sleep" not in (await sandbox.run(["sh", "-c", "cat /proc/[0-9]*/comm"])).output


async def test_output_that_drips_from_the_background_holds_nobody_up(sandbox: Sandbox) -> None:
    began = time.monotonic()
    finished = await sandbox.run(["bash", "-c", "while :; do echo x; sleep 0.01; done & exit 5"], seconds=20)
    assert finished.code == 5 and finished.output.startswith(b"x\n") and time.monotonic() - began < 10


async def test_paused_processes_do_nothing(sandbox: Sandbox) -> None:
    process = await sandbox.start(["bash", "-c", "n=0; while :; do echo $((n++)) >n; echo; done"])
    await process.read()
    async with others_paused(sandbox):
        first = await sandbox.read("n")
        await asyncio.sleep(0.05)
        assert await sandbox.read("n") == first
    deadline = time.monotonic() + 20
    while await sandbox.read("n") == first:
        assert time.monotonic() < deadline
        await process.read()
    await process.kill()


async def test_a_process_of_the_background_can_not_guess_pipes(sandbox: Sandbox) -> None:
    await sandbox.write("answer", b"truth")
    program = ("import os\nprint(flush=True)\nwhile True:\n for k in range(1, 30):\n"
               "  try: fd = os.open(f'/run/sandbox/{k}.o', os.O_WRONLY | os.O_NONBLOCK)\n"
               "  except OSError: continue\n  os.close(fd)\n")
    await (await sandbox.start(["python3", "-c", program])).read()
    for _ in range(5):
        assert await sandbox.read("answer") == b"truth"


async def test_processes_whose_parents_have_ended_are_reaped(sandbox: Sandbox) -> None:
    program = ("for i in $(seq 60); do (sleep 0.001 &); done; sleep 0.2; "
               "until ! grep -q '^State:.Z' /proc/[0-9]*/status; do sleep 0.05; done; echo none")
    assert (await sandbox.run(["bash", "-c", program])).output.endswith(b"none\n")


async def test_interrupts_work(sandbox: Sandbox) -> None:
    finished = await sandbox.run(["sh", "-c", "kill -INT $$; echo ignored"])
    assert finished.output == b"" and finished.code == 130


async def test_a_program_that_is_not_there(sandbox: Sandbox) -> None:
    finished = await sandbox.run(["no-such-program"])
    assert finished.code not in (0, None) and b"no-such-program" in finished.output
    assert (await sandbox.run(["true"], folder="/no/such")).code == 126
    with pytest.raises(SandboxError, match="NUL"):
        await sandbox.run(["echo", "a\0b"])
    with pytest.raises(SandboxError, match="name of a variable"):
        await sandbox.run(["echo"], environment={"a;b": ""})
    with pytest.raises(SandboxError, match="give them on stdin"):
        await sandbox.run(["echo", "x" * 300_000])
    assert not sandbox.problem


async def test_files(sandbox: Sandbox) -> None:
    await sandbox.write("a folder/-b'.sh", b"#!/bin/sh\necho ran\n", 0o755)
    assert (await sandbox.run([f"{WORK}/a folder/-b'.sh"])).output == b"ran\n"
    assert await sandbox.read("a folder/-b'.sh", 5) == b"#!/bi"
    await sandbox.write("/tmp/x", b"")
    assert await sandbox.read("/tmp/x") == b""
    with pytest.raises(SandboxError, match="no such file"):
        await sandbox.read("nothing")
    for path in ("", "a/", "a\0b"):
        with pytest.raises(SandboxError, match="not the path of a file"):
            await sandbox.write(path, b"")
    with pytest.raises(SandboxError, match="No space"):
        await sandbox.write("big", bytes(20 << 20))


async def test_a_closed_sandbox_says_so(sandbox: Sandbox) -> None:
    process = await sandbox.start(["cat"])
    await asyncio.gather(sandbox.close(), sandbox.close())
    await sandbox.close()
    assert sandbox.problem == "it was closed" and await process.wait() is None
    for use in (sandbox.run(["true"]), sandbox.read("x"), sandbox.end_all(), process.write(b"x")):
        with pytest.raises(SandboxError, match="closed"):
            await use


async def test_a_sandbox_that_is_ended_from_outside_says_so_promptly(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.run(["sleep", "60"], seconds=60))
    await asyncio.sleep(0.1)
    os.kill(sandbox._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 5)
    assert sandbox.problem


async def test_nothing_is_left_of_a_closed_sandbox(bubblewrap: Bubblewrap) -> None:
    assert not await bubblewrap.validate(SPEC)
    before, folders = set(os.listdir("/proc/self/fd")), left(f"escapes-{os.getpid()}")
    sandboxes = await asyncio.gather(*(bubblewrap.make(SPEC) for _ in range(8)))
    await asyncio.gather(*(sandbox.run(["true"]) for sandbox in sandboxes))
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    await asyncio.sleep(0)
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1
    assert left(f"escapes-{os.getpid()}") == folders


@pytest.mark.parametrize("grouped", [True, False])
async def test_nothing_is_left_of_a_sandbox_that_nobody_waits_for(grouped: bool) -> None:
    label = f"cancelled{os.getpid()}"
    backend = Bubblewrap(NO_IMAGES, label)
    assert not await backend.validate(SPEC)
    if not grouped:
        backend._parent = None
    before, folders = set(os.listdir("/proc/self/fd")), left(label)
    for delay in (0, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012):
        making = asyncio.create_task(backend.make(SPEC))
        await asyncio.sleep(delay)
        making.cancel()
        try:
            await (await making).close()
        except asyncio.CancelledError:
            pass
    assert left(label) == folders
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 1


async def test_the_loop_goes_on_while_sandboxes_start(bubblewrap: Bubblewrap) -> None:
    assert not await bubblewrap.validate(SPEC)
    longest, last, running = 0.0, time.perf_counter(), True

    async def watch() -> None:
        nonlocal longest, last
        while running:
            await asyncio.sleep(0)
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()

    watching = asyncio.ensure_future(watch())
    sandbox = await bubblewrap.make(SPEC)
    await sandbox.run(["true"])
    running = False
    await watching
    await sandbox.close()
    assert longest < 1.0


async def test_they_end_with_the_server_that_made_them(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    label = f"orphans{os.getpid()}"
    program = ("import asyncio, sys\nfrom pathlib import Path\n"
               "from openclaw_rl.rollouts.sandboxes.bubblewrap.backend import Bubblewrap\n"
               "from tests.rollouts.sandboxes.escapes import NO_IMAGES, SPEC\n"
               "async def main():\n"
               f"    sandbox = await Bubblewrap(NO_IMAGES, '{label}').make(SPEC)\n"
               f"    await sandbox.start(['bash', '-c', 'exec -a {label} sleep 600'])\n"
               "    print('up', flush=True)\n    await asyncio.sleep(600)\nasyncio.run(main())\n")
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert server.stdout is not None
    assert await asyncio.to_thread(server.stdout.readline) == b"up\n"
    deadline = time.monotonic() + 20
    while len(_processes(f"{label}\0")) != 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    server.kill()
    server.wait()
    while _processes(f"{label}\0"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert await asyncio.to_thread(module.remove_leftovers, label) >= 1
    assert await asyncio.to_thread(module.remove_leftovers, label) == 0
    assert not left(label)


async def test_leftovers_of_a_server_that_lives_are_kept(bubblewrap: Bubblewrap, sandbox: Sandbox) -> None:
    await asyncio.to_thread(module.remove_leftovers, "escapes")
    assert (await sandbox.run(["echo", "on"])).output == b"on\n"


def test_leftovers_of_an_earlier_process_of_the_same_number_are_removed() -> None:
    label = f"before{os.getpid()}"
    names = [f"openclaw-rl-{label}-{os.getpid()}-1-x1", f"openclaw-rl-{label}-{cgroups.maker()}-x2"]
    for name in names:
        (Path(tempfile.gettempdir()) / name).mkdir(0o311)
    try:
        assert module.remove_leftovers(label) == 1
        assert [path.name for path in left(label)] == names[1:]
    finally:
        (Path(tempfile.gettempdir()) / names[1]).rmdir()


def test_what_runs_in_a_leftover_group_is_killed() -> None:
    label = f"group{os.getpid()}"
    place = cgroups.find(label)
    if place is None:
        pytest.skip("no control group can be made here")
    group = cgroups.make(place, label, memory=1 << 26, processes=8, cpus=1)
    stale = [folder.with_name(f"openclaw-rl-{label}-{os.getpid()}-1-1") for folder in group.folders]
    for folder in stale:
        folder.mkdir()
    process = subprocess.Popen(["sleep", "600"])
    try:
        for folder in stale:
            (folder / "cgroup.procs").write_text(str(process.pid))
        threading.Thread(target=process.wait).start()
        assert cgroups.remove_leftovers(label) == len(stale)
        assert process.wait(10) == -signal.SIGKILL and not any(folder.exists() for folder in stale)
        assert all(folder.is_dir() for folder in group.folders)
    finally:
        process.kill()
        group.remove()


def test_groups_that_come_and_go_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_mounts", lambda: ({"2": tmp_path}, {}))
    for number in range(100):
        (tmp_path / f"a{number}" / "b").mkdir(parents=True)
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(50):
                (tmp_path / f"x{number}" / "y").mkdir(parents=True)
                (tmp_path / f"x{number}" / "y").rmdir()
                (tmp_path / f"x{number}").rmdir()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert [cgroups.remove_leftovers("x") for _ in range(60)] == [0] * 60
    finally:
        ended.set()
        thread.join()


def test_leftovers_that_can_not_be_removed_stop_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       caplog: pytest.LogCaptureFixture) -> None:
    def fail(label: str) -> int:
        raise PermissionError(13, "Permission denied", "/sys/fs/cgroup")

    monkeypatch.setattr(module, "remove_leftovers", fail)
    monkeypatch.setattr(docker, "remove_leftovers", lambda label: 2)
    monkeypatch.setattr(host_processes, "remove_leftovers", lambda label: 0)
    assert make.remove_leftovers(tmp_path) == 2
    assert "can't be removed: [Errno 13] Permission denied: '/sys/fs/cgroup'" in caplog.text


async def test_without_bubblewrap_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = Bubblewrap(Images(tmp_path), "x")
    assert "apt-get install bubblewrap" in str(await backend.validate(SPEC))
    with pytest.raises(SandboxError, match="not installed"):
        await backend.make(SPEC)


async def test_a_bubblewrap_that_may_not_says_why(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bwrap = open_folder / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    problem = str(await Bubblewrap(Images(open_folder), "x").validate(SPEC))
    assert "No permissions to create new namespace" in problem and "sysctl" in problem


async def test_an_image_that_is_not_there(bubblewrap: Bubblewrap) -> None:
    problem = str(await bubblewrap.validate(Spec(SPEC.limits, "openclaw/gui-env:latest")))
    assert "servers/environment/build-image gui --for bubblewrap" in problem
    assert "is not the name of an image" in str(await bubblewrap.validate(Spec(SPEC.limits, "../../x")))


async def test_variables_that_are_too_long_are_refused(bubblewrap: Bubblewrap) -> None:
    assert not await bubblewrap.validate(SPEC)
    with pytest.raises(SandboxError, match="longer than a pipe holds"):
        await bubblewrap.make(Spec(Limits(1 << 26, 1 << 20, 8), environment={"A": "x" * 100_000}))


@pytest.mark.parametrize("covers", [True, False])
async def test_no_socket_in_a_folder_that_is_seen_leads_to_the_host(
        open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, covers: bool) -> None:
    """Also none that is made when the sandbox runs; without overlays they can be reached, which `description` says."""
    if shutil.which("bwrap") is None:
        left_out("bubblewrap is missing: tools/outside-tools installs it")
    images = Images(tmp_path)
    images.add(Manifest("seen:latest", "terminal", {}, folders=[str(open_folder)]))
    backend, spec = Bubblewrap(images, f"covers{os.getpid()}"), Spec(SPEC.limits, "seen")
    if not covers:
        monkeypatch.setattr(Cover, "command", lambda self: ["false"])
    assert not await backend.validate(spec)
    if backend._covers != covers:
        assert covers and os.geteuid() != 0
        pytest.skip("overlays can't be mounted here")
    assert ("in reach" in backend.description) == (not covers)
    sandbox = await backend.make(spec)
    program = ("import os, socket, sys\nfor name in sys.argv[1:]:\n"
               " try: socket.socket(socket.AF_UNIX).connect(name)\n"
               " except OSError as error: print(error.strerror)\n else: print('connected')\n"
               "try: os.open('fifo', os.O_WRONLY | os.O_NONBLOCK)\n"
               "except OSError as error: print(error.strerror)\nelse: print('opened')\n")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(open_folder / "socket"))
            os.chmod(open_folder / "socket", 0o777)
            os.mkfifo(open_folder / "fifo")
            os.chmod(open_folder / "fifo", 0o777)
            listener.listen()
            reader = os.open(open_folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
            finished = await sandbox.run(["python3", "-c", program, str(open_folder / "socket")],
                                         folder=str(open_folder))
            os.close(reader)
    finally:
        await sandbox.close()
    said = finished.output.decode().splitlines()
    assert said == (["Connection refused", "No such device or address"] if covers else ["connected", "opened"])


async def test_what_is_mounted_below_a_folder_is_seen_too() -> None:
    found = with_mounts(Bind("/usr", "/usr"), ["/", "/usr", "/usrlocal", "/usr/bin/env", "/usr/no such", "/usr/bin"])
    assert [bind.target for bind in found] == ["/usr", "/usr/bin", "/usr/bin/env"]
    assert with_mounts(Bind("/tree/usr", "/usr"), ["/usr/bin"]) == [Bind("/tree/usr", "/usr")]
    assert "/proc" in mount_points()


async def test_a_tree_that_was_cleaned_up_is_made_again(bubblewrap: Bubblewrap) -> None:
    assert not await bubblewrap.validate(SPEC)
    shutil.rmtree(module._trees[bubblewrap._key(None)].etc.parent)
    sandbox = await bubblewrap.make(SPEC)
    assert (await sandbox.run(["echo", "on"])).output == b"on\n"
    await sandbox.close()


async def test_a_sandbox_has_the_cpu_time_that_it_is_given(bubblewrap: Bubblewrap) -> None:
    assert not await bubblewrap.validate(SPEC)
    if not bubblewrap._limits_cpu:
        pytest.skip("no control group that limits CPU time can be made here")
    sandbox = await bubblewrap.make(Spec(replace(SPEC.limits, cpus=0.25)))
    program = ("import time\nbegin=time.monotonic()\nwhile time.monotonic()<begin+1: pass\n"
               "print(time.process_time()/(time.monotonic()-begin))")
    try:
        assert float((await sandbox.run(["python3", "-c", program])).output) < 0.4
    finally:
        await sandbox.close()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_system_calls_jumps_to_what_is_there(machine: str) -> None:
    program = seccomp.program(machine)
    count = len(program) // 8
    assert 0 < count < 4096
    for at in range(count):
        code, true, false = re.match(rb"(..)(.)(.)", program[8 * at:], re.DOTALL).groups()  # type: ignore[union-attr]
        if int.from_bytes(code, "little") & 7 == 5:
            assert at + 1 + max(true[0], false[0]) < count
    assert not seccomp.program("pdp11")
