"""A mesh on four hosts, from `distributed-start` to `stop-all`: one bring-up, and all that a network can do to it.

The tests go on where the one before left the mesh; run the whole file. A partition lasts 6 s here; the long run has
OPENCLAW_RL_PARTITION_SECONDS=30.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openclaw_rl.runtime.home import COMPONENTS
from tests.hosts.mesh import TEXTS, HostsMesh, entries, until_answered
from tests.hosts.rig import Rig
from tests.hosts.test_rig import send
from tests.support.models import embedded_model
from tests.support.waiting import until
from tools.chaos.books import opened, read_books
from tools.chaos.checks import check_all

PARTITION_SECONDS = float(os.environ.get("OPENCLAW_RL_PARTITION_SECONDS", 6))
MARKER = "the-heron-wades-unseen "
PORTS = {"HTTPS": 30000, "turns": 50052, "transitions": 50053, "samples": 50054}


@pytest.fixture(scope="module")
def mesh(hosts_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsMesh]:
    """Started by the command, from the example file."""
    folder = tmp_path_factory.mktemp("hosts")
    with Rig(folder / "rig", embedded_model().parent) as rig:
        mesh = HostsMesh(rig, folder)
        mesh.start()
        yield mesh


def waiting(mesh: HostsMesh, stream: str) -> int:
    """Messages in a stream's outbox."""
    component = {"turns": "policy_server", "transitions": "env_server", "samples": "prm_judge"}[stream]
    with opened(mesh.all_stores().component(component) / "state.db") as db:
        count: int = db.execute(f"SELECT count(*) FROM outbox_{stream}").fetchone()[0]
    return count


def until_waiting(mesh: HostsMesh, stream: str, some: bool) -> None:
    """Wait until there are some in it, or none."""
    until(lambda: bool(waiting(mesh, stream)) == some, 120, f"{'some' if some else 'no'} waiting {stream}")


@contextmanager
def partition(mesh: HostsMesh, a: int, b: int) -> Iterator[None]:
    """Between two hosts by number, for PARTITION_SECONDS or as long as what is done meanwhile takes."""
    begin = time.monotonic()
    mesh.rig.partition(mesh.rig.hosts[a - 1], mesh.rig.hosts[b - 1])
    try:
        yield
        time.sleep(max(0.0, begin + PARTITION_SECONDS - time.monotonic()))
    finally:
        mesh.rig.reconnect()


def test_a_turn_on_one_host_is_trained_on_another_and_no_wire_shows_it(mesh: HostsMesh) -> None:
    rig = mesh.rig
    assert mesh.all_running()
    capture = rig.capture(mesh.folder / "wires.pcap")
    # Plain text that the same capture must show: what it does not show then isn't there.
    send(rig.host3, rig.host1, "the-heron-in-plain " * 20, 7000)
    mesh.cli("pause")  # weights, which have no text, come a hundred times as thick: a busy tcpdump would lose some
    before = mesh.version()
    texts = [f"{MARKER * 20}{TEXTS[0]}", *TEXTS[1:]]
    for host in (rig.host1, rig.host3):
        said = mesh.talk(host, f"first-{host.name}", texts=texts, sessions=2)
        assert [entry["outcome"] for entry in said] == ["complete"] * 6
        assert {entry["version"] for entry in said} == {before}
    until(lambda: (mesh.json("status")["samples"]["accepted"] or 0) >= 12, 120, "samples at the trainer")
    capture.stop()
    mesh.cli("resume")
    assert capture.contains("the-heron-in-plain")
    for secret in (MARKER.strip(), mesh.key):
        assert not capture.contains(secret)
    for port in PORTS.values():
        assert rig.hub.run(["tcpdump", "-nr", str(capture.file), "-c", "1", f"tcp port {port}"]).stdout

    version = mesh.newer_version(than=before)
    (after,) = mesh.talk(rig.host3, "after", texts=["What is rain?"])
    assert after["version"] >= version > before
    where = {c["name"]: c["host"] for c in mesh.json("status")["components"]}
    assert where == {name: f"10.0.0.{number}" for number, name in enumerate(COMPONENTS, 1)}
    trained = {turn["turn"] for turn in mesh.json("turns") if turn["fate"] == "trained"}
    assert trained & {entry["turn_id"] for log in mesh.logs for entry in entries(log)}


def test_the_commands_work_from_every_host(mesh: HostsMesh) -> None:
    mesh.cli("mesh", "export", "/root/access.yaml")
    turn = mesh.json("turns")[0]["turn"]
    for host in mesh.rig.hosts[1:]:
        mesh.rig.host1.run(["scp", "-q", "/root/access.yaml", f"{host.address}:/root/access.yaml"])
        mesh.cli("mesh", "join", "/root/access.yaml", host=host)
        assert mesh.states(host) == dict.fromkeys(COMPONENTS, "RUNNING")
        assert {v["version"] for v in mesh.json("versions", host=host)} >= {mesh.version()}
        assert turn in mesh.cli("trace", turn, host=host)
    for number, name in enumerate(COMPONENTS, 1):
        assert f"{name} serves gRPC" in mesh.cli("logs", "-n", "5000", "--host", f"10.0.0.{number}")


def test_partitions_in_the_middle_of_the_streams_of_turns(mesh: HostsMesh) -> None:
    mesh.keep_talking(mesh.rig.host1, "near")
    mesh.keep_talking(mesh.rig.host3, "far")
    until_answered(mesh, 2, 120)
    for stream, (a, b) in {"turns": (1, 2), "transitions": (2, 3), "samples": (3, 4)}.items():
        with partition(mesh, a, b):
            until_waiting(mesh, stream, True)
            until_answered(mesh, 1, 90)
        until_waiting(mesh, stream, False)
    assert mesh.all_running()


def test_weights_over_slow_links_and_a_partition_in_their_middle(mesh: HostsMesh) -> None:
    rig, before = mesh.rig, mesh.version()
    rig.limit(rig.host1, "20mbit")
    rig.delay(rig.host4, 100)
    try:
        incoming = mesh.all_stores().component("policy_server") / "versions"
        until(lambda: [*incoming.glob(".incoming*")], 300, "weights on their way")
        with partition(mesh, 4, 1):
            until_answered(mesh, 1, 120)
        mesh.newer_version(than=before)
        until_answered(mesh, 2, 120)
    finally:
        rig.heal()


def test_a_killed_host_comes_back_with_its_component_and_its_state(mesh: HostsMesh) -> None:
    rig = mesh.rig
    known = {v["version"] for v in mesh.json("versions")}
    rig.kill(rig.host4)
    until(lambda: mesh.states().get("trainer") not in ("RUNNING", "DEGRADED"), 60, "status says that it is gone")
    until(lambda: mesh.json("status").get("hosts", {}).get("10.0.0.4", {}).get("state") == "gone", 90,
          "the keeper's word for it")
    until_answered(mesh, 2, 120)
    rig.start(rig.host4)
    until(mesh.all_running, 180, "the trainer's return")
    assert {v["version"] for v in mesh.json("versions")} >= known
    mesh.newer_version(than=max(known))


def test_nothing_was_lost_or_trained_twice_and_nothing_is_left(mesh: HostsMesh) -> None:
    mesh.hush()
    home = mesh.all_stores()

    def quiet() -> bool:
        return not any(key.startswith(("outbox", "judge")) for key in read_books(home, files=False).waiting)

    def newest_served() -> int:
        books = read_books(home, files=False)
        return books.head if books.head == books.active else 0

    until(quiet, 180, "a quiet ring")
    mesh.cli("pause")
    newest = until(newest_served, 300, "the newest version at the policy server")
    mesh.cli("rollback", "0", host=mesh.rig.host2)
    assert mesh.version() == 0
    mesh.cli("rollback", str(newest), host=mesh.rig.host3)
    mesh.cli("stop-all")
    assert mesh.rig.processes() == {host.name: [] for host in mesh.rig.hosts}
    said = [entry for log in mesh.logs for entry in entries(log)]
    account, violations = check_all(said, read_books(home))
    print(f"{len(said)} requests; {account.totals()}", file=sys.stderr)
    assert not violations, "\n".join(map(str, violations))
    assert sum(fate.startswith("trained") for fate in account.fates.values()) >= 8
