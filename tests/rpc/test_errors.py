"""The error catalogue."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

import openclaw_rl
from openclaw_rl.rpc import errors


class RpcError(grpc.RpcError):
    """As a call of grpc (not aio) raises it."""

    def __init__(self, code, details, trailing=()):
        self._parts = code, details, trailing

    def code(self):
        return self._parts[0]

    def details(self):
        return self._parts[1]

    def trailing_metadata(self):
        return self._parts[2]


def sent(error: errors.MeshError) -> errors.MeshError:
    return errors.from_rpc_error(RpcError(error.code, error.message, error.trailing_metadata()))


@pytest.mark.parametrize("error", [
    errors.invalid("temperature", 9.5, "from 0 to 2"),
    errors.invalid_many([("a", "too small"), ("b.c", "missing")]),
    errors.not_found("turn", "t1", "`openclaw-rl turns` lists them"),
    errors.unavailable("the engine is starting", 0.25),
    errors.exhausted("256 requests wait"),
    errors.failed_precondition("VERSION_UNKNOWN", "version 7 is not kept"),
    errors.unimplemented("Interact"),
    errors.internal("abc"),
], ids=lambda e: e.reason)
def test_every_kind_comes_back_as_it_was(error: Any) -> None:
    back = sent(error)
    for field in ("code", "reason", "message", "violations", "retry_after", "metadata", "retryable"):
        assert getattr(back, field) == getattr(error, field)
    assert errors.CATALOGUE[error.reason][0] is error.code


def test_texts_say_what_is_wrong_and_what_is_allowed() -> None:
    assert str(errors.invalid("n", 99, "from 1 to 16")) == "n: 99 is not allowed: must be from 1 to 16"
    assert len(str(errors.invalid("prompt", "x" * 10_000, "shorter"))) < 200
    assert str(errors.unimplemented("RunEpisodes")) == "RunEpisodes comes in a later release"
    assert "abc" in str(errors.internal("abc"))


def test_a_long_id_is_not_repeated() -> None:
    error = errors.not_found("session", "x" * 5000)
    assert len(error.message) < 120 and len(error.metadata["id"]) == 80


def test_only_what_may_succeed_later_is_retryable() -> None:
    assert errors.unavailable("x").retryable and errors.exhausted("x").retryable
    assert not errors.invalid("a", 1, "2").retryable and not errors.internal("i").retryable


def test_errors_of_other_servers_become_ours() -> None:
    plain = errors.from_rpc_error(RpcError(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    assert (plain.reason, plain.message, plain.retryable) == ("UNAVAILABLE", "connection refused", True)
    garbage = errors.from_rpc_error(RpcError(grpc.StatusCode.ABORTED, None, ((errors.STATUS_KEY, b"\xff\xff"),)))
    assert (garbage.reason, garbage.message) == ("ABORTED", "ABORTED")
    assert errors.from_rpc_error(grpc.RpcError()).code is grpc.StatusCode.UNKNOWN


def test_the_details_are_googles() -> None:
    status = errors.exhausted("later", 1.5).to_status()
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info) and (info.reason, info.domain) == ("RESOURCE_EXHAUSTED", "openclaw-rl")
    assert status.details[1].Unpack(retry) and retry.retry_delay.ToNanoseconds() == 1_500_000_000


def test_every_reason_in_the_code_is_in_the_catalogue() -> None:
    used = set()
    for path in Path(openclaw_rl.__file__).parent.rglob("*.py"):
        if "v1" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                place = {"failed_precondition": 0, "MeshError": 1}.get(name)
                if place is not None and len(node.args) > place and isinstance(node.args[place], ast.Constant):
                    used.add(node.args[place].value)
    assert used and used <= set(errors.CATALOGUE), f"add to CATALOGUE: {sorted(used - set(errors.CATALOGUE))}"
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", reason) for reason in errors.CATALOGUE)
