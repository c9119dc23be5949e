"""The recording that README.md begins with: one of today's `openclaw-rl chat`, and its picture is its own."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from openclaw_rl.api.facade import Reply
from openclaw_rl.cli.chat_news import judged, serves
from openclaw_rl.cli.chat_session import HINT, answered
from openclaw_rl.v1.turn_pb2 import Judgement
from tools.recording.cast import Cast, read
from tools.recording.picture import svg

FOLDER = Path(__file__).parents[2] / "tools/recording"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def cast() -> Cast:
    return read(FOLDER / "learning.cast")


def text(cast: Cast) -> str:
    """What it shows, without colours."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", "".join(piece for _, piece in cast.events))


def test_it_is_small_and_short(cast: Cast) -> None:
    assert sum(file.stat().st_size for file in FOLDER.glob("learning.*")) < 300_000
    times = [at for at, _ in cast.events]
    assert times == sorted(times) and times[0] >= 0 and 20 < times[-1] < 150
    assert max(b - a for a, b in itertools.pairwise(times)) <= 1.3


def test_its_lines_are_those_of_today(cast: Cast) -> None:
    """Each kind of note is there, and just as it would be told now."""
    shown = text(cast)
    assert HINT in shown
    judgements = re.findall(r"^(?:you> )?(answer (\d+) judged -1, hint: (.+))$", shown, re.M)
    assert len(judgements) >= 4
    for line, number, hint in judgements:
        assert line == judged(int(number), Judgement(score=-1, hint=hint))
    versions = re.findall(r"(version (\d+) answers now, made of (\d+) turns?)$", shown, re.M)
    assert versions
    for line, version, turns in versions:
        assert line == serves(0, int(version), int(turns))
    answers = re.findall(r"^(\(answer (\d+), version (\d+)(?:, session (\w+))?\))$", shown, re.M)
    assert {version for _, _, version, _ in answers} > {"0"}
    for line, number, version, session in answers:
        assert line == answered(int(number), Reply("", "", session, int(version)), bool(session))
    assert re.search(r"(?:^|you> )training needs \d+ more samples? or \d+ s$", shown, re.M)
    assert "training begins\n" in shown


def test_another_question_is_answered_more_briefly(cast: Cast) -> None:
    """The proof: the same question, before and after, of which nobody complained."""
    found = re.search(r"question 1: .*\nversion 0 answered:\n(.+?)\nversion [1-9]\d* answers:\n(.+?)\nyou> ",
                      text(cast), re.S)
    assert found and 5 < len(found[2].split()) < len(found[1].split()) / 1.5


def test_the_picture_is_drawn_from_it(cast: Cast) -> None:
    assert (FOLDER / "learning.svg").read_text() == svg(cast), "run `python tools/record --draw`"


def test_a_picture_shows_each_line_for_its_time() -> None:
    small = Cast(20, 3, "a & b", [(0.0, "$ go\r\n"), (1.0, "you> "), (2.0, "\r\x1b[K\x1b[31mnote <1>\x1b[0m\r\nyou> "),
                                  (3.0, "hi\r\nlast\r\n")])
    root = ET.fromstring(svg(small))
    assert [title.text for title in root.iter(f"{SVG}title")] == ["a & b"]
    lines = [(line.text, line.get("class"), line.get("visibility", "visible"),
              *((change.get("values"), change.get("keyTimes")) for change in line)) for line in root.iter(f"{SVG}text")]
    assert lines == [  # it takes 9 s: 3 of the recording, and 6 for which its end stays
        ("you>", "typed", "hidden", ("hidden;visible;hidden", "0;0.11111;0.22222")),  # the note took its place
        ("you>", "typed", "hidden", ("hidden;visible;hidden", "0;0.22222;0.33333")),
        ("$ go", "typed", "visible"),
        ("note <1>", "red", "visible", ("hidden;visible", "0;0.22222")),
        ("you> hi", "typed", "visible", ("hidden;visible", "0;0.33333")),
        ("last", "default", "visible", ("hidden;visible", "0;0.33333"))]
    scroll = next(root.iter(f"{SVG}animateTransform"))
    assert scroll.get("values", "").split(";")[-1] == "0 -38", "two of five rows are above"


def test_waits_are_cut_and_nothing_else() -> None:
    cast = Cast(9, 2, "", [(0.0, "a"), (0.5, "b"), (10.5, "c"), (10.75, "d"), (11.0, "e")])
    assert cast.cut(1.5, 0.25).events == [(0.0, "a"), (0.25, "b"), (1.75, "c"), (2.0, "d"), (2.25, "e")]


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    cast = Cast(9, 2, "t", [(0.0, "\x1b[2m鹭\x1b[0m\r\n"), (1.25, "b")])
    cast.write(tmp_path / "x.cast")
    assert read(tmp_path / "x.cast") == cast
    (tmp_path / "x.cast").write_text('{"version": 3}\n')
    with pytest.raises(ValueError, match="version 3 of the format; 2 is read"):
        read(tmp_path / "x.cast")
