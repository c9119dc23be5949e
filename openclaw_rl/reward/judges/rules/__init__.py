"""Judge `rules`: no model, no network, well under a millisecond.

Its evidence, the strongest first: explicit feedback, certain tool errors, the user's words, other signs in tool
results. See the package's README for all rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from openclaw_rl.config import PrmJudgeConfig
from openclaw_rl.reward.judges.rules import feedback, tools, words
from openclaw_rl.reward.judges.rules.evidence import Evidence
from openclaw_rl.reward.judges.text import text_of
from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.v1 import turn_pb2

#: Agents prefix the user's words with the time: "[Mon 2026-03-16 15:30 GMT+1] hello".
_STAMP = re.compile(r"^\s*\[[^\]\n]{0,60}\d{1,2}:\d{2}[^\]\n]{0,20}\]\s*")
#: Evaluates what a user says (first) after the answer (last) to a request.
Reader = Callable[[str, str, str], Evidence]
_ENDED = {
    turn_pb2.NEXT_STATE_KIND_SESSION_ENDED: "the session ended without a word",
    turn_pb2.NEXT_STATE_KIND_SESSION_TIMEOUT: "nothing came before the session timed out",
    turn_pb2.NEXT_STATE_KIND_EPISODE_ENDED: "the episode ended without an observation",
}


class RulesJudge:
    """Judges by the rules of this package."""

    name = "rules"

    def vote_now(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        evidence = judge(transition)
        return turn_pb2.Vote(judge=self.name, score=evidence.score, hint=well_formed(evidence.hint),
                             rationale=well_formed(evidence.rationale), certain=evidence.certain)

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        return self.vote_now(transition)


def make(config: PrmJudgeConfig) -> RulesJudge:
    """Make the judge of the entry point `rules`; it has no settings."""
    return RulesJudge()


def judge(transition: turn_pb2.Transition, read: Reader = words.read) -> Evidence:
    """Find the strongest evidence in a transition's next state; `read` evaluates the user's words."""
    turn, state = transition.turn, transition.next_state
    request = next((_words(message) for message in reversed(turn.messages)
                    if message.role == "user" and not tools.is_result(message)), "")
    answer = text_of(turn.response)
    from_feedback = feedback.read(state.feedback, request, answer)
    from_tools = tools.read([message for message in state.messages if tools.is_result(message)], turn.response)
    if from_tools is not None and from_tools.score > 0 and turn.HasField("episode"):
        # That a command ran brings no task on, and an agent that is paid for it runs what can't fail.
        from_tools = Evidence(0, f"{from_tools.rationale}, which says nothing of the task")
    from_words = None
    for message in state.messages:
        if message.role == "user" and not tools.is_result(message):
            evidence = read(_words(message), request, answer)
            from_words = evidence if from_words is None or evidence.score else from_words
    return _strongest(from_feedback, from_tools, from_words) or Evidence(0, _ENDED.get(state.kind, "nothing came next"))


def _strongest(from_feedback: Evidence | None, from_tools: Evidence | None,
               from_words: Evidence | None) -> Evidence | None:
    found = [evidence for evidence in (from_feedback, from_words, from_tools) if evidence is not None]
    certain = [evidence for evidence in found if evidence.certain]
    best = next(iter(certain or [evidence for evidence in found if evidence.score] or found), None)
    if best is not None and best.score < 0:
        # The user's words are a better hint than a tool's error message or a thumb.
        hints = [evidence.hint for evidence in (from_feedback, from_words)
                 if evidence is not None and evidence.score < 0]
        hint = next(filter(None, hints), best.hint)
        return Evidence(best.score, best.rationale, hint, best.certain)
    return best


def _words(message: turn_pb2.ChatMessage) -> str:
    return _STAMP.sub("", text_of(message))
