"""A home's backup is consistent while it is used, and its restoration is a mesh with the same turns and versions."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.cli.commands import app
from openclaw_rl.client import AsyncEnvironmentServiceClient, AsyncTrainerServiceClient
from openclaw_rl.launch import backup
from openclaw_rl.launch.backup import BackupError, back_up, restore
from openclaw_rl.runtime.home import COMPONENTS, Home
from openclaw_rl.storage.database import Database
from openclaw_rl.storage.snapshot import copy_database
from tests.mesh.in_process import in_process_mesh, tiny_model

SUFFIXES = [".tar.zst", ".tar.gz"]
TABLE = "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, text TEXT)"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with what a mesh leaves, and what no backup needs."""
    home = Home(tmp_path / "home").create()
    for name in COMPONENTS:
        database = Database(home.component(name) / "state.db", schema=TABLE)
        with database.transaction() as db:
            db.execute("INSERT INTO t (id) VALUES (7)")
        database.close()
    for file, text in {"config.yaml": "log_level: DEBUG", "mesh-id": "mesh-1", "trainer/versions/1/manifest.json": "{}",
                       "certs/ca.key": "secret", "logs/rl_trace_20260101.log": "a line", "run/trainer.json": "{}",
                       "models/m/model.safetensors": "w", "trainer/process.lock": "1",
                       "trainer/versions/.tmp-1/model.safetensors": "half",
                       "trainer/state.db.corrupt-20260101T000000": "aside"}.items():
        (home.root / file).parent.mkdir(parents=True, exist_ok=True)
        (home.root / file).write_text(text)
    return home


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def rows(file: Path) -> list[int]:
    with sqlite3.connect(file) as db:
        return [row[0] for row in db.execute("SELECT id FROM t ORDER BY id")]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_kept_and_who_can_read_it(home: Home, tmp_path: Path, suffix: str) -> None:
    file, there = tmp_path / f"b{suffix}", Home(tmp_path / "other" / "home")
    made = back_up(home, file)
    assert file.stat().st_mode & 0o777 == 0o600 and not list(home.root.glob(".backup-*"))
    assert restore(file, there).stores == made.stores == [f"{name}/state.db" for name in COMPONENTS]
    assert names(there.root) == {
        "config.yaml", "mesh-id", "trainer/versions/1/manifest.json", "certs/ca.key", "logs/rl_trace_20260101.log",
        "openclaw-rl-backup.json", *made.stores} - {"openclaw-rl-backup.json"}
    assert [rows(there.component(name) / "state.db") for name in COMPONENTS] == [[7]] * 4
    assert {path.stat().st_mode & 0o077 for path in [there.root, *there.root.rglob("*")]} == {0}
    assert not list(there.root.parent.glob(".*"))


def test_models_come_along_when_they_are_asked_for(home: Home, tmp_path: Path) -> None:
    back_up(home, tmp_path / "b.tar.gz", models=True)
    restore(tmp_path / "b.tar.gz", Home(tmp_path / "there"))
    assert (tmp_path / "there" / "models" / "m" / "model.safetensors").read_text() == "w"


def test_the_configuration_of_a_mesh_that_was_started_with_another_file(home: Home, tmp_path: Path) -> None:
    home.config_file.unlink()
    (home.run / "config.yaml").write_text("log_level: WARNING")
    back_up(home, tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", Home(tmp_path / "there"))
    assert (tmp_path / "there" / "config.yaml").read_text() == "log_level: WARNING"


def test_a_copy_while_others_write_is_a_moment_of_theirs(tmp_path: Path) -> None:
    """Each transaction writes a pair of rows; no copy has half of one, and all are whole."""
    database = Database(tmp_path / "state.db", schema=TABLE)
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            with database.transaction() as db:
                db.executemany("INSERT INTO t VALUES (?, ?)", [(number, "x" * 2000), (number + 1, "y" * 2000)])
            number += 2

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = []
        for i in range(5):
            copy_database(tmp_path / "state.db", tmp_path / f"copy{i}.db")
            with sqlite3.connect(tmp_path / f"copy{i}.db") as db:
                assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
                counts.append(db.execute("SELECT COUNT(*) FROM t").fetchone()[0])
        assert [count % 2 for count in counts] == [0] * 5 and counts == sorted(counts)
        assert not list(tmp_path.glob("copy*-wal"))
    finally:
        ended.set()
        writer.join()
        database.close()


def test_a_version_that_comes_or_goes_meanwhile(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer makes version 2 and deletes version 1 while its store is copied: both are in the backup, so whichever
    of the two the copied store knows is there."""
    def step(source: Path, target: Path) -> None:
        copy_database(source, target)
        if source.parent.name == "trainer":
            new = home.component("trainer") / "versions" / "2"
            new.mkdir()
            (new / "manifest.json").write_text("{}")
            (home.component("trainer") / "versions" / "1" / "manifest.json").unlink()

    monkeypatch.setattr(backup, "copy_database", step)
    back_up(home, tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", Home(tmp_path / "there"))
    assert names(tmp_path / "there" / "trainer" / "versions") == {"1/manifest.json", "2/manifest.json"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
def test_a_damaged_archive_leaves_nothing(home: Home, tmp_path: Path, suffix: str, damage: str) -> None:
    file = tmp_path / f"b{suffix}"
    (home.root / "trainer" / "noise").write_bytes(os.urandom(200_000))
    back_up(home, file)
    data = bytearray(file.read_bytes())
    if damage == "cut":
        del data[len(data) // 2:]
    elif damage == "flipped":
        data[len(data) * 3 // 4] ^= 0xFF
    else:
        data[:] = b"hello"
    file.write_bytes(data)
    there = tmp_path / "other" / "home"
    with pytest.raises(BackupError):
        restore(file, Home(there))
    assert not list(there.parent.iterdir())


def test_what_is_refused(home: Home, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="there is no mesh in"):
        back_up(Home(tmp_path / "nowhere"), tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match=r"ends with \.tar\.zst, \.tar\.gz, \.tgz"):
        back_up(home, tmp_path / "b.zip")
    with pytest.raises(BackupError, match="in the folder that it is a backup of"):
        back_up(home, home.root / "b.tar.gz")
    with pytest.raises(BackupError, match="can't be backed up"):
        back_up(home, tmp_path / "nowhere" / "b.tar.gz")
    back_up(home, tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="is there already"):
        back_up(home, tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match="is not empty, and a backup replaces nothing"):
        restore(tmp_path / "b.tar.gz", home)
    with pytest.raises(BackupError, match="No such file"):
        restore(tmp_path / "c.tar.gz", Home(tmp_path / "there"))
    (home.component("trainer") / "state.db").write_bytes(b"x" * 10_000)
    with pytest.raises(BackupError, match=r"trainer/state\.db can't be copied"):
        back_up(home, tmp_path / "d.tar.gz")
    assert not list(tmp_path.glob("d.tar.gz*")) and not list(home.root.glob(".backup-*"))


def forged(file: Path, *members: tuple[str, bytes, bytes], **manifest: object) -> Path:
    """An archive with these members (name, type, content) behind a manifest."""
    said = {"format": 1, "made_by": "9.9", "made_at": "", "home": "", "bytes": 1, "stores": [], "left_out": [],
            **manifest}
    with tarfile.open(file, "w:gz") as tar:
        for name, kind, content in (("openclaw-rl-backup.json", tarfile.REGTYPE, json.dumps(said).encode()), *members):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, len(content), "/etc/passwd"
            tar.addfile(entry, io.BytesIO(content))
    return file


FORGED: dict[str, Callable[[Path], Path]] = {
    "nothing that a backup": lambda file: forged(file, ("../out", tarfile.REGTYPE, b"x")),
    "'/out' is nothing": lambda file: forged(file, ("/out", tarfile.REGTYPE, b"x")),
    "'link' is nothing": lambda file: forged(file, ("link", tarfile.SYMTYPE, b"")),
    "newer than this one; install that release": lambda file: forged(file, format=99),
    "make room": lambda file: forged(file, bytes=2**60),
    "what it holds can't be read": lambda file: forged(file, bytes="many"),
}


@pytest.mark.parametrize("told", FORGED)
def test_archives_that_nobody_should_unpack(tmp_path: Path, told: str) -> None:
    file = FORGED[told](tmp_path / "b.tar.gz")
    with pytest.raises(BackupError, match=told):
        restore(file, Home(tmp_path / "other" / "there"))
    assert [path.name for path in tmp_path.rglob("*")] == ["b.tar.gz", "other"] or not list(
        (tmp_path / "other").iterdir())


def test_the_commands(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(home.root))
    (home.root / "telemetry").mkdir()
    (home.root / "telemetry" / "trainer.db").write_bytes(b"y" * 5000)
    done = CliRunner().invoke(app, ["backup", str(tmp_path / "b.tar.zst")])
    assert done.exit_code == 0 and "4 stores" in done.output and "left out: telemetry/trainer.db: " in done.output
    monkeypatch.setenv("OPENCLAW_RL_HOME", str(tmp_path / "there"))
    done = CliRunner().invoke(app, ["restore", str(tmp_path / "b.tar.zst"), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["stores"][0] == "policy_server/state.db"


def http_client(mesh: InProcessMesh) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=mesh.http_address, trust_env=False, timeout=60)


async def version_1_answers(mesh: InProcessMesh) -> None:
    async with asyncio.timeout(120):
        while mesh.component("policy_server").status().policy_version < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def facts(home: Home) -> tuple[list[str], list[tuple[int, str]]]:
    """Ids of the turns, and number and digest of the versions."""
    async with AsyncEnvironmentServiceClient(home=home) as env, AsyncTrainerServiceClient(home=home) as trainer:
        turns = [turn.turn_id for turn in (await env.list_turns()).turns]
        versions = (await trainer.list_versions()).versions
    return turns, [(v.manifest.version, v.manifest.digest) for v in versions]


@pytest.mark.slow
async def test_a_mesh_is_backed_up_while_it_serves_and_goes_on_elsewhere(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    settings = {"policy_server": {"max_tokens": 4}, "trainer": {"gate": {"enabled": False}}}
    messages = []
    async with in_process_mesh(tmp_path / "home", model, settings) as mesh, http_client(mesh) as http:
        for text in ("hi", "no, that is wrong", "no, that is wrong"):
            messages.append({"role": "user", "content": text})
            answer = await http.post("/v1/chat/completions", json={"messages": messages},
                                     headers={"X-Session-Id": "s"})
            messages.append(answer.json()["choices"][0]["message"])
        await version_1_answers(mesh)
        before = await facts(mesh.home)
        _, answer = await asyncio.gather(
            asyncio.to_thread(back_up, mesh.home, tmp_path / "b.tar.zst"),
            http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "on"}]}))
        assert answer.status_code == 200
    restored = restore(tmp_path / "b.tar.zst", Home(tmp_path / "there"))
    assert {f"{name}/state.db" for name in COMPONENTS} <= {*restored.stores}
    async with in_process_mesh(tmp_path / "there", model, settings) as mesh, http_client(mesh) as http:
        await version_1_answers(mesh)
        turns, versions = await facts(mesh.home)
        assert {*before[0]} <= {*turns} and versions[:len(before[1])] == before[1]
        answer = await http.post("/v1/chat/completions", json={"messages": messages[:1]})
        assert answer.status_code == 200
