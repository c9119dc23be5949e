"""The hosts do what the tests on them rely on: faults take effect, end, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.hosts.box import BoxError
from tests.hosts.rig import Host, Rig
from tests.support.waiting import until

#: argv: address to listen on, port, file; writes what the first client sends into it.
_LISTEN = ("import socket, sys, shutil; s = socket.create_server((sys.argv[1], int(sys.argv[2]))); c = s.accept()[0];"
           "f = open(sys.argv[3], 'wb'); shutil.copyfileobj(c.makefile('rb'), f)")
#: argv: address, port; sends stdin.
_SEND = ("import socket, sys, shutil; c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10);"
         "f = c.makefile('wb'); shutil.copyfileobj(sys.stdin.buffer, f); f.close(); c.shutdown(1); c.recv(1)")


def reaches(a: Host, b: Host) -> bool:
    return a.run(["ssh", "-o", "ConnectTimeout=2", b.address, "true"], check=False).returncode == 0


def send(a: Host, b: Host, data: str, port: int) -> None:
    """Plain TCP."""
    listener = b.popen([sys.executable, "-c", _LISTEN, b.address, str(port), "/tmp/received"])
    until(lambda: f":{port}" in b.run(["ss", "-Hltn"]).stdout, 20, "listening")
    a.run([sys.executable, "-c", _SEND, b.address, str(port)], input=data)
    assert listener.wait(30) == 0
    assert (b.tmp / "received").read_text() == data


def test_each_has_its_own_of_everything_and_may_log_in_to_the_others(rig: Rig) -> None:
    for host in rig.hosts:
        assert host.run(["hostname", "-I"]).stdout.split() == [host.address]
        host.run("echo mine > ~/own; echo mine > /tmp/own; ps -eo comm= > ~/ps")
        assert (host.home / "own").read_text() == "mine\n" and (host.tmp / "own").exists()
        assert "pytest" not in (host.home / "ps").read_text()
        assert rig.host1.run(["ssh", host.address, "hostname"]).stdout == f"{host.name}\n"
    assert not (Path.home() / "own").exists() and not Path("/tmp/own").exists()
    rig.host2.run([sys.executable, "-c", "import openclaw_rl.cli"])


def test_a_partition_cuts_its_two_hosts_and_no_others(rig: Rig) -> None:
    rig.partition(rig.host1, rig.host4)
    try:
        assert not reaches(rig.host1, rig.host4) and not reaches(rig.host4, rig.host1)
        assert reaches(rig.host1, rig.host3) and reaches(rig.host4, rig.host3)
    finally:
        rig.heal()
    assert reaches(rig.host1, rig.host4)


def test_a_killed_host_takes_its_processes_along_and_keeps_its_disk(rig: Rig) -> None:
    sleeper = rig.host3.popen("setsid sleep 1000 & echo kept > ~/kept; wait")
    until(lambda: len(rig.processes(rig.host3)["host3"]) == 2, 20, "the processes")
    inside = rig.host3.processes()
    rig.kill(rig.host3)
    assert not any(process.is_running() for process in inside)
    sleeper.wait(10)
    assert not reaches(rig.host1, rig.host3)
    with pytest.raises(BoxError):
        rig.host3.run("true")
    rig.start(rig.host3)
    assert reaches(rig.host1, rig.host3) and reaches(rig.host3, rig.host1)
    assert rig.host3.run("cat ~/kept").stdout == "kept\n"
    assert rig.processes(rig.host3)["host3"] == []


def test_a_slow_link_and_a_long_one(rig: Rig) -> None:
    data = "x" * 2_500_000  # 20 Mbit

    def fastest(measure: Callable[[int], float]) -> float:
        """Of three tries: a busy machine makes some slow."""
        return min(measure(number) for number in range(3))

    def sending(number: int, port: int) -> float:
        begin = time.monotonic()
        send(rig.host1, rig.host2, data, port + number)
        return time.monotonic() - begin

    unbound = fastest(lambda number: sending(number, 7100))
    try:
        rig.limit(rig.host2, "20mbit")
        assert fastest(lambda number: sending(number, 7110)) > max(0.8, unbound * 0.5)
    finally:
        rig.heal()
    connect = ("import socket, time; b = time.monotonic(); socket.create_connection(('10.0.0.2', 22)).recv(1);"
               "print(time.monotonic() - b)")

    def connecting(number: int) -> float:
        return float(rig.host1.run([sys.executable, "-c", connect]).stdout)

    try:
        rig.delay(rig.host2, 100)
        # The first packet waits for an address to be asked for; connecting is one round trip, the greeting half of
        # another.
        assert 0.38 < fastest(connecting) < 2
    finally:
        rig.heal()
    assert fastest(connecting) < 0.3


def test_a_capture_sees_what_is_sent_in_plain(rig: Rig, tmp_path: Path) -> None:
    capture = rig.capture(tmp_path / "packets.pcap")
    send(rig.host1, rig.host2, "heron-in-plain " * 100, 7002)
    rig.host1.run(["ssh", "10.0.0.2", "cat"], input="heron-by-ssh " * 100)
    capture.stop()
    assert capture.contains("heron-in-plain") and not capture.contains("heron-by-ssh")


def test_nothing_is_left_of_one_that_was_killed(rig: Rig, tmp_path: Path) -> None:
    namespaces = {os.readlink(f"/proc/{box.pid}/ns/net") for box in (*rig.hosts, rig.hub)}
    code = ("import sys, time; from pathlib import Path; from tests.hosts.rig import Rig; r = Rig(Path(sys.argv[1]));"
            "r.__enter__(); r.delay(r.host1, 5); c = r.capture(Path(sys.argv[1]) / 'x.pcap');"
            "print(*[b.pid for b in (*r.hosts, r.hub)], flush=True); time.sleep(1000)")
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "other")], stdout=subprocess.PIPE, text=True,
                             cwd=Path(__file__).parents[2])
    assert other.stdout
    pids = [int(pid) for pid in other.stdout.readline().split()]
    its_own = {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}
    assert len(its_own) == 5 and not its_own & namespaces
    family = psutil.Process(other.pid).children(recursive=True)
    assert len(family) >= 10
    other.send_signal(signal.SIGKILL)
    other.communicate()
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family), 20,
          "the end of its processes")
    assert reaches(rig.host1, rig.host2)
