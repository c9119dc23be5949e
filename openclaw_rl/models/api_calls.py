"""Calls of OpenAI-compatible APIs: retries, rate limits and error messages.

Used by the policy, the judge `llm` and the playbook's writer. No message made here contains the key.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_before_delay, wait_random_exponential

from openclaw_rl.config import ConfigError
from openclaw_rl.models.api_endpoints import ApiModel, is_glm
from openclaw_rl.runtime import proxies
from openclaw_rl.runtime.redact import Redactor

#: A minute, in seconds.
_MINUTE = 60.0
#: Timeout of a connection, seconds.
_CONNECT = 10.0
_backoff = wait_random_exponential(multiplier=0.5, max=8)
#: Codes of a 429 that waiting does not cure.
_NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached")

#: The message for a response of another kind, such as a web page.
NO_COMPLETION = "the answer is no chat completion; check base_url (it often ends with /v1)"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of an API's settings, for messages."""

    model: str  #: such as "components.prm_judge.model"
    base_url: str  #: such as "components.prm_judge.base_url"
    key: str  #: the variables that may hold the key

    @classmethod
    def of(cls, section: str, model: str, api_key_env: str | None) -> Names:
        """The names in a section of the configuration."""
        key = api_key_env or ("ZHIPUAI_API_KEY or OPENAI_API_KEY" if is_glm(model) else "OPENAI_API_KEY")
        return cls(f"{section}.model", f"{section}.base_url", key)


class Budget:
    """A limit of requests in any 60 seconds; further callers wait, first come, first served.

    Args:
        per_minute: requests; None: unlimited.
        clock: monotonic seconds.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.waiting = 0  #: callers waiting in `take`
        self._clock = clock
        self._places: deque[float] = deque(maxlen=per_minute)  # times of the newest requests, past or scheduled

    @property
    def wait(self) -> float:
        """Seconds until a new request may be made."""
        if self.per_minute is None or len(self._places) < self.per_minute:
            return 0.0
        return max(0.0, self._places[0] + _MINUTE - self._clock())

    async def take(self) -> None:
        """Wait until a request may be made. It counts even if the caller is cancelled meanwhile."""
        if self.per_minute is None:
            return
        seconds = self.wait
        self._places.append(self._clock() + seconds)
        if seconds:
            self.waiting += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.waiting -= 1


async def call(work: Callable[[], Awaitable[_T]], seconds: float) -> _T:
    """Await `work`, with retries after rate limits, time-outs, broken connections and server errors.

    A wait that would exceed `seconds` in total is not begun.

    Raises:
        openai.OpenAIError, httpx.TransportError: from the last attempt.
    """
    retrying = AsyncRetrying(retry=retry_if_exception(may_pass), wait=_wait, stop=stop_before_delay(seconds),
                             reraise=True)
    async for attempt in retrying:
        with attempt:
            return await work()
    raise AssertionError("unreachable: the loop returns or raises")


def may_pass(error: BaseException) -> bool:
    """Whether a retry can help."""
    if isinstance(error, openai.RateLimitError):
        return error.code not in _NO_CREDIT
    return isinstance(error, (openai.APIConnectionError, openai.InternalServerError, openai.ConflictError,
                              httpx.TransportError)) or (
        isinstance(error, openai.APIStatusError) and error.status_code == 408)


def retry_after(error: BaseException | None) -> float | None:
    """Parse the header Retry-After, in seconds or as an HTTP date (RFC 9110, 10.2.3); None without one."""
    if not isinstance(error, openai.APIStatusError):
        return None
    text = error.response.headers.get("retry-after", "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp()
    return max(0.0, seconds) if seconds < float("inf") else None


def explain(error: BaseException | None, api: ApiModel, names: Names) -> str:
    """Describe an error and its remedy, without the key."""
    where = api.base_url
    detail = redact(" ".join(str(getattr(error, "message", error)).split()), api)[:300]
    match error:
        case openai.APITimeoutError():
            return f"{where} does not answer in time"
        case openai.APIConnectionError() | httpx.TransportError():
            cause = redact(f" ({error.__cause__})", api) if error.__cause__ else ""
            proxy = proxies.proxy_of(where)
            through = f" through {_through(proxy)}" if proxy else ""
            return f"{where} can't be reached{through}{cause}; check {names.base_url} and the network"
        case openai.AuthenticationError() | openai.PermissionDeniedError():
            return f"{where} refuses the key in {names.key} ({error.status_code}): {detail}"
        case openai.NotFoundError() | openai.BadRequestError() if names_model(error):
            return f"{where} has no model {api.model!r} ({error.status_code}): {detail}; check {names.model}"
        case openai.NotFoundError():
            return (f"{where} has no chat/completions (404): {detail}; check {names.base_url} (it often ends with /v1) "
                    f"and {names.model}")
        case openai.RateLimitError():
            return f"{where} limits the rate, or the account has no credit left (429): {detail}"
        case openai.APIStatusError():
            return f"{where} answered {error.status_code}: {detail}"
    return f"{where}: {detail}"


def _through(proxy: str | None) -> str:
    return f"the proxy {proxies.without_password(proxy or '')} that the environment names"


def redact(text: str, api: ApiModel) -> str:
    """Remove the API's key from a text: servers often quote the key that they refuse. One as short as a word (local
    servers take any) is no secret, and its letters stay."""
    return Redactor([api.api_key]).text(text)


def client(api: ApiModel, timeout: float) -> openai.AsyncOpenAI:
    """Make a client of an API, without retries of its own; see `call`.

    Args:
        timeout: of a response, seconds.

    Raises:
        ConfigError: the environment names a proxy for it that can't be used.
    """
    limits = httpx.Timeout(timeout, connect=min(timeout, _CONNECT))
    proxy = proxies.proxy_of(api.base_url)
    try:
        http = openai.DefaultAsyncHttpxClient(verify=_authorities(), timeout=limits, proxy=proxy, trust_env=False,
                                              event_hooks={"response": [_check_redirect]})
    except (ValueError, ImportError) as error:
        raise ConfigError(f"requests to {api.base_url} would go through {_through(proxy)}, which can't be used: "
                          f"{error}; set the variable right, or put the host into NO_PROXY") from error
    return openai.AsyncOpenAI(api_key=api.api_key, base_url=api.base_url, timeout=limits, max_retries=0,
                              http_client=http)


async def _check_redirect(response: httpx.Response) -> None:
    """Follow an API to no other server, but to HTTPS on its own host: it could name one that only this machine reaches.

    Raises:
        httpx.RemoteProtocolError: it sends elsewhere.
    """
    if not response.has_redirect_location:
        return
    here = response.request.url
    there = here.join(response.headers["location"])
    if there.host != here.host or (there.port != here.port and there.scheme != "https"):
        raise httpx.RemoteProtocolError(f"it redirects to {str(there)[:100]}, which is another server and not followed",
                                        request=response.request)


def text_of(reply: Any) -> str:
    """The text of a response; empty when it has none.

    Args:
        reply: from the openai client, which returns anything but JSON as a string.

    Raises:
        openai.OpenAIError: it is not a chat completion.
    """
    choices = getattr(reply, "choices", None)
    if not isinstance(choices, list):
        raise openai.OpenAIError(NO_COMPLETION)
    return (choices[0].message.content or "") if choices else ""


async def probe(connection: openai.AsyncOpenAI, api: ApiModel, names: Names, seconds: float = 60.0) -> str:
    """Probe an API with one tiny request.

    Returns:
        What is wrong, distinguishing a wrong key, model or URL; empty when it works.
    """
    optional: Mapping[str, Any] = {"max_tokens": 1}

    async def ask() -> None:
        nonlocal optional
        try:
            text_of(await connection.chat.completions.create(
                model=api.model, messages=[{"role": "user", "content": "Say yes."}], **optional))
        except openai.BadRequestError as error:
            if "max_tokens" not in str(error) or not optional:
                raise
            optional = {}  # some models have another name for it
            await ask()

    try:
        async with asyncio.timeout(seconds):
            await call(ask, seconds / 2)
        return ""
    except TimeoutError:
        return f"{api.base_url} gave no answer within {seconds:.0f} s"
    except (openai.OpenAIError, httpx.TransportError, ValueError) as error:
        return explain(error, api, names)


@functools.cache
def _authorities() -> ssl.SSLContext:
    """The trusted certificate authorities, loaded once: it takes 0.1 s."""
    return httpx.create_ssl_context()


def names_model(error: openai.APIStatusError) -> bool:
    """Whether an error is about the model's name. Some APIs respond with 400 to an unknown one."""
    if error.code in ("model_not_found", "1211"):  # OpenAI's and GLM's
        return True
    message = error.message.lower()
    if error.status_code == 404:
        return "model" in message
    return "model" in message and any(word in message for word in ("not exist", "not found", "unknown", "no such"))


def _wait(state: RetryCallState) -> float:
    """Seconds before the next attempt: as the server asks, otherwise exponential back-off."""
    seconds = retry_after(state.outcome.exception() if state.outcome else None)
    # Also for "0": immediate retries would hammer the server for the whole time.
    return _backoff(state) if seconds is None else max(seconds, min(0.5 * state.attempt_number, 8.0))
