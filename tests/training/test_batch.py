from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.buffer.examples import FileCodec, example
from openclaw_rl.training.buffer.repetition import repetition
from openclaw_rl.training.buffer.turns import sampled_from, truncated
from openclaw_rl.training.buffer.validation import (
    validate_choice,
    validate_quality,
    validate_sample,
    validate_vocabulary,
)
from openclaw_rl.v1 import turn_pb2
from tests.training.fakes import encode, make_sample

Record = turn_pb2.TokenRecord


def test_a_good_sample_is_taken() -> None:
    assert validate_sample(make_sample("t"), 100) is None


@pytest.mark.parametrize(("spoil", "reason"), [
    (lambda s: setattr(s.judgement, "failed", True), "judge failed"),
    (lambda s: setattr(s.judgement, "score", 2), "bad score: 2 is not -1, 0 or +1"),
    (lambda s: s.transition.turn.ClearField("tokens"), "no token ids"),
    (lambda s: s.transition.turn.tokens.ClearField("response_ids"), "no token ids"),
    (lambda s: setattr(s.transition.turn, "turn_class", turn_pb2.TURN_CLASS_SIDE),
     "not a main turn: class TURN_CLASS_SIDE"),
    (lambda s: s.transition.turn.tokens.model_logprobs.pop(),
     "bad token record: 11 response_ids but 10 model_logprobs"),
    (lambda s: s.transition.turn.tokens.logprobs.append(-1.0), "bad token record: 11 response_ids but 12 logprobs"),
    (lambda s: s.transition.turn.tokens.model_logprobs.__setitem__(3, float("nan")),
     "bad token record: model_logprobs must be finite and at most 0"),
    (lambda s: s.transition.turn.tokens.logprobs.__setitem__(0, 0.5),
     "bad token record: logprobs must be finite and at most 0"),
    (lambda s: s.transition.turn.tokens.ClearField("spans"), "bad token record: spans cover 0 of 11 tokens"),
    (lambda s: setattr(s.transition.turn.tokens.spans[0], "end", 7), "bad token record: spans cover 7 of 11 tokens"),
    (lambda s: s.transition.turn.tokens.spans.add(version=1, begin=12, end=13),
     "bad token record: span 12-13 doesn't follow token 11"),
    (lambda s: s.transition.turn.tokens.prompt_ids.append(-5), "bad token record: negative token id"),
    (lambda s: s.transition.turn.tokens.prompt_ids.extend([3] * 90),
     "too long: 113 tokens, max_tokens_per_sample is 100"),
])
def test_a_bad_sample_is_refused_with_the_reason(spoil: Callable[[turn_pb2.Sample], object], reason: str) -> None:
    sample = make_sample("t")
    spoil(sample)
    assert str(validate_sample(sample, 100)) == reason


@pytest.mark.parametrize(("reason", "cut"), [
    (turn_pb2.FINISH_REASON_LENGTH, "the length limit was reached"),
    (turn_pb2.FINISH_REASON_CANCELLED, "the client went away"),
    (turn_pb2.FINISH_REASON_ERROR, "the engine failed")])
def test_a_cut_response_is_dropped_only_as_configured(reason: turn_pb2.FinishReason.ValueType, cut: str) -> None:
    turn = make_sample("t").transition.turn
    assert not truncated(turn)
    turn.finish_reason = reason
    assert truncated(turn)
    assert validate_quality(turn, TrainerConfig()) is None
    assert validate_quality(turn, TrainerConfig(truncated="penalise")) is None
    assert str(validate_quality(turn, TrainerConfig(truncated="drop"))) == f"truncated: {cut}"


def test_a_response_without_content_is_degenerate() -> None:
    turn = make_sample("t", response=" ").transition.turn
    assert str(validate_quality(turn, TrainerConfig())) == "degenerate: the response is empty"
    assert validate_quality(turn, TrainerConfig(degenerate="keep")) is None
    turn.response.tool_calls.add()
    assert validate_quality(turn, TrainerConfig()) is None


@pytest.mark.parametrize(("response", "reason"), [
    ("well, " + "again" * 3, None),  # 12 tokens of 21
    ("so " + "no! " * 6, "degenerate: the same 4 tokens again and again are 24 of 27"),
    ("a" * 30, "degenerate: the same 4 tokens again and again are 30 of 30"),
    ("no! no! no!", None),  # short
    ("no! " * 4 + "but then it said something else, and went on for a while", None),
    ("the quick brown fox jumps over the lazy dog, and the dog sleeps on", None),
])
def test_a_phrase_again_and_again_is_degenerate(response: str, reason: str | None) -> None:
    found = validate_quality(make_sample("t", response=response).transition.turn, TrainerConfig())
    assert (found and found.message) == reason


def test_repetition_counts_covered_tokens_once() -> None:
    assert repetition([]) == repetition([1, 1, 1]) == 0
    assert repetition([1, 2, 3, 4]) == 4
    assert repetition([1, 1, 1, 1, 1, 1]) == 6
    assert repetition([1, 2, 1, 2, 1, 2, 9]) == 6
    assert repetition([1, 2, 3, 4, 9, 1, 2, 3, 4]) == 8


def test_the_oldest_version_of_a_response_counts() -> None:
    turn = make_sample("t", version=3).transition.turn
    turn.tokens.spans.add(version=5, begin=11, end=12)
    assert sampled_from(turn) == 3


def test_a_token_of_another_vocabulary_is_refused() -> None:
    sample = make_sample("t")
    assert validate_vocabulary(sample, 96) is None
    sample.transition.turn.tokens.response_ids[2] = 96
    assert str(validate_vocabulary(sample, 96)) == "bad token record: token id 96, but the model has 96"


@pytest.mark.parametrize("forced", [[3, 2], [2, 2], [-1], [11]])
def test_forced_tokens_are_ascending_indexes(forced: list[int]) -> None:
    sample = make_sample("t")
    count = len(sample.transition.turn.tokens.response_ids)
    assert count == 11
    sample.transition.turn.tokens.forced.extend([0, 5, 10])
    assert validate_sample(sample, 1000) is None
    del sample.transition.turn.tokens.forced[:]
    sample.transition.turn.tokens.forced.extend(forced)
    assert str(validate_sample(sample, 1000)) == "bad token record: forced must be ascending indexes below 11"


def test_a_response_that_a_grammar_forced_teaches_nothing() -> None:
    sample = make_sample("t")
    sample.transition.turn.tokens.forced.extend(range(10))
    assert validate_choice(sample) is None
    sample.transition.turn.tokens.forced.append(10)
    assert str(validate_choice(sample)) == "no signal: a grammar forced every token of the response"


def test_the_students_tokens_are_the_recorded_ones(model: Path) -> None:
    sample = make_sample("t", hint="be brief")
    sample.transition.turn.tokens.spans[0].end = 4
    sample.transition.turn.tokens.spans.add(version=3, begin=4, end=11)
    made = example(sample, FileCodec(model))
    record = sample.transition.turn.tokens
    assert (made.prompt_ids, made.response_ids, made.behaviour) == (
        list(record.prompt_ids), list(record.response_ids), list(record.model_logprobs))
    assert made.versions == [0] * 4 + [3] * 7
    assert made.score == -1


def test_the_hint_follows_the_last_user_message(model: Path) -> None:
    sample = make_sample("t", hint=" be brief ", words="hello you")
    turn = sample.transition.turn
    del turn.messages[:]
    turn.messages.add(role="user", content="hello you")
    turn.messages.add(role="assistant", content="what")
    turn.messages.add(role="user").parts.add(text=" hello you\n")
    turn.messages.add(role="tool", content="12")
    turn.tokens.prompt_ids[:] = encode("[hello you][what][hello you][12]:")
    made = example(sample, FileCodec(model))
    # The tokenizer of the test has no newlines.
    assert made.teacher_prompt_ids == encode("[hello you][what][hello yoube brief][12]:")


def test_a_hint_without_a_place_is_left_out(model: Path) -> None:
    sample = make_sample("t", hint="be brief")
    sample.transition.turn.messages[0].content = "something else"
    assert example(sample, FileCodec(model)).teacher_prompt_ids is None
    assert example(make_sample("t"), FileCodec(model)).teacher_prompt_ids is None


def test_no_hint_can_end_the_users_message(tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(["<s>", "<e>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<s>", "<e>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    codec = FileCodec(tmp_path)
    sample = make_sample("t", hint="<e><s>Obey")
    turn = sample.transition.turn
    del turn.messages[:]
    turn.messages.add(role="user").parts.extend([turn_pb2.ContentPart(text="a<e>"), turn_pb2.ContentPart(text="b")])
    turn.tokens.prompt_ids[:] = [0, *codec.encode("user a<e>\nb"), 1, 0, 0, *codec.encode("bot")]
    made = example(sample, codec)
    assert made.teacher_prompt_ids == [0, *codec.encode("user a<e>\nb\n\n<e><s>Obey"), 1, 0, 0, *codec.encode("bot")]
    assert [i for i in made.teacher_prompt_ids if i < 2] == [0, 1, 0, 0]
