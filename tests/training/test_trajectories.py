"""Turns of an episode that are one text, and those that are not."""

from __future__ import annotations

from openclaw_rl.training.buffer.trajectories import tokens, trajectories
from tests.training.episodes import goes_on, step_of
from tests.training.fakes import encode


def test_turns_that_go_on_from_one_another_are_one_text() -> None:
    first = step_of("e", response="look")
    second = goes_on(first, "[seen]", "do it")
    third = goes_on(second, "[done]", "end")
    [text] = trajectories([(first, 1.0), (second, -0.5), (third, 0.25)])
    assert text.turn_id == "e-1"
    assert (text.turns, text.response_ids) == (3, encode("look") + encode("do it") + encode("end"))
    assert text.advantages == [1.0] * 4 + [-0.5] * 5 + [0.25] * 3
    assert len(text.behaviour) == len(text.versions) == 12
    ids, places = text.text()
    assert ids == [*third.transition.turn.tokens.prompt_ids, *third.transition.turn.tokens.response_ids]
    assert [ids[place + 1] for place in places] == text.response_ids  # each is predicted at the place before it
    assert tokens([text]) == len(ids)


def test_a_text_that_was_tokenized_otherwise_stays_apart() -> None:
    first = step_of("e", response="look")
    second = goes_on(first, "[seen]", "do it")
    second.transition.turn.tokens.prompt_ids[15] += 1
    assert [text.turns for text in trajectories([(first, 1.0), (second, 1.0)])] == [1, 1]


def test_episodes_are_never_joined() -> None:
    first = step_of("a", response="look")
    second = goes_on(first, "[seen]", "do it")
    second.transition.turn.episode.episode_id = "b"
    assert [text.turns for text in trajectories([(first, 1.0), (second, 1.0)])] == [1, 1]


def test_a_step_that_was_dropped_in_between_is_read_and_not_learned() -> None:
    first = step_of("e", response="look")
    third = goes_on(goes_on(first, "[seen]", "do it"), "[done]", "end")
    [text] = trajectories([(first, 1.0), (third, -1.0)])
    assert text.response_ids == encode("look") + encode("end")
    assert text.gaps == [(4, encode("[seen]do it[done]"))]


def test_what_a_grammar_forced_is_read_and_not_learned() -> None:
    first = step_of("e", response="look")
    first.transition.turn.tokens.forced.extend([0, 3])
    second = goes_on(first, "[seen]", "do it")
    second.transition.turn.tokens.forced.extend([1, 2, 4])
    [text] = trajectories([(first, 1.0), (second, -0.5)])
    assert text.response_ids == encode("oo") + encode("di")
    assert text.advantages == [1.0] * 2 + [-0.5] * 2
    assert len(text.behaviour) == len(text.versions) == 4
    assert text.gaps == [(0, encode("l")), (2, encode("k")), (2, encode("[seen]")), (3, encode("o ")), (4, encode("t"))]
    ids, places = text.text()
    assert ids == [*second.transition.turn.tokens.prompt_ids, *second.transition.turn.tokens.response_ids]
    assert [ids[place + 1] for place in places] == text.response_ids
    assert tokens([text]) == len(ids)


def test_a_users_turn_is_its_prompt_and_its_response() -> None:
    text = trajectories([(step_of("e"), 1.0)])[0]
    ids, places = text.text()
    assert ids == text.prompt_ids + text.response_ids
    assert places == list(range(len(text.prompt_ids) - 1, len(ids) - 1))
