"""Components whose stores were damaged go on with what was taken over from them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from openclaw_rl.v1 import common_pb2, environment_pb2
from tests.storage.test_fills import Stores

PAGE = 4096
SESSIONS, TURNS = 12, 4


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[environment_pb2.PolicyEvent]]:
    """A folder with the stores of some conversations, most of them trained on, and what was recorded of their turns."""
    folder = tmp_path_factory.mktemp("filled")
    stores = Stores(folder)
    events: list[environment_pb2.PolicyEvent] = []
    handle = stores._tracker.handle

    def recorded(some: list[environment_pb2.PolicyEvent]) -> list[common_pb2.Ack]:
        events.extend(environment_pb2.PolicyEvent.FromString(event.SerializeToString()) for event in some)
        return handle(some)

    stores._tracker.handle = recorded  # type: ignore[method-assign]
    for i in range(SESSIONS):
        stores.talk(f"s{i}", TURNS)
        if i == SESSIONS - 2:
            stores.train()
    stores.close()
    return folder, events


@pytest.mark.parametrize("seed", range(6))
def test_components_go_on_after_damage_anywhere(filled: tuple[Path, list[environment_pb2.PolicyEvent]], tmp_path: Path,
                                                seed: int) -> None:
    """4 KiB of garbage in each of the four files. Afterwards every turn that is there is known when it comes again, and
    new ones go all the way round."""
    chance, (source, events) = random.Random(seed), filled
    folder = tmp_path / "damaged"
    shutil.copytree(source, folder)
    for file in sorted(folder.glob("*.db")):
        with file.open("r+b") as stream:
            stream.seek(chance.randrange(PAGE, file.stat().st_size - PAGE))
            stream.write(chance.randbytes(PAGE))
    stores = Stores(folder)
    there = {row["id"] for row in stores.environment.query("SELECT id FROM turns")}
    if len(there) < SESSIONS * TURNS:
        [told] = stores.environment.problems  # by its table; or all, when the page tells where the tables are
        assert "of turns" in told or "nothing that was in it could be taken over" in told
    for event in events:
        [ack] = stores._tracker.handle([event])
        assert ack.status == common_pb2.ACK_STATUS_DUPLICATE or ack.id not in there
    stores._transitions.settle([common_pb2.Ack(id=row.id, status=common_pb2.ACK_STATUS_ACCEPTED)
                                for row in stores._transitions.window(0, 1000, 2**30)])  # of those that were lost
    trained = stores._trainer.versions.head
    stores.talk("new", TURNS)
    stores.train()
    assert stores._trainer.versions.head == trained + 1
    fates = stores._trainer.samples.statuses([f"new-hello-{i}" for i in range(TURNS)])
    assert len(fates) == TURNS
    stores.close()
