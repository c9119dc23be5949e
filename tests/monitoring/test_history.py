"""The history of figures: it survives kills, damage and full disks, and shows gaps as gaps."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openclaw_rl.monitoring.history import History
from openclaw_rl.monitoring.history_file import HistoryFile
from openclaw_rl.monitoring.series import POINTS, SECONDS

NOW = 1_800_000_000.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def file_of(history: History) -> HistoryFile:
    assert history.file is not None
    return history.file


def fill(history: History, clock: Clock, seconds: int, value: float = 2.0) -> None:
    for _ in range(seconds):
        clock.now += 1
        history.add({"x": value})


def test_it_outlives_a_restart_and_shows_the_gap(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path, 7, clock)
    fill(history, clock, 90)
    history.event("version_created", "trainer", "version 3 was made", version=3)
    history.close()
    clock.now += 60
    history = History(tmp_path, 7, clock)
    fill(history, clock, 30, 5.0)
    curves = history.series.curves(["x", "unknown"], 180)
    values = curves.values["x"]
    assert curves.step == 1 and len(values) == 180 == len(curves.times)
    assert values == [2.0] * 90 + [None] * 60 + [5.0] * 30
    assert set(curves.values["unknown"]) == {None}
    assert history.events()[0].data == {"version": 3} and history.events()[0].text == "version 3 was made"
    history.close()


def test_minutes_are_means_and_go_back_for_days(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path, 2, clock)
    for value in (1.0, 3.0):
        fill(history, clock, 30, value)
    fill(history, clock, SECONDS + 120, 9.0)
    assert len(history.series.seconds) <= SECONDS + 60
    day = [v for v in history.series.curves(["x"], 86400).values["x"] if v is not None]
    assert len(day) > 7 and 1.0 <= day[0] < 9.0 and day[-1] == 9.0
    assert len(history.series.curves(["x"], 7 * 86400).values["x"]) <= POINTS
    clock.now += 3 * 86400
    fill(history, clock, 61)
    assert len(history.series.minutes) <= 2
    history.close()
    with sqlite3.connect(tmp_path / "history.db") as db:
        assert db.execute("SELECT COUNT(*) FROM minutes").fetchone()[0] <= 2
        assert db.execute("SELECT COUNT(*) FROM seconds").fetchone()[0] <= 62


def test_what_was_added_is_there_after_kill_9(tmp_path: Path) -> None:
    program = ("import sys, time\nfrom pathlib import Path\nfrom openclaw_rl.monitoring.history import History\n"
               "history = History(Path(sys.argv[1]), 7)\nhistory.event('state', 'trainer', 'up')\n"
               "now = time.time()\n"
               "for i in range(150):\n    history.add({'x': float(i)}, at=now - 150 + i)\n"
               "history.file._writer.submit(int).result()\nprint('ready', flush=True)\ntime.sleep(60)\n")
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    history = History(tmp_path, 7)
    values = [v for v in history.series.curves(["x"], 900).values["x"] if v is not None]
    assert len(values) >= 29 and values == sorted(values)
    assert history.events()[0].component == "trainer"
    history.close()


@pytest.mark.parametrize("how", ["garbage", "torn"])
def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, how: str) -> None:
    clock = Clock()
    history = History(tmp_path, 7, clock)
    fill(history, clock, 2000)
    history.close()
    file = tmp_path / "history.db"
    data = file.read_bytes()
    file.write_bytes(b"no database at all" * 500 if how == "garbage" else data[:8192] + b"\xff" * (len(data) - 8192))
    history = History(tmp_path, 7, clock)
    assert [key for key, _ in history.problems()] == ["history.set_aside"]
    assert len(list(tmp_path.glob("history.db.damaged-*"))) == 1
    fill(history, clock, 5)
    history.close()
    clock.now += 4000
    assert History(tmp_path, 7, clock).problems() == []


def test_it_goes_on_in_memory_while_the_disk_is_full_and_writes_later(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path, 7, clock)
    fill(history, clock, 3)

    def limit(pages: int) -> None:
        db = file_of(history)._db
        assert db is not None
        db.execute(f"PRAGMA max_page_count={pages}")

    file_of(history)._writer.submit(int).result()
    file_of(history)._writer.submit(limit, 1).result()
    for _ in range(3000):
        clock.now += 1
        history.add({f"figure.{i}": 1.0 for i in range(30)})
    deadline = time.monotonic() + 20
    while not history.problems():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert history.problems()[0][0] == "history.not_written" and "full" in history.problems()[0][1]["why"]
    assert history.series.latest()["figure.3"] == 1.0
    file_of(history)._writer.submit(limit, 1_000_000).result()
    fill(history, clock, 1)
    while history.problems():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    history.close()
    with sqlite3.connect(tmp_path / "history.db") as db:
        assert db.execute("SELECT COUNT(*) FROM seconds").fetchone()[0] > 2900


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "dashboard", 7)
    history.add({"x": 1.0})
    assert [key for key, _ in history.problems()] == ["history.not_written"]
    assert history.series.latest() == {"x": 1.0}
    history.close()


def test_a_clock_that_is_set_back_is_no_end(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path, 7, clock)
    fill(history, clock, 100)
    clock.now -= 50
    fill(history, clock, 1, 7.0)
    assert history.series.latest() == {"x": 7.0}
    assert len(history.series.seconds) == 51
    history.close()


def test_the_newest_bucket_is_the_last_of_the_curves(tmp_path: Path) -> None:
    clock = Clock()
    history = History(None, 7, clock)
    fill(history, clock, 1000)
    curves, newest = history.series.curves(["x"], 900), history.series.newest(900)
    assert curves.step == newest.step == 5
    assert (curves.times[-1], curves.values["x"][-1]) == (newest.times[0], newest.values["x"][0])


def test_what_a_span_tells_depends_on_the_figure(tmp_path: Path) -> None:
    clock = Clock()
    history = History(None, 7, clock)
    for second in range(4000):
        clock.now += 1
        high = 41.0 if second < 3990 else 42.0
        history.add({"version": high, "policy.p99": 900.0 if second % 60 == 7 else 100.0, "x": float(second % 2)})
    for span in (900, 86400):
        curves = history.series.curves(["version", "policy.p99", "x"], span)
        assert {v for v in curves.values["version"] if v is not None} == {41.0, 42.0}
        assert max(v for v in curves.values["policy.p99"] if v is not None) == 900.0
    assert 0.4 < next(v for v in curves.values["x"] if v is not None) < 0.6


def test_damage_while_it_runs_costs_nothing(tmp_path: Path) -> None:
    clock = Clock()
    history = History(tmp_path, 7, clock)
    fill(history, clock, 200)
    history.event("version_created", "trainer")
    file_of(history)._writer.submit(file_of(history)._quarantine, "a page is torn", history._contents()).result()
    assert len(history.series.seconds) == 200 and history.series.minutes
    history.close()
    again = History(tmp_path, 7, clock)
    assert len(again.series.seconds) == 200 and again.series.minutes and again.events()[0].kind == "version_created"
    again.close()


def test_of_two_dashboards_one_writes(tmp_path: Path) -> None:
    clock = Clock()
    first, second = (History(tmp_path, 7, clock) for _ in range(2))
    for history in (first, second):
        history.event("version_created", "trainer")
        history.add({"x": 1.0})
    file_of(second)._writer.submit(file_of(second)._quarantine, "it looks damaged", second._contents()).result()
    file_of(second)._writer.submit(int).result()
    first.close()
    with sqlite3.connect(tmp_path / "history.db") as db:
        assert db.execute("SELECT COUNT(*) FROM events").fetchone()[0] == 1
    fill(second, clock, 70)  # the first has ended: the second takes over
    second.close()
    with sqlite3.connect(tmp_path / "history.db") as db:
        assert db.execute("SELECT MAX(t) FROM seconds").fetchone()[0] == int(clock.now)
