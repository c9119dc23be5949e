"""Addresses, ids and times."""

from __future__ import annotations

import time

from openclaw_rl.config import Config
from openclaw_rl.home import Home, RunRecord, remove_record, write_record
from openclaw_rl.mesh.discovery import resolve
from openclaw_rl.mesh.helpers import new_id, now, to_datetime


def test_a_configured_address_wins_over_the_recorded_one(tmp_path):
    home = Home(tmp_path).create()
    assert resolve(home, Config(), "trainer") is None
    write_record(home, RunRecord("trainer", 1, "127.0.0.1:1234"))
    assert resolve(home, Config(), "trainer") == "127.0.0.1:1234"
    configured = Config.model_validate({"components": {"trainer": {"address": "gpu-host:50054"}}})
    assert resolve(home, configured, "trainer") == "gpu-host:50054"
    (home.run / "trainer.json").write_text("{half a rec")
    assert resolve(home, Config(), "trainer") is None
    remove_record(home, "trainer")
    assert resolve(home, Config(), "trainer") is None


def test_ids_are_unique_and_in_order():
    ids = [new_id("t-") for _ in range(20_000)]
    assert len(set(ids)) == len(ids)
    coarse = [id[:18] for id in ids]  # prefix, milliseconds, version and their fraction
    assert coarse == sorted(coarse)
    assert all(id.startswith("t-") and id[14] == "7" and id[18] in "89ab" for id in ids)


def test_now_is_now():
    assert abs(to_datetime(now()).timestamp() - time.time()) < 1
