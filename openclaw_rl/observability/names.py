"""Keys of span attributes: OpenTelemetry's GenAI semantic conventions where they exist, `openclaw.*` for the rest."""

from __future__ import annotations

SESSION = "openclaw.session.id"
TURN = "openclaw.turn.id"
TURN_CLASS = "openclaw.turn.class"
EPISODE = "openclaw.episode.id"
GROUP = "openclaw.episode.group.id"
VERSION = "openclaw.policy.version"  #: that a span is about: the one that answered, or that is sent or activated
TRAINED = "openclaw.policy.version.trained"  #: that a turn, or a step, trained
SPANS = "openclaw.policy.version.spans"  #: which version made which response tokens: "VERSION:BEGIN-END"
FATE = "openclaw.sample.fate"  #: "pending", "trained" or "dropped"
REASON = "openclaw.sample.reason"

BACKGROUND = "openclaw.background"  #: whether a request was one without urgency

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  #: "input" or "output"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"

EVALUATION = "gen_ai.evaluation.result"  #: name of the event of a judgement
EVALUATION_NAME = "gen_ai.evaluation.name"
SCORE = "gen_ai.evaluation.score.value"
LABEL = "gen_ai.evaluation.score.label"
EXPLANATION = "gen_ai.evaluation.explanation"
ERROR = "error.type"

#: Names of spans.
RECORD, NEXT_STATE, EVALUATE, VOTE, SAMPLE, TRAIN, DROPPED = (
    "turn record", "next state", "evaluate", "vote", "sample", "train", "sample dropped")
STEP, SYNC, STAGE, ACTIVATE = "train step", "weight sync", "stage version", "activate version"

_COMPLETIONS = {"completions", "grpc.generate"}


def operation(api: str) -> str:
    """`gen_ai.operation.name` of an entrypoint's API."""
    return "text_completion" if api in _COMPLETIONS else "chat"
