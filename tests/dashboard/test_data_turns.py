"""Turns by filters, joined with what judge and trainer know; stories of turns and sessions."""

from __future__ import annotations

import pytest

from openclaw_rl.dashboard.data import story, turns
from openclaw_rl.dashboard.data.turns import Filters
from openclaw_rl.monitoring.mesh import MeshData
from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.v1 import turn_pb2
from tests.dashboard.pages_mesh import HOSTILE, LONG, PagesMesh, turn


async def ids(clients: MeshData, query: dict[str, str], size: int = 1000) -> list[str]:
    return [row.id for row in (await turns.page(clients, Filters.of(query), size=size)).rows]


async def test_filters(clients: MeshData, pages: PagesMesh) -> None:
    every = await ids(clients, {})
    assert every[:3] == ["bad", "t29", "t28"]
    assert len(every) == 31
    assert await ids(clients, {"class": "side"}) == [f"t{number}" for number in range(27, 0, -4)]
    assert await ids(clients, {"session": "ses3"}) == ["t7", "t6"]
    assert await ids(clients, {"version": "2", "class": "side"}) == ["t23", "t11"]
    assert await ids(clients, {"text": "28 PLUS"}) == ["t28"]
    bad = [name for name, judgement in pages.data.judgements.items() if judgement.score == -1]
    assert await ids(clients, {"score": "bad"}) == [name for name in every if name in bad]
    assert "t28" in await ids(clients, {"score": "none"})
    assert set(await ids(clients, {"fate": "trained"})) == set(list(pages.data.samples)[:12])
    assert await ids(clients, {"fate": "pending"}) == ["t28"]
    assert await ids(clients, {"fate": "trained", "score": "bad", "version": "1"}) == []


async def test_what_is_no_filter_is_none(clients: MeshData) -> None:
    wild = {"class": "x", "score": "7", "fate": "<i>", "version": "-1", "text": " \0 ", "other": "y"}
    assert Filters.of(wild) == Filters()
    assert Filters.of({"version": "007"}).query() == "version=7"
    filters = Filters.of({"text": "a b&c", "class": "main", "session": "s/\ud800"})
    assert filters.query(**{"from": "9"}) == "text=a+b%26c&class=main&session=s%2F%3F&from=9"
    assert turns.without(filters, "text").text == ""


async def test_pages_go_on(clients: MeshData) -> None:
    first = await turns.page(clients, Filters(), size=20)
    second = await turns.page(clients, Filters(), first.next, size=20)
    assert len(first.rows) == 20
    assert len(second.rows) == 11
    assert not second.next
    assert not {row.id for row in first.rows} & {row.id for row in second.rows}


async def test_a_search_goes_through_as_much_as_it_may(clients: MeshData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_CHUNK", 5)
    found = await turns.page(clients, Filters(fate="trained"), size=50, calls=2)
    assert found.looked_at == 10
    assert found.next
    assert (await turns.page(clients, Filters(fate="trained"), size=50)).rows


async def test_an_episode_s_turns(clients: MeshData, pages: PagesMesh) -> None:
    pages.data.turns["t4"].episode.episode_id = "e2"
    assert await ids(clients, {"episode": "e2"}) == ["t4"]
    assert await ids(clients, {"episode": "nobody"}) == []


async def test_the_judge_and_the_trainer_are_down(clients: MeshData, pages: PagesMesh) -> None:
    pages.stop("prm_judge", "trainer")
    found = await turns.page(clients, Filters(), size=5)
    assert found.down == ["the judge", "the trainer"]
    assert {row.fate.fate for row in found.rows} == {"pending", "not_trainable"}
    assert "did not answer" in found.rows[0].fate.reason


async def test_the_environment_server_is_down(clients: MeshData, pages: PagesMesh) -> None:
    pages.stop("env_server")
    with pytest.raises(MeshError, match="does not answer"):
        await turns.page(clients, Filters())


async def test_sessions(clients: MeshData) -> None:
    found, down = await turns.sessions(clients)
    assert not down
    assert [one.id for one in found[:2]] == ["ses<i>", "ses14"]
    assert found[1].turns == 2
    assert found[1].mean is not None
    assert found[1].versions == [1, 2]


async def test_a_turn_s_story(clients: MeshData) -> None:
    told = await story.turn(clients, "t0")
    assert told.response == LONG
    assert told.next_state == ["thanks\nall"]
    assert [row.id for row in told.after] == ["t1"]
    assert told.before is None
    assert told.row.fate.fate == "trained"
    assert told.row.judgement is not None
    assert len(told.row.judgement.votes) == 2
    after = await story.turn(clients, "t1")
    assert after.before is not None
    assert after.before.id == "t0"
    bad = await story.turn(clients, "bad")
    assert [given.comment for given in bad.feedback] == [HOSTILE]
    for name in ("", "nobody"):
        with pytest.raises(MeshError, match="there is no turn"):
            await story.turn(clients, name)


async def test_a_story_that_is_known_is_not_gone_through_again(clients: MeshData, pages: PagesMesh) -> None:
    known = await story.turn(clients, "t28")
    assert known.row.fate.fate == "pending"
    pages.data.judgements["t28"] = turn_pb2.Judgement(turn_id="t28", score=1)
    for _ in range(3):
        known = await story.turn(clients, "t28", known)
    assert known.row.judgement is not None
    assert pages.data.asked["journal"] == 1
    pages.data.turns["t28"].reason = "it changed"
    await story.turn(clients, "t28", known)
    assert pages.data.asked["journal"] == 2


async def test_a_story_without_the_others(clients: MeshData, pages: PagesMesh) -> None:
    pages.stop("prm_judge", "trainer")
    told = await story.turn(clients, "t0")
    assert told.down == ["the judge", "the trainer"]
    assert told.next_state


async def test_an_episode_s_story(clients: MeshData, pages: PagesMesh) -> None:
    pages.data.turns["t4"].CopyFrom(turn(4, episode=turn_pb2.EpisodeStep(episode_id="e3", step=2)))
    told = await story.turn(clients, "t4")
    assert told.episode is not None
    assert told.episode.error == HOSTILE


async def test_a_session_s_story(clients: MeshData) -> None:
    told = await story.session(clients, "ses0")
    assert [row.id for row in told.rows] == ["t0", "t1"]
    with pytest.raises(MeshError):
        await story.session(clients, "nobody")


@pytest.mark.parametrize(("line", "entry"), [
    ('[t] [SESSION: a] [VERSION: 1] [MAIN] Action: "x\\ny"', ("a", story.Entry("t", "Action", "x\ny"))),
    ('[t] [SESSION: a] [VERSION: -] NextState: "cut', ("a", story.Entry("t", "NextState", "cut"))),
    ("[t] [SESSION: a] [VERSION: 1] [PRM] Score: -1 (no)", ("a", story.Entry("t", "Score", "-1 (no)"))),
    ("Traceback", None), ("[", None), ("", None)])
def test_lines_of_the_journal(line: str, entry: tuple[str, story.Entry] | None) -> None:
    assert story.entry(line) == entry


def told(number: int, kinds: str, response: str = "yes", parent: str = "") -> tuple[str, list[str]]:
    """What is told of the turn of that number; `kinds`: the journal, a letter and a text each."""
    entries = [story.Entry("", {"A": "Action", "N": "NextState", "S": "Score"}[kind[0]], kind[1:])
               for kind in kinds.split()]
    same = [turn(n, turn_id=str(n), response_text=response, parent_turn_id="") for n in range(3)]
    heir = [turn(9, turn_id="heir", response_text="heir", parent_turn_id=parent)] if parent else []
    return story.told(entries, same[number], [*same, *heir])


def test_of_equal_responses_the_order_decides() -> None:
    kinds = "Ayes N1 Ayes N2 Ayes N3"
    assert told(2, kinds) == ("yes", ["3"])
    assert told(1, kinds) == ("yes", [])  # whose next state it is can't be told
    assert told(0, "Ayes N1 Ayes N2") == ("", [])  # it is older than the journal
    assert told(2, "Ayes-and N1") == ("", [])  # a short response is whole
    long = "y" * 200
    assert told(2, f"A{long}zzz N1", long) == (long + "zzz", ["1"])


def test_the_next_state_is_what_stands_before_the_turn_that_continues() -> None:
    kinds = "Ayes Ayes Nside Aside Ayes Nother Ano Nmine Aheir Nlast"
    assert told(1, kinds, parent="1") == ("yes", ["mine"])
    assert told(2, kinds, parent="1") == ("yes", [])
    assert told(1, "Ayes Ayes Ayes Nother", parent="1") == ("yes", [])  # the heir isn't in the journal
