"""A trainer that feeds several policy servers, over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.release.delivery_log import DeliveryLog
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.v1.trainer_pb2 import VersionDelivery
from openclaw_rl.weights.store import VersionStore
from openclaw_rl.weights.transfer import replicas as fleet_module
from openclaw_rl.weights.transfer.replicas import Replicas
from tests.serving.peers import SIZE, Line, Server, put, tensors
from tests.support.waiting import eventually


class Farm:
    """The mesh's own policy server, further ones, and a trainer's replicas."""

    def __init__(self, tmp_path: Path, model: Path) -> None:
        self.tmp_path, self.model = tmp_path, model
        self.store = VersionStore(tmp_path / "trainer", model, "m")
        self.book = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
        self.own = Server(tmp_path / "own", model)
        self.servers = [self.own]
        self.lines: list[Line] = []
        self.made = {0: weights_pb2.VersionManifest()}
        self.own_line = Line(lambda: self.own.address)
        self.events: list[tuple[int, str, bool]] = []
        self.states: list[pb.PolicyState] = []
        self.activated: list[int] = []
        self.numbers = 0
        self.replicas: Replicas

    async def further(self, keep: int = 3) -> tuple[Server, Line]:
        """A policy server that is not started yet, and the line to it, whose address does not change."""
        server = Server(self.tmp_path / f"further{len(self.lines)}", self.model, keep=keep)
        line = Line(lambda: server.address)
        await line.start()
        self.servers.append(server)
        self.lines.append(line)
        return server, line

    async def start(self, active: int = 0) -> Farm:
        """Start the trainer's side, anew after `crash`."""
        def number(value: int) -> None:
            self.numbers = max(self.numbers, value)

        self.replicas = Replicas(
            lambda: self.own_line.address, [line.address for line in self.lines], self.store,
            on_state=self.states.append, on_activated=lambda version, _: self.activated.append(version),
            on_rejected=lambda version, _: None, active=active, manifest=self.made.get, on_number=number,
            on_further=lambda version, address, message, refused: self.events.append((version, message, refused)),
            history=lambda address: DeliveryLog(self.book.state, address))
        await self.replicas.start()
        return self

    def make(self, version: int, parent: int | None = None, model_id: str = "m") -> None:
        self.store.write(weights_pb2.VersionManifest(
            version=version, parent=version - 1 if parent is None else parent, model_id=model_id), tensors(version))
        self.made[version] = self.store.manifest(version)

    def offer(self, version: int, parent: int | None = None) -> None:
        self.make(version, parent)
        self.replicas.offer(version)

    async def activate(self, server: Server, **fields: object) -> None:
        await server.service.activate(pb.ActivateVersionRequest(**fields))  # type: ignore[arg-type]

    def delivery(self, version: int, index: int = 1) -> VersionDelivery:
        return self.replicas.deliveries(version, VersionDelivery(detail="not active"))[index]

    def alarms(self) -> str:
        return "; ".join(f"{name}: {message}" for name, message in self.replicas.alarms())

    async def all_at(self, version: int, *servers: Server) -> None:
        for server in servers or self.servers:
            await eventually(lambda s=server: s.address is not None and s.active == version)  # type: ignore[misc]
            assert server.digest == self.store.manifest(version).digest
            if server.weights_from is None:  # else the trainer is not told
                publisher = self.replicas._publishers()[self.servers.index(server)]
                await eventually(lambda p=publisher: p.status()["active_version"] == version)  # type: ignore[misc]

    async def stop(self) -> None:
        await self.replicas.stop(1)
        for server in self.servers:
            if server.address:
                await server.kill()
        for line in (self.own_line, *self.lines):
            await line.stop()
        self.book.close()


@pytest.fixture
async def farm(tmp_path: Path, model: Path) -> AsyncIterator[Farm]:
    farm = Farm(tmp_path, model)
    await farm.own.start()
    await farm.own_line.start()
    yield farm
    await farm.stop()


async def test_a_slow_one_holds_nobody_back_and_is_told_of(farm: Farm) -> None:
    quick, _ = await farm.further()
    slow, line = await farm.further()
    await quick.start()
    await slow.start()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1)
    line.flowing.clear()
    for version in (2, 3, 4):
        farm.offer(version)
        await farm.all_at(version, farm.own, quick)
    assert slow.active == 1 and {1, 2} <= farm.replicas.needed(), "what is on its way, and what it has"
    await eventually(lambda: farm.delivery(4).active)
    assert farm.delivery(4).activated_at.seconds > 0 and not farm.delivery(4).detail
    late = farm.delivery(2, 2)
    assert late.address == line.address and late.detail.startswith("being sent: ") and not late.HasField("activated_at")
    assert farm.delivery(4, 2).detail == "waits for its turn"
    line.flowing.set()
    await farm.all_at(4)
    await eventually(lambda: [v for v, text, _ in farm.events if line.address in text] == [1, 2, 4])
    assert farm.delivery(3, 2).detail == "not sent" and farm.delivery(2, 2).detail == "another one is active"
    assert farm.alarms() == ""


async def test_one_that_joins_late_or_comes_back_after_days_catches_up(farm: Farm) -> None:
    fresh, _ = await farm.further()
    old, line = await farm.further()
    await old.start()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1, farm.own, old)
    await old.kill()
    for version in (2, 3):
        farm.offer(version)
        await farm.all_at(version, farm.own)
    assert farm.delivery(3, 2).detail.startswith("can't be reached: ")
    await farm.replicas.stop(1)
    farm.store.prune({3})  # the trainer does not have version 1 any more
    await farm.start(active=3)  # and has been started anew
    sent = line.bytes
    await fresh.start()
    await old.start()
    await farm.all_at(3)
    assert line.bytes - sent < 1.2 * SIZE
    assert farm.delivery(1, 2).HasField("activated_at"), "what was known of it outlives the trainer's process"


async def test_the_further_ones_do_not_wait_for_the_meshs_own(farm: Farm) -> None:
    further, _ = await farm.further()
    await further.start()
    await farm.own.kill()
    farm.make(1)
    await farm.start(active=1)
    await farm.all_at(1, further)
    farm.offer(2)
    await farm.all_at(2, further)
    await farm.own.start()
    await farm.all_at(2)


async def test_a_version_that_this_trainer_never_made(farm: Farm) -> None:
    foreign, line = await farm.further()
    await foreign.start()
    await put(foreign, 7)
    await farm.start()
    farm.offer(1)
    await farm.all_at(1, farm.own)
    await eventually(lambda: "answers with version 7, which this trainer never made" in farm.alarms())
    assert line.address in farm.alarms() and foreign.active == 7 and farm.numbers == 7
    assert farm.delivery(1).detail.startswith("it answers with version 7")
    farm.offer(8, parent=1)  # the trainer numbers on from 7
    await farm.all_at(8)
    await eventually(lambda: farm.alarms() == "")


async def test_other_weights_of_the_same_number_are_seen(farm: Farm) -> None:
    foreign, _ = await farm.further()
    await foreign.start()
    foreign.versions.store.write(weights_pb2.VersionManifest(version=1, model_id="m"), tensors(9))
    await foreign.versions.commit(1)
    await farm.start()
    farm.offer(1)
    await eventually(lambda: "has other weights than the mesh's policy server's" in farm.alarms())
    farm.offer(2)
    await farm.all_at(2)


async def test_rollbacks_of_the_own_one_reach_all(farm: Farm) -> None:
    further, line = await farm.further()
    late, _ = await farm.further()
    await further.start()
    await farm.start()
    for version in (1, 2, 3):
        farm.offer(version)
        await farm.all_at(version, farm.own, further)
    sent = line.bytes
    for version in (1, 3, 2):
        await farm.activate(farm.own, version=version)
        await farm.all_at(version, farm.own, further)
    assert line.bytes < sent + 100_000, "all were kept there"
    await late.start()  # it has nothing: the version to which the own one went back comes by the stream
    await farm.all_at(2)
    farm.offer(4, parent=2)
    await farm.all_at(4)
    await eventually(lambda: farm.alarms() == "")


async def test_one_that_is_ahead_of_the_own_one_goes_back_with_it(farm: Farm) -> None:
    quick, _ = await farm.further()
    slow, line = await farm.further()
    await quick.start()
    await slow.start()
    await farm.start()
    for version in (1, 2):
        farm.offer(version)
        await farm.all_at(version)
    farm.own_line.flowing.clear()
    line.flowing.clear()
    farm.offer(3)
    await farm.all_at(3, quick)
    await farm.activate(farm.own, version=1)  # knows nothing of version 3, which was made from 2
    farm.own_line.flowing.set()
    line.flowing.set()
    await farm.all_at(1)
    assert 3 not in slow.versions.state().kept_versions
    farm.offer(4, parent=1)
    await farm.all_at(4)


async def test_what_is_on_its_way_when_it_is_taken_back_is_given_up(farm: Farm) -> None:
    slow, line = await farm.further()
    await slow.start()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1)
    # The line must not stop the answer.
    await eventually(lambda: any(line.address in text for _, text, _ in farm.events))
    line.flowing.clear()
    farm.offer(2)
    await farm.all_at(2, farm.own)
    await farm.activate(farm.own, version=1)
    await eventually(lambda: farm.states[-1].active_version == 1)
    line.flowing.set()
    farm.offer(3, parent=1)
    await farm.all_at(3)
    assert 2 not in slow.versions.state().kept_versions
    # Once more where it was offered again before it was known to be there.
    await eventually(lambda: list(dict.fromkeys(v for v, text, _ in farm.events if line.address in text)) == [1, 3])


async def test_a_rollback_to_what_is_not_kept_is_told_until_the_next_version(farm: Farm) -> None:
    further, line = await farm.further(keep=1)
    await further.start()
    await farm.start()
    for version in (1, 2, 3):
        farm.offer(version)
        await farm.all_at(version)
    await farm.activate(farm.own, version=1)
    await eventually(lambda: "is not kept there and is older" in farm.alarms())
    assert f"policy_server_apart: the policy server at {line.address}: it answers with version 3" in farm.alarms()
    assert further.active == 3
    farm.offer(4, parent=1)
    await farm.all_at(4)
    await eventually(lambda: farm.alarms() == "")


async def test_a_refusal_is_told_and_holds_nobody_back(farm: Farm) -> None:
    other, line = await farm.further()
    await other.start()
    other.engine.info = type(other.engine.info)("embedded", "other", "n", 128, 100, (2,), True)
    await farm.start()
    farm.offer(1)
    await farm.all_at(1, farm.own)
    await eventually(lambda: "policy_server_rejects" in farm.alarms())
    assert f"{line.address} rejected version 1: it belongs to the base model 'm'; here is 'n'" in farm.alarms()
    assert farm.delivery(1).detail.startswith("rejected: it belongs to the base model 'm'")
    assert farm.events[-1][0] == 1 and farm.events[-1][2]
    farm.offer(2)
    await farm.all_at(2, farm.own)
    await other.kill()
    await other.start()  # with the right model now
    await farm.all_at(2)
    await eventually(lambda: farm.alarms() == "")


async def test_a_pin_is_waited_out_in_peace(farm: Farm) -> None:
    further, line = await farm.further()
    await further.start()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1)
    for server in farm.servers:
        await farm.activate(server, pin=True, reason="a demonstration")
    await eventually(lambda: all(p.status()["pinned"] for p in farm.replicas._publishers()))
    connections = line.connections
    for version in (2, 3):
        farm.offer(version)
    await eventually(lambda: "pinned" in farm.delivery(3).detail)
    assert [server.active for server in farm.servers] == [1, 1] and line.connections == connections
    assert farm.alarms() == "", "who pins a version knows what comes of it"
    for server in farm.servers:
        await farm.activate(server, pin=False)
    await farm.all_at(3)
    assert line.connections <= connections + 1, "one for ActivateVersion at most"


async def test_a_pin_that_comes_while_a_version_is_on_its_way(farm: Farm) -> None:
    further, line = await farm.further()
    await further.start()
    await farm.start()
    line.flowing.clear()
    farm.offer(1)
    await farm.all_at(1, farm.own)
    await farm.activate(further, pin=True)
    line.flowing.set()
    await eventually(lambda: farm.replicas._publishers()[1].status()["pinned"])
    assert further.active == 0
    await farm.activate(further, pin=False)
    await farm.all_at(1)


async def test_one_that_can_t_be_reached_is_named(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "UNREACHABLE", 0.1)
    _, line = await farm.further()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1, farm.own)
    await eventually(lambda: f"policy_server_unreachable: the policy server at {line.address} has not" in farm.alarms())


async def test_one_that_copies_another_says_so(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "UNREACHABLE", 0.1)
    copy, _ = await farm.further()
    assert farm.own.address is not None
    copy.weights_from = farm.own.address
    await copy.start()
    await farm.start()
    farm.offer(1)
    await farm.all_at(1)
    await eventually(lambda: f"copies its versions from {farm.own.address}" in farm.alarms())


def test_a_log_that_was_edited_is_no_obstacle(tmp_path: Path) -> None:
    store = TrainerStore(tmp_path / "state.db", "group", TrainerConfig())
    log = DeliveryLog(store.state, "a:1")
    log.refused(1, "full")
    log.activated(1, 5.0)
    log.activated(1, 6.0)
    log.refused(2, "wrong model")
    again = DeliveryLog(store.state, "a:1")
    assert (again.activated_at(1), again.reason(1), again.reason(2)) == (5.0, "", "wrong model")
    assert DeliveryLog(store.state, "b:1").activated_at(1) is None
    store.state.set("deliveries:a:1", "[1")
    assert DeliveryLog(store.state, "a:1").activated_at(1) is None
    store.close()
