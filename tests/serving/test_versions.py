"""What is active survives restarts, damage and full disks."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.serving.engines.interface import EngineInfo, EngineStatus, Pause, WeightsError
from openclaw_rl.serving.versions.registry import PolicyVersions
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.store import VersionStore


class FakeEngine:
    """Remembers what it was told, as an engine would."""

    def __init__(self, accepts_weights: bool = True) -> None:
        self.info = EngineInfo("embedded", "tiny", "m", 128, 100, (2,), accepts_weights)
        self.active_version = 0
        self.staged: set[int] = set()
        self.calls: list[str] = []
        self.fail: set[str] = set()

    async def stage(self, version: int, folder: Path) -> None:
        self.calls.append(f"stage {version}")
        assert (folder / "config.json").exists()
        if f"stage {version}" in self.fail:
            raise WeightsError("out of memory")
        self.staged.add(version)

    async def activate(self, version: int) -> Pause:
        self.calls.append(f"activate {version}")
        if version not in self.staged or f"activate {version}" in self.fail:
            raise WeightsError("not staged")
        self.staged.remove(version)
        self.active_version = version
        return Pause(ms=1.5, steps=1)

    def discard(self, version: int) -> None:
        self.staged.discard(version)

    def status(self) -> EngineStatus:
        return EngineStatus()


def tensors(add: int) -> Iterator[Any]:
    yield "a", "BF16", (4,), np.arange(4, dtype=np.uint16) + np.uint16(add)
    yield "b", "BF16", (2,), np.zeros(2, np.uint16)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    store = VersionStore(tmp_path / "made")
    store.write(VersionManifest(version=1), tensors(0))
    folder = tmp_path / "model"
    shutil.copytree(store.folder(1), folder)
    (folder / "manifest.json").unlink()
    (folder / "config.json").write_text("{}")
    return folder


class Server:
    """A policy server's versions, which can be started again over the same folder."""

    def __init__(self, folder: Path, base: Path, keep: int = 3) -> None:
        self.folder, self.base, self.keep = folder, base, keep

    async def start(self, fail: tuple[str, ...] = ()) -> PolicyVersions:
        self.engine = FakeEngine()
        self.engine.fail = set(fail)
        self.versions = PolicyVersions(self.folder, self.base, self.engine, self.keep)
        await self.versions.start()
        return self.versions

    async def add(self, version: int, parent: int | None = None) -> Pause:
        manifest = VersionManifest(version=version, parent=version - 1 if parent is None else parent, model_id="m")
        self.versions.store.write(manifest, tensors(version), base=0)
        await self.versions.stage(version)
        return await self.versions.commit(version)

    def facts(self) -> tuple[int, list[int], list[int], int]:
        state = self.versions.state()
        assert state.active_version == self.engine.active_version
        return (state.active_version, list(state.kept_versions), list(state.withdrawn_versions), state.highest_version)


@pytest.fixture
async def server(tmp_path: Path, base: Path) -> Server:
    server = Server(tmp_path / "policy_server", base)
    await server.start()
    return server


async def test_begins_with_the_base_model(server: Server) -> None:
    state = server.versions.state()
    assert server.facts() == (0, [0], [], 0) and not server.versions.problems
    assert (state.model, state.model_id, state.engine, state.context_length) == ("tiny", "m", "embedded", 128)
    assert state.accepts_weights and state.active_digest == server.versions.manifests()[0].digest != ""
    assert state.activated_at.seconds > 0


async def test_a_committed_version_is_active_after_a_restart(server: Server) -> None:
    assert await server.add(1) == Pause(ms=1.5, steps=1)
    await server.add(2)
    digest = server.versions.state().active_digest
    await server.start()
    assert server.facts() == (2, [0, 1, 2], [], 2) and server.versions.state().active_digest == digest
    assert [m.version for m in server.versions.manifests()] == [0, 1, 2]


async def test_a_version_that_was_only_staged_is_not_active_after_a_restart(server: Server) -> None:
    server.versions.store.write(VersionManifest(version=1), tensors(1))
    await server.versions.stage(1)
    await server.start()
    assert server.facts() == (0, [0], [], 0)
    await server.versions.stage(1)
    await server.versions.commit(1)
    assert server.facts()[0] == 1


async def test_keeps_as_many_as_told(server: Server) -> None:
    for version in range(1, 8):
        await server.add(version)
    assert server.facts() == (7, [0, 4, 5, 6, 7], [], 7)
    assert server.versions.store.versions() == [0, 4, 5, 6, 7]


async def test_back_and_forward_again(server: Server) -> None:
    for version in range(1, 6):
        await server.add(version)
    pause = await server.versions.activate(3, "it got worse")
    assert pause.ms == 1.5 and server.facts() == (3, [0, 2, 3, 4, 5], [4, 5], 5)
    await server.start()
    assert server.facts() == (3, [0, 2, 3, 4, 5], [4, 5], 5)
    await server.versions.activate(4)
    assert server.facts() == (4, [0, 2, 3, 4, 5], [5], 5)
    await server.versions.activate(5)
    assert server.facts() == (5, [0, 2, 3, 4, 5], [], 5)
    await server.versions.activate(0)
    assert server.facts() == (0, [0, 2, 3, 4, 5], [1, 2, 3, 4, 5], 5)


async def test_a_new_branch_after_going_back(server: Server) -> None:
    for version in range(1, 6):
        await server.add(version)
    await server.versions.activate(3)
    await server.add(6, parent=3)
    assert server.facts() == (6, [0, 2, 3, 5, 6], [4, 5], 6), "withdrawn versions go first"
    await server.versions.activate(5)
    assert server.facts() == (5, [0, 2, 3, 5, 6], [6], 6)
    await server.versions.activate(6)
    await server.add(7)
    assert server.facts()[0] == 7


async def test_activating_the_active_version_changes_nothing(server: Server) -> None:
    await server.add(1)
    calls = list(server.engine.calls)
    assert await server.versions.activate(1) == Pause(ms=0, steps=0) and server.engine.calls == calls


@pytest.mark.parametrize("version", [-1, 9, 2**60])
async def test_an_unknown_version_cannot_be_activated(server: Server, version: int) -> None:
    await server.add(1)
    with pytest.raises(MeshError, match=rf"version {version} .*: 0, 1") as caught:
        await server.versions.activate(version)
    assert caught.value.reason == "VERSION_UNKNOWN" and server.facts()[0] == 1


async def test_a_damaged_version_cannot_be_activated(server: Server) -> None:
    await server.add(1)
    await server.add(2)
    path = server.versions.store.folder(1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(MeshError, match="those that are: 0, 2"):
        await server.versions.activate(1)
    assert server.facts() == (2, [0, 2], [], 2) and "damaged" in server.versions.problems[0]
    assert len(server.versions.manifests()) == 2


@pytest.mark.parametrize("step", ["stage 2", "activate 2"])
async def test_an_engine_that_fails_keeps_the_old_version(server: Server, step: str) -> None:
    await server.add(1)
    server.engine.fail = {step}
    with pytest.raises(WeightsError):
        await server.add(2)
    assert server.facts() == (1, [0, 1], [], 1)
    server.engine.fail = set()
    await server.start()
    assert server.facts() == (1, [0, 1], [], 1)
    await server.versions.stage(2)
    await server.versions.commit(2)
    assert server.facts() == (2, [0, 1, 2], [], 2)


async def test_a_commit_that_cannot_be_written_down_does_not_happen(server: Server,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    await server.add(1)

    def full(path: Path, data: bytes) -> None:
        if path.name == "policy.json":
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("openclaw_rl.serving.versions.version_state.write_durably", full)
    with pytest.raises(OSError, match="No space"):
        await server.add(2)
    assert server.facts() == (1, [0, 1], [], 1)
    await server.versions.activate(0, "the disk is full, and yet")
    assert server.facts() == (0, [0, 1], [1], 1) and "can't be written" in server.versions.problems[-1]


async def test_a_cancelled_commit_goes_on_to_its_end(server: Server) -> None:
    server.versions.store.write(VersionManifest(version=1), tensors(1))
    await server.versions.stage(1)
    go = asyncio.Event()
    activate = server.engine.activate

    async def slow(version: int) -> Pause:
        await go.wait()
        return await activate(version)

    server.engine.activate = slow
    task = asyncio.create_task(server.versions.commit(1))
    await asyncio.wait({task}, timeout=0.05)
    task.cancel()
    await asyncio.wait({task})
    assert server.facts()[0] == 0
    go.set()
    async with asyncio.timeout(5):
        async for state in server.versions.subscribe():
            if state.active_version == 1:
                break
    assert server.facts() == (1, [0, 1], [], 1)


async def test_only_one_version_is_staged_at_a_time(server: Server) -> None:
    await server.add(1)
    for version in (2, 3):
        server.versions.store.write(VersionManifest(version=version), tensors(version))
        await server.versions.stage(version)
    assert server.engine.staged == {3}
    await server.versions.activate(0)
    assert server.engine.staged == set()
    await server.versions.commit(3)
    assert server.facts()[0] == 3
    await server.versions.stage(1)
    await server.versions.discard(1)
    await server.versions.discard(7)
    assert server.engine.staged == set()


async def test_subscribers_see_the_newest_state(server: Server) -> None:
    seen: list[int] = []

    async def watch() -> None:
        async for state in server.versions.subscribe():
            seen.append(state.active_version)
            if state.active_version == 2:
                return

    watcher = asyncio.create_task(watch())
    await server.add(1)
    await server.add(2)
    await asyncio.wait_for(watcher, 5)
    assert seen[-1] == 2 and seen == sorted(set(seen))


def state_file(**changed: Any) -> str:
    good = {"active": 2, "highest": 2, "kept": [1, 2], "withdrawn": [], "activated_at": 1.7e9}
    return json.dumps(good | changed)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"active": "x"}', '{"active": 1}', "\x00" * 40, state_file(active=-1),
                                  state_file(active=3), state_file(highest=10**30), state_file(withdrawn=[-4]),
                                  state_file(kept=[10**19]), state_file(activated_at=1e300),
                                  state_file(activated_at=float("nan")), state_file(active=float("inf"))])
async def test_a_damaged_state_file(server: Server, text: Any) -> None:
    await server.add(1)
    await server.add(2)
    (server.folder / "policy.json").write_text(text)
    await server.start()
    assert server.facts() == (2, [0, 1, 2], [], 2) and "policy.json can't be read" in server.versions.problems[0]


@pytest.mark.parametrize("damage", ["cut", "gone"])
async def test_a_version_that_was_only_staged_or_taken_back_is_not_taken_for_the_active_one(server: Server,
                                                                                            damage: str) -> None:
    await server.add(1)
    await server.add(2)
    await server.versions.activate(1, "2 is bad", pin=True)
    server.versions.store.write(VersionManifest(version=3, parent=1, model_id="m"), tensors(3), base=0)
    file = server.folder / "policy.json"
    file.write_bytes(file.read_bytes()[:20]) if damage == "cut" else file.unlink()
    await server.start()
    assert server.facts() == (1, [0, 1, 2], [2], 2) and server.versions.state().pinned
    assert "policy.copy.json is used in its place" in server.versions.problems[0]
    await server.start()
    assert server.facts() == (1, [0, 1, 2], [2], 2) and not server.versions.problems, "the file is whole again"
    (server.folder / "policy.copy.json").unlink()
    await server.start()
    assert (server.folder / "policy.copy.json").read_bytes() == file.read_bytes()


async def test_without_any_record_the_newest_version_on_disk_answers(server: Server) -> None:
    await server.add(1)
    for name in ("policy.json", "policy.copy.json"):
        (server.folder / name).write_text("{")
    await server.start()
    assert server.facts() == (1, [0, 1], [], 1)
    assert "the newest version on disk counts" in server.versions.problems[0]


async def test_a_missing_state_file(server: Server) -> None:
    await server.add(1)
    (server.folder / "policy.json").unlink()
    await server.start()
    assert server.facts() == (1, [0, 1], [], 1) and "missing" in server.versions.problems[0]


@pytest.mark.parametrize("damage", ["gone", "cut", "byte", "engine"])
async def test_the_newest_good_version_answers_when_the_active_one_is_damaged(server: Server, damage: str) -> None:
    for version in range(1, 5):
        await server.add(version)
    await server.versions.activate(3)
    folder = server.versions.store.folder(3)
    model = folder / "model.safetensors"
    match damage:
        case "gone":
            shutil.rmtree(folder)
        case "cut":
            model.write_bytes(model.read_bytes()[:-1])
        case "byte":
            model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    await server.start(fail=("stage 3",) if damage == "engine" else ())
    assert server.facts()[0] == 2, "4 was taken back"
    assert "version 3 was active but can't be used; version 2 is active instead" in server.versions.problems[-1]
    await server.start()
    assert server.facts()[0] == 2
    assert json.loads((server.folder / "policy.json").read_text())["active"] == 2


async def test_the_base_model_answers_when_nothing_else_is_left(server: Server) -> None:
    await server.add(1)
    shutil.rmtree(server.folder / "versions")
    await server.start()
    assert server.facts() == (0, [0], [], 1) and "version 0 is active instead" in server.versions.problems[-1]


async def test_a_folder_that_cannot_be_written(tmp_path: Path, base: Path) -> None:
    (tmp_path / "file").write_text("")
    server = Server(tmp_path / "file" / "policy_server", base)
    await server.start()
    assert server.facts() == (0, [0], [], 0) and "can't be kept" in server.versions.problems[0]


async def test_an_api_model_has_version_0_only(tmp_path: Path) -> None:
    versions = PolicyVersions(tmp_path, None, FakeEngine(accepts_weights=False))
    await versions.start()
    state = versions.state()
    assert not state.accepts_weights and list(state.kept_versions) == [0] and state.active_version == 0
    assert versions.manifests() == [VersionManifest(version=0, model_id="m", algorithm="base")]
    assert await versions.activate(0) == Pause(ms=0, steps=0)
    with pytest.raises(MeshError, match="not kept here; those that are: 0"):
        await versions.activate(1)


async def test_a_pinned_version_stays_until_the_pin_is_lifted(server: Server) -> None:
    for version in (1, 2, 3):
        await server.add(version)
    await server.versions.activate(None, "a demonstration", pin=True)
    assert server.versions.state().pinned and server.facts() == (3, [0, 1, 2, 3], [], 3)
    wanted = r"version 3 is pinned since .* \(a demonstration\): `openclaw-rl unpin`"
    with pytest.raises(MeshError, match=wanted) as error:
        await server.versions.activate(1)
    assert error.value.reason == "PINNED" and not error.value.retryable
    assert await server.versions.activate(3) == Pause(0.0, 0), "the pinned one itself"
    await server.start()
    assert server.versions.state().pinned, "after a restart"
    assert "a demonstration" in server.versions.pin
    await server.versions.activate(2, "better", pin=True)
    assert server.facts()[0] == 2 and "version 2 is pinned" in server.versions.pin
    await server.versions.activate(None, pin=False)
    assert not server.versions.state().pinned and server.versions.pin == ""
    await server.versions.activate(1)
    assert server.facts()[0] == 1
    await server.start()
    assert not server.versions.state().pinned


async def test_a_pin_tells_those_who_watch_and_one_lifted_with_a_version_goes_there(server: Server) -> None:
    await server.add(1)
    states = server.versions.subscribe()
    assert not (await anext(states)).pinned
    await server.versions.activate(0, pin=True)
    assert (await anext(states)).pinned and server.facts()[0] == 0
    await server.versions.activate(1, pin=False)
    state = await anext(states)
    assert (state.active_version, state.pinned) == (1, False)


async def test_a_record_of_before_pins_has_none_and_an_impossible_pin_is_damage(server: Server) -> None:
    await server.add(1)
    file = server.folder / "policy.json"
    data = json.loads(file.read_bytes())
    old = {name: value for name, value in data.items() if not name.startswith("pin")}
    file.write_text(json.dumps(old))
    await server.start()
    assert not server.versions.state().pinned and server.facts()[0] == 1 and not server.versions.problems
    file.write_text(json.dumps(data | {"pinned_at": -5}))
    await server.start()
    assert not server.versions.state().pinned and len(server.versions.problems) == 1


async def test_versions_are_withdrawn_even_when_their_files_cannot_be_deleted_yet(
        server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (1, 2, 3):
        await server.add(version)

    def busy(version: int) -> None:
        raise OSError(errno.EBUSY, "busy")

    with monkeypatch.context() as patch:
        patch.setattr(server.versions.store, "remove", busy)
        with pytest.raises(OSError, match="busy"):
            await server.versions.withdraw([2])
    assert server.facts() == (3, [0, 1, 3], [2], 3), "as it was written down"
    assert await server.versions.withdraw([2]) == [2]


async def test_withdrawn_versions_leave_the_disk_and_nothing_builds_on_them(server: Server) -> None:
    for version in (1, 2, 3):
        await server.add(version)
    server.versions.store.write(VersionManifest(version=4, parent=3, model_id="m"), tensors(4), base=0)
    await server.versions.stage(4)
    aside = server.folder / "versions" / "corrupt-2-20260101-000000"
    aside.mkdir()
    incoming = server.folder / "versions" / ".incoming"
    incoming.mkdir()
    (incoming / ".offer.json").write_text('{"version": 10, "digest": ""}')
    assert await server.versions.withdraw([0, 2, 3, 4, 9, 2**31 - 1]) == [2, 4], "not the active one"
    assert server.facts() == (3, [0, 1, 3], [2, 4, 9], 9)
    assert server.versions.store.versions() == [0, 1, 3] and not server.engine.staged and not aside.exists()
    assert incoming.exists(), "another one's"
    (incoming / ".offer.json").write_text('{"version": 9, "digest": ""}')
    assert await server.versions.withdraw([9]) == [] and not incoming.exists()
    with pytest.raises(MeshError) as error:
        await server.versions.activate(2)
    assert error.value.reason == "VERSION_UNKNOWN"
    await server.versions.activate(1)
    assert await server.versions.withdraw([2, 3, 4, 9]) == [3] and await server.versions.withdraw([2, 3, 4]) == []
    await server.start()
    assert server.facts() == (1, [0, 1], [2, 3, 4, 5, 6, 7, 8, 9], 9)
