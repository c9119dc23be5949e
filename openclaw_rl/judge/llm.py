"""The `llm` judge: any OpenAI-compatible model."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_never, wait_random_exponential

from openclaw_rl.api_models import ApiModel, is_glm, resolve_api
from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.judge import prompt
from openclaw_rl.judge.answers import parse
from openclaw_rl.judge.base import VoteError
from openclaw_rl.v1 import turn_pb2

log = logging.getLogger(__name__)

#: The last try ends this much before the panel's time-out (a share of it), so that the vote can say what went wrong.
_MARGIN = 0.05
#: With several votes they must be able to differ.
_TEMPERATURE = 0.7
_backoff = wait_random_exponential(multiplier=0.5, max=8)


def make(config: PrmJudgeConfig) -> LlmJudge:
    """The judge of the entry point `llm`.

    Raises:
        ConfigError: no model is configured, or there is no key for it.
    """
    if not config.model:
        raise ConfigError("components.prm_judge.model: must be set for judge llm; or set judge: rules, which needs "
                          "no model")
    return LlmJudge.of(config, os.environ)


class LlmJudge:
    """Asks a model for each vote, again after a rate limit, a server's error or a broken connection while there is
    time."""

    def __init__(self, api: ApiModel, timeout: float, temperature: float | None, key_names: str) -> None:
        """`timeout`: seconds for a vote with all its tries. `key_names`: where the key comes from, for messages."""
        self.name = f"llm:{api.model}"
        self._api, self._timeout, self._key_names = api, timeout * (1 - _MARGIN), key_names
        self._optional: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        self._client = openai.AsyncOpenAI(api_key=api.api_key, base_url=api.base_url, timeout=timeout, max_retries=0)

    @classmethod
    def of(cls, config: PrmJudgeConfig, environ: Mapping[str, str]) -> LlmJudge:
        """The judge that the configuration means.

        Raises:
            ConfigError: there is no key.
        """
        model = config.model or ""
        api = resolve_api(model, config.base_url, config.api_key_env, environ,
                          alternative="set components.prm_judge.judge: rules, which needs no model")
        names = config.api_key_env or ("ZHIPUAI_API_KEY or OPENAI_API_KEY" if is_glm(model) else "OPENAI_API_KEY")
        return cls(api, config.vote_timeout, 0.0 if config.votes == 1 else _TEMPERATURE, names)

    async def vote(self, transition: turn_pb2.Transition) -> turn_pb2.Vote:
        if not prompt.has_evidence(transition):
            return turn_pb2.Vote(score=0, rationale="nothing came after the answer")
        answer = parse(await self._ask(prompt.messages(transition)))
        return turn_pb2.Vote(score=answer.score, hint=answer.hint if answer.score <= 0 else "",
                             rationale=answer.rationale)

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        """The model's answer.

        Raises:
            VoteError: there is none; the text says why.
        """
        retrying = AsyncRetrying(retry=retry_if_exception(_may_pass), wait=_wait, stop=stop_never, reraise=True)
        last: BaseException | None = None
        try:
            async with asyncio.timeout(self._timeout):
                async for attempt in retrying:
                    with attempt:
                        try:
                            return await self._complete(messages)
                        except openai.OpenAIError as error:
                            last = error
                            raise
        except TimeoutError:
            why = f"; the last try: {self._explain(last)}" if last else ""
            raise VoteError(f"{self._api.base_url} gave no answer within {self._timeout:.3g} s{why}",
                            outage=True) from None
        except openai.OpenAIError as error:
            raise VoteError(self._explain(error), outage=not isinstance(error, openai.BadRequestError)) from None
        raise AssertionError("unreachable: the loop returns or raises")

    async def _complete(self, messages: list[dict[str, str]]) -> str:
        try:
            reply = await self._client.chat.completions.create(
                model=self._api.model, messages=messages, **self._optional)  # type: ignore[arg-type, call-overload]
        except openai.BadRequestError as error:
            refused = [name for name in self._optional if name in str(error)]
            if not refused:
                raise
            # Some models take no temperature: leave it out from now on.
            log.info("%s takes no %s", self._api.model, refused[0])
            self._optional = {name: value for name, value in self._optional.items() if name not in refused}
            return await self._complete(messages)
        choices = reply.choices or []
        return (choices[0].message.content or "") if choices else ""

    def _explain(self, error: BaseException | None) -> str:
        """A sentence that says what is wrong and what to do; the key is not in it."""
        where, model = self._api.base_url, self._api.model
        detail = " ".join(str(getattr(error, "message", error)).split()).replace(self._api.api_key, "***")[:300]
        match error:
            case openai.APITimeoutError():
                return f"{where} does not answer in time"
            case openai.APIConnectionError():
                cause = f" ({error.__cause__})" if error.__cause__ else ""
                return f"{where} can't be reached{cause}; check components.prm_judge.base_url and the network"
            case openai.AuthenticationError() | openai.PermissionDeniedError():
                return f"{where} refuses the key in {self._key_names} ({error.status_code}): {detail}"
            case openai.NotFoundError() if "model" in detail.lower() or error.code == "model_not_found":
                return f"{where} has no model {model!r} (404): {detail}; check components.prm_judge.model"
            case openai.NotFoundError():
                return (f"{where} has no chat/completions (404): {detail}; check components.prm_judge.base_url (it "
                        "often ends with /v1) and components.prm_judge.model")
            case openai.RateLimitError():
                return f"{where} limits the rate, or the account has no credit left (429): {detail}"
            case openai.APIStatusError():
                return f"{where} answered {error.status_code}: {detail}"
        return f"{where}: {detail}"


def _may_pass(error: BaseException) -> bool:
    """Whether trying again soon can help."""
    if isinstance(error, openai.RateLimitError):
        return error.code not in ("insufficient_quota", "billing_hard_limit_reached")
    return isinstance(error, (openai.APIConnectionError, openai.InternalServerError, openai.ConflictError)) or (
        isinstance(error, openai.APIStatusError) and error.status_code == 408)


def _wait(state: RetryCallState) -> float:
    """Seconds before the next try: what the server asks for, else a growing pause."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, openai.APIStatusError):
        try:
            return max(0.0, float(error.response.headers.get("retry-after", "")))
        except ValueError:
            pass
    return _backoff(state)
