"""Named keys: made, found, revoked, rotated; a file that changes, is damaged or goes."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from openclaw_rl.config import Config
from openclaw_rl.rpc.auth.keys import Key, KeyFile, KeyFileError, KeyRing, new_key, shown_in
from openclaw_rl.runtime.home import Home


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "home" / "keys.json")


def test_a_key_is_shown_once_and_kept_as_a_digest(file: KeyFile) -> None:
    shown, key = file.add("laptop", ["chat", "read"])
    assert shown.startswith("ocl_") and len(shown) >= 4 + 43
    text = file.path.read_text()
    assert shown not in text and shown[4:] not in text and json.loads(text)["keys"][0]["name"] == "laptop"
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.read() == [key] and shown not in repr(key)
    assert (key.allows("chat"), key.allows("read"), key.allows("admin")) == (True, True, False)
    assert new_key("x", ["admin"])[1].allows("chat")


def test_a_ring_sees_each_change_at_once(file: KeyFile) -> None:
    ring = KeyRing(file.path)
    assert not ring.needed and ring.find("ocl_x") is None
    shown, key = file.add("a", ["chat"])
    assert ring.needed and ring.find(shown) == key
    for wrong in ("", shown[:-1], shown + " ", "ocl_", "\x00", "\udcff", "schlüssel"):
        assert ring.find(wrong) is None
    newer, _ = file.rotate("a")
    assert ring.find(shown) is None
    dead = ring.match(shown)
    assert dead is not None and dead.dead() == "has been revoked"
    found = ring.find(newer)
    assert found is not None and (found.name, found.scopes) == ("a", frozenset({"chat"}))
    file.revoke("a")
    assert ring.find(newer) is None
    assert ring.needed  # nobody comes in now; the door isn't open


def test_keys_end(file: KeyFile) -> None:
    shown, _ = file.add("guest", ["read"], expires=time.time() + 100)
    ring = KeyRing(file.path)
    key = ring.find(shown)
    assert key is not None and not key.dead() and key.dead(time.time() + 101) == "has expired"
    newer, new = file.rotate("guest", keep=60)
    old, both = ring.find(shown), ring.find(newer)
    assert old is not None and both is not None and old.expires is not None
    assert old.expires <= time.time() + 60 and new.expires == pytest.approx(time.time() + 100, abs=5)
    file.revoke("guest")  # both
    assert ring.find(shown) is None and ring.find(newer) is None


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"format": 1, "keys": [{}]}', b"\xff\xfe", b"[" * 100_000,
                                    b'{"format": 1, "keys": 3}', b'{"format": 2, "keys": []}'])
def test_a_damaged_file_locks_nobody_out(file: KeyFile, damage: bytes) -> None:
    shown, _ = file.add("a", ["chat"])
    ring = KeyRing(file.path)
    good = file.path.read_bytes()
    file.path.write_bytes(damage)
    assert ring.find(shown) and str(file.path) in ring.problem
    for change in (lambda: file.add("b", ["chat"]), lambda: file.revoke("a"), lambda: KeyRing(file.path)):
        with pytest.raises(KeyFileError, match=str(file.path)):
            change()
    assert file.path.read_bytes() == damage  # no command overwrites what it can't read
    file.path.write_bytes(good)
    assert ring.find(shown) and not ring.problem


def test_a_file_that_goes_opens_nothing(file: KeyFile) -> None:
    shown, _ = file.add("a", ["chat"])
    ring = KeyRing(file.path)
    file.path.unlink()
    assert ring.needed and ring.find(shown) and "is gone" in ring.problem
    other, _ = file.add("b", ["chat"])
    assert ring.find(shown) is None and ring.find(other) and not ring.problem


def test_a_file_that_others_may_write_is_refused(file: KeyFile) -> None:
    file.add("a", ["chat"])
    file.path.chmod(0o620)
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyRing(file.path)


def test_a_file_of_another_user_is_refused(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.add("a", ["chat"])
    if os.geteuid() == 0:
        os.chown(file.path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(KeyFileError, match="belongs to user"):
        KeyRing(file.path)


@pytest.mark.parametrize("name", ["", " ", "a b", "ä", "a" * 65, "-a", "a\n", 'a"'])
def test_names_fit_into_metrics(file: KeyFile, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        file.add(name, ["chat"])


def test_what_can_not_be_done(file: KeyFile) -> None:
    for scopes in ([], ["chat", "wizard"]):
        with pytest.raises(ValueError, match="chat, read, admin"):
            file.add("a", scopes)
    file.add("a", ["chat"])
    with pytest.raises(KeyFileError, match="rotate a"):
        file.add("a", ["chat"])
    with pytest.raises(KeyFileError, match="there are: a"):
        file.revoke("b")
    file.revoke("a")
    with pytest.raises(KeyFileError, match="there are: none"):
        file.rotate("a")
    file.add("a", ["chat"])  # the name is free again


def test_two_commands_at_once_lose_nothing(file: KeyFile) -> None:
    threads = [threading.Thread(target=file.add, args=(f"k{i}", ["chat"])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.name for key in file.read()} == {f"k{i}" for i in range(8)}


def test_keys_of_the_configuration_and_the_environment(tmp_path: Path) -> None:
    config = Config.model_validate({"components": {"policy_server": {"api_keys": ["one"]}}})
    ring = KeyRing.of(config, Home(tmp_path), {"OPENCLAW_RL_API_KEYS": "two, ,three"})
    names = {}
    for shown in ("one", "two", "three"):
        key = ring.find(shown)
        assert key is not None and key.allows("chat") and key.allows("read") and not key.allows("admin")
        names[shown] = key.name
    assert names == {"one": "config-1", "two": "env-1", "three": "env-2"} and ring.find("") is None
    elsewhere = KeyFile(tmp_path / "other.json")
    shown, _ = elsewhere.add("x", ["admin"])
    moved = Config.model_validate({"security": {"keys": str(elsewhere.path)}})
    assert KeyRing.of(moved, Home(tmp_path), {}).find(shown)


def test_what_a_client_shows() -> None:
    assert shown_in("Bearer  abc ") == shown_in("bearer abc") == "abc"
    assert shown_in("Basic abc") == shown_in("abc") == shown_in("") == shown_in("Bearer") == ""


def test_a_key_needs_no_file() -> None:
    shown, key = new_key("k", ["chat"])
    ring = KeyRing(fixed=[key])
    assert isinstance(ring.find(shown), Key) and ring.needed
