"""Judge `llm`: any OpenAI-compatible model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import openai

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.models.api_calls import Budget, Names, call, client, explain, text_of
from openclaw_rl.models.api_endpoints import ApiModel, resolve_api
from openclaw_rl.models.api_habits import ApiHabits
from openclaw_rl.reward.interface import VoteError
from openclaw_rl.reward.judges import prompt
from openclaw_rl.reward.judges.answers import parse
from openclaw_rl.v1 import turn_pb2

#: The last try ends this share of the panel's timeout early, so that the vote can say what went wrong.
_MARGIN = 0.05
#: Several votes must be able to differ.
_TEMPERATURE = 0.7


def make(config: PrmJudgeConfig) -> LlmJudge:
    """Make the judge of the entry point `llm`.

    Raises:
        ConfigError: no model is configured, or there is no key for it.
    """
    if not config.model:
        raise ConfigError("components.prm_judge.model: must be set for judge llm; or set judge: rules, which needs "
                          "no model")
    return LlmJudge.of(config, os.environ)


class LlmJudge:
    """Asks a model for each vote, with retries after a rate limit, a server error or a broken connection while time
    is left."""

    def __init__(self, api: ApiModel, timeout: float, temperature: float | None, names: Names,
                 requests_per_minute: int | None = None) -> None:
        """
        Args:
            timeout: seconds for a vote with all its retries.
            names: of the settings, for messages.
        """
        self.name = f"llm:{api.model}"
        self.budget = Budget(requests_per_minute)
        self._api, self._timeout, self._names = api, timeout * (1 - _MARGIN), names
        self._optional: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        self._habits = ApiHabits(api.model, self._optional)
        self._client = client(api, timeout)

    @classmethod
    def of(cls, config: PrmJudgeConfig, environ: Mapping[str, str]) -> LlmJudge:
        """Make the configured judge.

        Raises:
            ConfigError: there is no key.
        """
        model = config.model or ""
        api = resolve_api(model, config.base_url, config.api_key_env, environ,
                          alternative="set components.prm_judge.judge: rules, which needs no model")
        return cls(api, config.vote_timeout, 0.0 if config.votes == 1 else _TEMPERATURE,
                   Names.of("components.prm_judge", model, config.api_key_env), config.requests_per_minute)

    async def admit(self, transition: turn_pb2.Transition) -> None:
        """Wait until the budget permits a vote."""
        if prompt.has_evidence(transition):
            await self.budget.take()

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        if not prompt.has_evidence(transition):
            return turn_pb2.Vote(score=0, rationale="nothing came after the answer")
        answer = parse(await self._ask(prompt.messages(transition)))
        return turn_pb2.Vote(score=answer.score, hint=answer.hint if answer.score <= 0 else "",
                             rationale=answer.rationale)

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        """Get the model's answer.

        Raises:
            VoteError: there is none; the text says why.
        """
        last: BaseException | None = None
        first = True  # its place in the budget is what `admit` waited for

        async def attempt() -> str:
            nonlocal first, last
            if not first:
                await self.budget.take()
            first = False
            try:
                return await self._complete(messages)
            except openai.OpenAIError as error:
                last = error
                raise

        try:
            async with asyncio.timeout(self._timeout):
                return await call(attempt, self._timeout)
        except TimeoutError:
            why = f"; the last try: {explain(last, self._api, self._names)}" if last else ""
            raise VoteError(f"{self._api.base_url} gave no answer within {self._timeout:.3g} s{why}",
                            outage=True) from None
        except openai.OpenAIError as error:
            raise VoteError(explain(error, self._api, self._names),
                            outage=not isinstance(error, openai.BadRequestError)) from None

    async def _complete(self, messages: list[dict[str, str]]) -> str:
        sent = self._habits.adapt(self._optional)
        try:
            reply = await self._client.chat.completions.create(
                model=self._api.model, messages=messages, **sent)  # type: ignore[arg-type]
        except openai.BadRequestError as error:
            if not self._habits.learn(error, sent):  # some models take no temperature
                raise
            return await self._complete(messages)
        return text_of(reply)
