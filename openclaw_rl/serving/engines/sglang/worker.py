"""A worker: one SGLang server with its state, its responses and the update of its weights."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.serving.engines.interface import (
    EngineError,
    Finished,
    Pause,
    Sampling,
    Shaping,
    Token,
    WeightsError,
    WorkerInfo,
)
from openclaw_rl.serving.engines.sglang import request_tag
from openclaw_rl.serving.engines.sglang.client import CommandRefused, ConnectionLost, EngineClient
from openclaw_rl.serving.engines.sglang.process import ServerProcess
from openclaw_rl.serving.engines.sglang.transports import UPDATE_SECONDS, Transport
from openclaw_rl.serving.engines.sglang.version import parse, tag

logger = logging.getLogger(__name__)


class Worker:
    """A server. `process` is None when it was started elsewhere, or runs in process."""

    def __init__(self, index: int, client: EngineClient | None, process: ServerProcess | None = None) -> None:
        self.index = index
        self.client = client  #: None before the first start
        self.process = process
        self.state: Literal["starting", "serving", "out"] = "starting"
        self.detail = "it is being started"
        self.version = -1
        self.running = 0  #: requests in progress; owned by the pool
        self.updating = False
        self.reading: Path | None = None  #: folder that it loads at its start
        self.broken = False  #: an update failed: its weights are unknown and it stays paused
        self.failures = 0  #: consecutive failed recoveries
        self.tokens = 0  #: generated
        self._activations = 0

    @property
    def name(self) -> str:
        """Its name in logs and alarms."""
        address = self.client.address if self.client else ""
        return f"SGLang worker {self.index}" + (f" ({address})" if address else "")

    @property
    def accepting(self) -> bool:
        """See pool.PoolMember."""
        return self.state == "serving" and not self.updating

    @property
    def serving(self) -> bool:
        """See pool.PoolMember."""
        return self.state == "serving"

    @property
    def cache_key(self) -> str:
        """The key of SGLang's radix cache, which never matches prompts of different keys.

        Each activation has its own: older entries were computed with older weights, some with those of two versions,
        and a response must not use them unless it began before the activation. So has each forgotten session.
        """
        return f"{self.version}.{self._activations}"

    def clear_prefixes(self) -> None:
        """Match no older entry of SGLang's cache from now on."""
        self._activations += 1

    def info(self) -> WorkerInfo:
        """Its public state."""
        return WorkerInfo(self.index, self.state, self.version, self.running,
                          self.client.address if self.client else "", "" if self.state == "serving" else self.detail)

    async def generate(self, ids: Sequence[int], sampling: Sampling, most: int,
                       stop_ids: Sequence[int]) -> AsyncIterator[Token | Finished]:
        """Generate a response of at most `most` tokens.

        Raises:
            ConnectionLost: it broke off; the tokens so far are valid.
            EngineError: SGLang refused it, or its output is inconsistent.
        """
        assert self.client
        rid = uuid.uuid4().hex
        body = {
            "rid": rid, "input_ids": list(ids), "stream": True, "return_logprob": True, "logprob_start_len": -1,
            "token_ids_logprob": request_tag.ask(sampling.seed), "top_logprobs_num": sampling.top_logprobs,
            "extra_key": self.cache_key, "sampling_params": {
                "temperature": sampling.temperature, "top_p": sampling.top_p, "max_new_tokens": most,
                "stop_token_ids": list(stop_ids), "no_stop_trim": True, "skip_special_tokens": False,
                **(_shaping(sampling.shaping, most) if sampling.shaping else {})}}
        versions: list[int] = []
        ended = False
        try:
            async with aclosing(self.client.generate(body)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    meta = piece["meta_info"]
                    reason = meta.get("finish_reason")
                    if reason and reason.get("type") == "abort":
                        ended = True
                        raise self._aborted(reason)
                    for token in _tokens(piece, meta, len(versions), sampling.top_logprobs):
                        versions.append(token.version)
                        self.tokens += 1
                        yield token
                    if reason:
                        ended = True
                        _check_spans(meta, versions)
                        yield Finished("length" if reason.get("type") == "length" else "stop")
                        return
            raise ConnectionLost(f"{self.name} ended a response without a reason")
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError(f"{self.name} sent an unreadable response: {type(error).__name__} {error}") from error
        finally:
            if not ended:
                self.client.abort(rid)

    async def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Score tokens 1.. with one version. SGLang recomputes them, regardless of its cache.

        Args:
            top: likeliest tokens to report for each place.

        Raises:
            ConnectionLost: it broke off.
            EngineError: SGLang refused it.
        """
        assert self.client
        while True:
            rid, began = uuid.uuid4().hex, (self.version, self._activations)
            body = {"rid": rid, "input_ids": list(ids), "stream": True, "return_logprob": True, "logprob_start_len": 0,
                    "top_logprobs_num": top, "extra_key": self.cache_key,
                    "sampling_params": {"max_new_tokens": 0, "temperature": 1.0}}
            rows: list[Any] = []
            tops: list[Any] = []
            ended = False
            try:
                async with aclosing(self.client.generate(body)) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        meta = piece["meta_info"]
                        reason = meta.get("finish_reason")
                        if reason and reason.get("type") == "abort":
                            ended = True
                            raise self._aborted(reason)
                        rows += meta.get("input_token_logprobs") or []
                        tops += meta.get("input_top_logprobs") or []
                        ended = reason is not None
            finally:
                if not ended:
                    self.client.abort(rid)
            if (self.version, self._activations) != began or self.updating:
                continue  # a long text is computed in pieces, and the weights may have changed in between
            if [row[1] for row in rows] != list(ids):
                raise EngineError(f"{self.name} scored other tokens than requested")
            return [Token(row[1], float(row[0]), float(row[0]), self.version,
                          [(int(entry[1]), float(entry[0])) for entry in best or []])
                    for row, best in zip(rows[1:], tops[1:] or [()] * (len(rows) - 1), strict=True)]

    async def update(self, transport: Transport, load: Any, version: int) -> Pause:
        """Load a version while responses run: they pause, and continue with it.

        Raises:
            WeightsError, ConnectionLost: while `broken` is false the worker still has its old weights; otherwise they
                are unknown and it stays paused until a further update succeeds.
        """
        assert self.client
        client = self.client
        await client.command("/pause_generation", {"mode": "in_place"})
        started = time.perf_counter()
        steps = 1 if self.running else 0
        self.broken = True
        try:
            await transport.send(client, load)
            await client.command("/update_weight_version", {"new_version": tag(version), "abort_all_requests": False},
                               UPDATE_SECONDS)
            reported = (await client.command("/model_info")).get("weight_version")
        except CommandRefused as error:
            raise WeightsError(f"{self.name} refused version {version}: {error}") from error
        if reported != tag(version):
            raise WeightsError(f"{self.name} was given version {version} and reports {reported!r}")
        await client.command("/continue_generation", {"torch_empty_cache": False})
        if self.client is not client:  # another server has replaced the updated one
            raise ConnectionLost(f"{self.name} was restarted during the update")
        self.version, self._activations, self.broken = version, self._activations + 1, False
        return Pause((time.perf_counter() - started) * 1000, steps)

    async def resume(self) -> None:
        """Resume responses that may be paused.

        Raises:
            CommandRefused, ConnectionLost: the command failed.
        """
        assert self.client
        await self.client.command("/continue_generation", {"torch_empty_cache": False})

    def _aborted(self, reason: dict[str, Any]) -> Exception:
        """The error for an abort that was not requested here: SGLang's refusal, or somebody else's command."""
        message = str(reason.get("message") or "")
        code = reason.get("status_code")
        if isinstance(code, int) and 400 <= code < 500:
            return EngineError(f"{self.name} refused the request: {message[:300]}")
        return ConnectionLost(f"{self.name} aborted a response unasked: {message[:300]}")


def _shaping(shaping: Shaping, most: int) -> dict[str, Any]:
    """SGLang's parameters for `Shaping`; `most`: tokens of the response."""
    return {"frequency_penalty": shaping.frequency_penalty, "presence_penalty": shaping.presence_penalty,
            "repetition_penalty": shaping.repetition_penalty, "top_k": shaping.top_k or -1, "min_p": shaping.min_p,
            "min_new_tokens": min(shaping.min_tokens, most), "ignore_eos": shaping.ignore_eos,
            **({"logit_bias": {str(token): value for token, value in shaping.logit_bias.items()}}
               if shaping.logit_bias else {})}


def _tokens(piece: dict[str, Any], meta: dict[str, Any], known: int, top: int) -> list[Token]:
    """The new tokens of a piece. A server without --incremental-streaming-output repeats earlier ones."""
    ids = piece["output_ids"]
    marks, tops = meta["output_token_ids_logprobs"], meta.get("output_top_logprobs") or []
    if meta["completion_tokens"] == len(ids) and known:
        ids = ids[known:]
    count = len(ids)
    marks, tops = marks[len(marks) - count:], tops[len(tops) - count:] if top else []
    found = []
    for i, token in enumerate(ids):
        model, drawn, version = (entry[0] for entry in marks[i][:3])
        if version < 0:
            raise EngineError("somebody else changed SGLang's weights: it reports no version of this engine")
        found.append(Token(token, float(drawn), float(model), int(version),
                           [(int(entry[1]), float(entry[0])) for entry in tops[i]] if top else [],
                           0 if known or i else int(meta.get("cached_tokens") or 0)))
    return found


def _check_spans(meta: dict[str, Any], versions: Sequence[int]) -> None:
    """Compare the versions of the tokens with SGLang's own summary at the end.

    Raises:
        EngineError: they differ.
    """
    spans = meta.get("weight_versions")
    if spans is None:
        return
    summary = [parse(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    if summary != list(versions):
        raise EngineError(f"SGLang contradicts itself on the versions of a response: {spans} at its end, but "
                          f"{[(version, list(versions).count(version)) for version in sorted(set(versions))]}")
