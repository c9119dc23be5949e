"""Values that are read again when their files change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.runtime.reloading import Reloading, reread_when_changed


class Bad(Exception):
    """The content can't be used."""


def write(path: Path, text: str) -> None:
    replacement = path.with_suffix(".new")
    replacement.write_text(text)
    os.replace(replacement, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def test_a_value_follows_its_file_and_outlives_content_that_cannot_be_used(path: Path) -> None:
    reads = []

    def load() -> int:
        reads.append(path.read_text())
        try:
            return int(reads[-1])
        except ValueError:
            raise Bad(f"{reads[-1]} is no number") from None

    value = Reloading("the number", [path], load, Bad)
    assert [value.value(), value.value()] == [1, 1] and reads == ["1"] and value.problem == ""
    write(path, "2")
    assert value.value() == 2
    write(path, "x")
    assert [value.value(), value.value()] == [2, 2] and value.problem == "x is no number"
    assert reads == ["1", "2", "x"], "what can't be used is read once"
    write(path, "3")
    assert value.value() == 3 and value.problem == ""
    with pytest.raises(Bad):
        write(path, "y")
        Reloading("the number", [path], load, Bad)


def test_what_may_be_incomplete_is_read_until_it_can_be_used(path: Path) -> None:
    answers: list[int | Bad] = [1, Bad("half"), Bad("half"), 2]

    def load() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Bad):
            raise answer
        return answer

    value = Reloading("the number", [path], load, Bad, incomplete=lambda _: True)
    write(path, "2")
    assert [value.value(), value.value(), value.value()] == [1, 1, 2] and not answers


def test_a_function_of_a_file_reads_it_when_it_changed(path: Path) -> None:
    reads = []

    @reread_when_changed
    def read(path: Path) -> str:
        reads.append(path.read_text())
        return reads[-1]

    assert [read(path), read(path)] == ["1", "1"] and reads == ["1"]
    write(path, "2")
    assert read(path) == "2"
    path.unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            read(path)
