"""The journal: what its lines look like, that none is lost, that it never stops its caller."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_rl.config import JournalConfig
from openclaw_rl.observability.journal import Journal
from openclaw_rl.observability.journal import journal as journal_module
from openclaw_rl.observability.journal.file import JournalFile
from openclaw_rl.observability.journal.line import lines
from tests.support.waiting import until

STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("rl_trace_*.log"), key=lambda p: (p.name.count("."), len(p.name), p.name))


def written(folder: Path) -> list[str]:
    return [line for path in files(folder) for line in path.read_text().split("\n")[:-1]]


def test_the_four_kinds_of_lines(journal: Journal, tmp_path: Path) -> None:
    journal.action("abc123", 42, "MAIN", "Here you are.")
    journal.next_state("abc123", 42, "No!")
    journal.score("abc123", 42, -1, "dissatisfied")
    journal.hint("abc123", 42, "Be brief.")
    journal.action("abc123", 42, "SIDE", "title")
    until(lambda: len(written(tmp_path)) == 5)  # the writer comes by itself
    expected = ['[VERSION: 42] [MAIN] Action: "Here you are."', '[VERSION: 42] NextState: "No!"',
                "[VERSION: 42] [PRM] Score: -1 (dissatisfied)", '[VERSION: 42] [OPD] Hint: "Be brief."',
                '[VERSION: 42] [SIDE] Action: "title"']
    for line, end in zip(written(tmp_path), expected, strict=True):
        assert re.fullmatch(STAMP + re.escape("[SESSION: abc123] " + end), line)
    [path] = files(tmp_path)
    assert path.name == time.strftime("rl_trace_%Y%m%d.log")


@pytest.mark.parametrize("text", [
    "two\nlines\r\nand \"quotes\", a \\ and a tab\t.", "\u2028 \u2029 \x85 \x0b \x0c \x1c \x7f \x00", "你好\n再见 🙂",
    "", "half a pair \ud83d", "x" * 100_000, '"\n[2026-03-16 15:30:45] [SESSION: forged] [VERSION: 1] [PRM] Score: 1'])
def test_a_line_stays_one_line_whatever_the_text_holds(journal: Journal, tmp_path: Path, text: str) -> None:
    journal.action("s", 1, "MAIN", text)
    journal.flush()
    [line] = (tmp_path / time.strftime("rl_trace_%Y%m%d.log")).read_text().splitlines()  # the strictest reader
    assert json.loads(line.partition("Action: ")[2]) == text


def test_a_session_or_word_cant_forge_lines_either(journal: Journal, tmp_path: Path) -> None:
    journal.score("a] [VERSION: 9]\nb", 1, 1, "fine)\n[x]")
    journal.flush()
    [line] = written(tmp_path)
    assert "[SESSION: a\\u005d [VERSION: 9\\u005d\\nb] [VERSION: 1] [PRM] Score: 1 (fine)\\n[x\\u005d)" in line


def test_the_version_tracker(journal: Journal, tmp_path: Path) -> None:
    journal.action("s", 7, "MAIN", "a")
    journal.next_state("s", None, "b")  # not known to the caller
    journal.action("s", 3, "MAIN", "late")
    journal.next_state("s", None, "c")
    journal.flush()
    assert [re.search(r"VERSION: (\d+)", line)[1] for line in written(tmp_path)] == ["7", "7", "3", "7"]
    assert journal.stats["version"] == 7


def test_a_full_buffer_is_counted_shown_and_written_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(journal_module, "_GATHER", 60)  # the writer does not come
    journal = Journal(tmp_path, capacity=50_000)
    for i in range(1000):
        journal.action("s", i, "MAIN", "x")
    assert 5 < journal.stats["overflows"] < 50 and "buffer full" in caplog.text
    assert len(written(tmp_path)) >= 900
    journal.close()
    assert [int(re.search(r"VERSION: (\d+)", line)[1]) for line in written(tmp_path)] == list(range(1000))
    assert journal.stats["written"] == 1000 and journal.stats["lost"] == 0


def test_rotation_by_size_keeps_whole_lines_and_so_many_files(tmp_path: Path) -> None:
    journal = Journal(tmp_path, JournalConfig(max_size=10_000, keep_files=3))
    for i in range(1000):
        journal.action("s", i, "MAIN", "x" * 40)
    journal.action("s", 1000, "MAIN", "y" * 20_000)  # longer than a file: a file of its own
    journal.action("s", 1001, "MAIN", "z")
    journal.close()
    found = files(tmp_path)
    assert len(found) == 4
    assert all(p.stat().st_size <= 10_000 or b"yyy" in p.read_bytes() for p in found)
    assert all(p.read_bytes().endswith(b"\n") for p in found)
    by_number = sorted(found, key=lambda p: int(p.name.split(".")[1]) if p.name.count(".") == 2 else 10**9)
    versions = [int(re.search(r"VERSION: (\d+)", line)[1]) for p in by_number for line in p.read_text().splitlines()]
    assert versions == list(range(versions[0], 1002)) and versions[0] > 0


def test_rotation_by_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    midnight = time.mktime((2026, 3, 17, 0, 0, 0, 0, 0, -1))
    clock = iter([midnight - 86_400 * 3, midnight - 0.5, midnight + 0.5])
    monkeypatch.setattr(journal_module.time, "time", lambda: next(clock))
    journal = Journal(tmp_path, JournalConfig(keep_files=1))
    for text in ("old", "before", "after"):
        journal.action("s", 1, "MAIN", text)
    journal.close()
    assert {p.name: p.read_text()[-9:-2] for p in files(tmp_path)} == {
        "rl_trace_20260316.log": '"before', "rl_trace_20260317.log": ' "after'}  # the third one was one too many


def test_a_line_that_a_killed_process_left_half_written_takes_no_other_with_it(tmp_path: Path) -> None:
    file, other = JournalFile(tmp_path, 200, 5), JournalFile(tmp_path, 200, 5)
    file.write("20260101", b"first\n")
    with (tmp_path / "rl_trace_20260101.log").open("ab") as killed:
        killed.write(b"half")
    file.write("20260101", b"second\n")
    with (tmp_path / "rl_trace_20260101.log").open("ab") as killed:
        killed.write(b"ha")
    other.write("20260101", b"third\n")
    assert written(tmp_path) == ["first", "half", "second", "ha", "third"]
    for each in (file, other):
        each.close()


def test_rotated_files_go_oldest_first(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, 10, 2)
    for day, line in [("20260101", b"first....\n"), ("20260101", b"second...\n"), ("20260101", b"third....\n"),
                      ("20260102", b"fourth...\n"), ("20260102", b"fifth....\n")]:
        file.write(day, line)
    file.close()
    assert sorted(p.name for p in files(tmp_path)) == [
        "rl_trace_20260101.log", "rl_trace_20260102.1.log", "rl_trace_20260102.log"]
    assert (tmp_path / "rl_trace_20260102.1.log").read_bytes() == b"fourth...\n"


WRITER = """
import sys
from pathlib import Path
from openclaw_rl.config import JournalConfig
from openclaw_rl.observability.journal import Journal
journal = Journal(Path(sys.argv[1]), JournalConfig(max_size=200_000, keep_files=1000))
for i in range(5000):
    journal.action(sys.argv[2], i, "MAIN", "x" * (i % 97))
    if i % 500 == 0:
        journal.flush()
journal.close()
"""


def test_several_processes_share_one_file_through_its_rotations(tmp_path: Path) -> None:
    names = ["env", "judge", "other"]
    children = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name]) for name in names]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert len(files(tmp_path)) > 5 and all(p.stat().st_size <= 200_000 for p in files(tmp_path))
    seen: dict[str, list[int]] = {name: [] for name in names}
    by_number = sorted(files(tmp_path), key=lambda p: int(p.name.split(".")[1]) if p.name.count(".") == 2 else 10**9)
    for path in by_number:
        for line in path.read_text().splitlines():
            match = re.fullmatch(STAMP + r'\[SESSION: (\w+)\] \[VERSION: (\d+)\] \[MAIN\] Action: "x*"', line)
            assert match, line
            seen[match[1]].append(int(match[2]))
    assert seen == {name: list(range(5000)) for name in names}


def test_threads_lose_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, capacity=100_000)
    threads = [threading.Thread(target=lambda n=n: [journal.action(f"t{n}", i, "MAIN", "x") for i in range(3000)])
               for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = written(tmp_path)
    for n in range(4):
        mine = [int(re.search(r"VERSION: (\d+)", line)[1]) for line in found if f"SESSION: t{n}]" in line]
        assert mine == list(range(3000))


def test_a_file_or_folder_that_vanishes_is_made_again(journal: Journal, tmp_path: Path) -> None:
    journal.action("s", 1, "MAIN", "a")
    journal.flush()
    files(tmp_path)[0].unlink()
    journal.action("s", 2, "MAIN", "b")
    journal.flush()
    assert len(written(tmp_path)) == 1


def test_a_full_disk_stops_nobody_and_nothing_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                 caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(journal_module, "_RETRY", 0.05)
    full = True
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if full:
            real(fd, bytes(data[:len(data) // 2]))  # a part fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    journal = Journal(tmp_path)
    journal.action("s", 0, "MAIN", "x")
    journal.flush()
    monkeypatch.setattr("openclaw_rl.observability.journal.file.os.write", write)
    for i in range(1, 2000):
        journal.action("s", i, "MAIN", "x")
        if i % 500 == 0:
            until(lambda: "No space left" in journal.problem)
    assert len(written(tmp_path)) == 1 and files(tmp_path)[0].read_bytes().endswith(b"\n")
    full = False
    until(lambda: journal.stats["written"] == 2000)
    journal.close()
    assert [int(re.search(r"VERSION: (\d+)", line)[1]) for line in written(tmp_path)] == list(range(2000))
    assert journal.problem == "" and journal.stats["lost"] == 0
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1


def test_what_memory_cant_hold_either_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("openclaw_rl.observability.journal.file.os.write", write)
    journal = Journal(tmp_path, capacity=10_000)
    for i in range(1000):
        journal.action("s", i, "MAIN", "x")
    stats = journal.stats
    assert stats["waiting"] * 513 <= 2 * 10_000 + 513 and stats["lost"] + stats["waiting"] == 1000
    monkeypatch.undo()
    journal.close()
    assert [int(re.search(r"VERSION: (\d+)", line)[1]) for line in written(tmp_path)] == list(
        range(stats["lost"], 1000))


def test_a_part_that_was_written_before_the_disk_was_full_is_not_written_again(tmp_path: Path,
                                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def write(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr("openclaw_rl.observability.journal.file.os.write", write)
    monkeypatch.setattr(journal_module, "_GATHER", 60)
    monkeypatch.setattr(journal_module, "_RETRY", 0)
    journal = Journal(tmp_path, JournalConfig(max_size=1000))
    for i in range(20):  # some 90 bytes each: two files and more
        journal.action("s", i, "MAIN", "x" * 20)
    journal.flush()
    assert 0 < journal.stats["written"] < 20
    journal.close()
    versions = sorted(int(re.search(r"VERSION: (\d+)", line)[1]) for line in written(tmp_path))
    assert versions == list(range(20))


def test_a_folder_that_cant_be_written_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "logs")
    journal.action("s", 1, "MAIN", "x")
    journal.flush()
    assert journal.problem
    journal.close()
    journal.close()


def test_what_is_no_text_is_written_all_the_same(journal: Journal, tmp_path: Path) -> None:
    journal.action(None, 1, "main", b"bytes")  # type: ignore[arg-type]
    journal.flush()
    [line] = written(tmp_path)
    assert line.endswith("""[SESSION: None] [VERSION: 1] [UNKNOWN] Action: "b'bytes'\"""")


def test_switched_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path, JournalConfig(enabled=False))
    journal.action("s", 1, "MAIN", "x")
    journal.flush()
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_lines_of_a_second_share_their_stamp() -> None:
    [(day, data)] = lines([(1_773_671_445.1 + i / 10, "s", 1, "", "x", True) for i in range(12)])
    stamps = [line[:21] for line in data.decode().splitlines()]
    assert len(set(stamps)) == 2 and len(day) == 8


def test_forgets_a_session_while_others_write(tmp_path: Path) -> None:
    """Its lines leave all files; nobody else's line is lost, whoever appends meanwhile."""
    def fill() -> Journal:
        return Journal(tmp_path, JournalConfig.model_validate({"max_size": "64KB", "keep_files": 1000}))

    ours, neighbour = fill(), fill()
    stop = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            neighbour.next_state("bob", 1, f"bob says [SESSION: ann] {written}")
            written += 1
            if written % 100 == 0:
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    for i in range(2000):
        ours.action("ann" if i % 2 else 'an"n] [SESSION: ann', 1, "MAIN", f"{i}")
    writer.start()
    removed = [ours.forget("ann") for _ in range(5)]
    stop.set()
    writer.join()
    assert sum(removed) == 1000 and removed[1:] == [0, 0, 0, 0]
    ours.close()
    neighbour.close()
    kept = [line for path in sorted(tmp_path.glob("rl_trace_*.log"), key=lambda p: (len(p.name), p.name))
            for line in path.read_text().splitlines()]
    assert sum("bob says" in line for line in kept) == written
    assert sum("[SESSION: an\\\"n" in line for line in kept) == 1000 and len(kept) == written + 1000
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".rewritten")]


def test_what_a_line_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tools/bench/journal.py measures in time: one write for all lines that wait, their bytes and no more, and no
    wait for the disk."""
    journal = Journal(tmp_path)
    sizes: list[int] = []
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if threading.current_thread() is journal._thread:
            sizes.append(len(data))
        return real(fd, data)

    def fsync(fd: int) -> None:
        pytest.fail("the journal waits for the disk")

    with journal._write_lock:  # the writer waits
        monkeypatch.setattr(os, "write", write)
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "fdatasync", fsync)
        for i in range(1000):
            journal.action("s", 1, "MAIN", f"{i}")
    until(lambda: len(written(tmp_path)) == 1000)
    journal.close()
    assert len(sizes) == 1
    assert sum(sizes) == sum(path.stat().st_size for path in files(tmp_path))
