"""Checks of Generate and Score: token ids in and out, or NO_WEIGHTS from an API model."""

from __future__ import annotations

import grpc

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, check
from openclaw_rl.conformance.policy_calls import ANSWER, check_tokens, finished, state
from openclaw_rl.v1 import policy_pb2 as pb
from openclaw_rl.v1.turn_pb2 import SamplingParams, TurnOptions

_POLICY = ("policy",)
#: Tokens of a response.
TOKENS = 8
#: How far the log-probabilities of Generate and of Score may lie apart: one computes token by token in a batch of
#: strangers, the other all at once, in 16 bits.
APART = 0.25


@check("policy.generate", "Generate continues token ids and returns each token's log-probability and version; an API "
                          "model rejects it with NO_WEIGHTS.", services=_POLICY, seconds=2 * ANSWER,
       where="policy.proto: GenerateResponse")
async def generate(kit: Context) -> None:
    now = await state(kit)
    if not now.vocab_size:
        refused = await kit.refused(_generate(kit, [1, 2, 3]), grpc.StatusCode.FAILED_PRECONDITION,
                                    what="Generate of an API model (vocab_size 0)")
        kit.expect(refused.reason == "NO_WEIGHTS", f"Generate of an API model was refused for the reason "
                   f"{refused.reason!r}, not NO_WEIGHTS")
        return
    prompt = _prompt(now)
    tokens, end = await _generate(kit, prompt, top=2)
    finished(kit, end.finish_reason, "the generation")
    kit.expect(tokens, "the generation has no token")
    check_tokens(kit, tokens, end, now.vocab_size, "the generation")
    kit.expect(end.prompt_tokens == len(prompt), f"the end says that the prompt had {end.prompt_tokens} tokens; "
               f"{len(prompt)} were given")
    kit.expect(len(tokens) <= TOKENS, f"{len(tokens)} tokens came where max_tokens is {TOKENS}")
    lacking = [i for i, token in enumerate(tokens) if len(token.top) != 2]
    kit.expect(not lacking, f"token {lacking[0] if lacking else 0} has not the 2 alternatives that "
               "top_logprobs asks for")


@check("policy.generate.bad_input", "Generate rejects missing or invalid token ids, naming the field.",
       services=_POLICY, after=["policy.generate"], where="policy.proto: GenerateRequest.prompt_ids")
async def bad_ids(kit: Context) -> None:
    size = await _vocabulary(kit)
    for ids, what in (([], "without token ids"), ([1, size], f"with the token id {size}, of {size},"),
                      ([-1], "with the token id -1")):
        refused = await kit.refused(_generate(kit, ids), grpc.StatusCode.INVALID_ARGUMENT, what=f"Generate {what}")
        kit.expect(any("prompt_ids" in name for name in refused.violations), f"Generate {what} was refused, but no "
                   "field violation names prompt_ids")


@check("policy.score", "Score returns one log-probability fewer than token ids, and the version; an API model rejects "
                       "it with NO_WEIGHTS.", services=_POLICY, seconds=ANSWER, where="policy.proto: ScoreResponse")
async def score(kit: Context) -> None:
    now = await state(kit)
    if not now.vocab_size:
        refused = await kit.refused(kit.unary("Score", pb.ScoreRequest(token_ids=[1, 2, 3])),
                                    grpc.StatusCode.FAILED_PRECONDITION, what="Score of an API model (vocab_size 0)")
        kit.expect(refused.reason == "NO_WEIGHTS", f"Score of an API model was refused for the reason "
                   f"{refused.reason!r}, not NO_WEIGHTS")
        return
    ids = _prompt(now)
    answer = await kit.unary("Score", pb.ScoreRequest(token_ids=ids), timeout=ANSWER)
    kit.expect(len(answer.logprobs) == len(ids) - 1, f"Score of {len(ids)} token ids gives {len(answer.logprobs)} "
               f"log-probabilities; the first token has none, so they are {len(ids) - 1}")
    kit.expect(all(value <= 1e-6 for value in answer.logprobs), "Score gives a log-probability above 0")
    kit.expect(answer.version == now.active_version or answer.version == (await state(kit)).active_version,
               f"Score says version {answer.version}; version {now.active_version} is active")


@check("policy.score.bad_input", "Score rejects token ids that cannot be scored, and unknown versions.",
       services=_POLICY, after=["policy.score"], where="policy.proto: ScoreRequest")
async def bad_score(kit: Context) -> None:
    size = await _vocabulary(kit)
    for ids, what in (([1], "of a single token id"), ([1, size], f"of the token id {size}, of {size},")):
        refused = await kit.refused(kit.unary("Score", pb.ScoreRequest(token_ids=ids)),
                                    grpc.StatusCode.INVALID_ARGUMENT, what=f"Score {what}")
        kit.expect(any("token_ids" in name for name in refused.violations), f"Score {what} was refused, but no field "
                   "violation names token_ids")
    version = (await state(kit)).active_version + 1000
    refused = await kit.refused(kit.unary("Score", pb.ScoreRequest(token_ids=[1, 2], version=version)),
                                grpc.StatusCode.FAILED_PRECONDITION, what=f"Score with version {version}")
    kit.expect(refused.reason in ("VERSION_UNKNOWN", "VERSION_NOT_ACTIVE"),
               f"Score with version {version} was refused for the reason {refused.reason!r}, not VERSION_UNKNOWN")


@check("policy.score.same", "Score returns the log-probabilities that Generate reported for the same tokens.",
       services=_POLICY, after=["policy.generate", "policy.score"], seconds=2 * ANSWER, level=Level.SHOULD,
       where="policy.proto: TokenChunk.model_logprob")
async def same(kit: Context) -> None:
    await _vocabulary(kit)
    now = await state(kit)
    prompt = _prompt(now)
    tokens, _ = await _generate(kit, prompt)
    answer = await kit.unary("Score", pb.ScoreRequest(token_ids=[*prompt, *(token.id for token in tokens)]),
                             timeout=ANSWER)
    if {answer.version, *(token.version for token in tokens)} != {now.active_version}:
        kit.skip("another version became active meanwhile")
    scored = answer.logprobs[len(prompt) - 1 :]
    apart = max((abs(one - token.model_logprob) for one, token in zip(scored, tokens, strict=True)), default=0.0)
    kit.expect(apart <= APART, f"Generate and Score are {apart:.2f} apart on the same tokens")


async def _vocabulary(kit: Context) -> int:
    size = (await state(kit)).vocab_size
    if not size:
        kit.skip("an API model has no token ids")
    return int(size)


def _prompt(now: pb.PolicyState) -> list[int]:
    """Some token ids of any vocabulary, none of the first few, which are special ones."""
    return [(now.vocab_size // 3 + 7 * i) % now.vocab_size for i in range(1, 7)]


async def _generate(kit: Context, ids: list[int], top: int | None = None
                    ) -> tuple[list[pb.TokenChunk], pb.GenerationEnd]:
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    if top is not None:
        sampling.top_logprobs = top
    asked = pb.GenerateRequest(prompt_ids=ids, sampling=sampling, turn=TurnOptions(no_record=True))
    events = [event async for event in kit.stream("Generate", asked, timeout=ANSWER)]
    kinds = [event.WhichOneof("event") for event in events]
    kit.expect(kinds and kinds[-1] == "end", "a generation does not close with `end`")
    kit.expect(set(kinds[:-1]) <= {"token"}, "a generation has messages that are no `token` before its `end`")
    return [event.token for event in events[:-1]], events[-1].end
