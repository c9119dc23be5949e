"""Checks of the OpenAI entrypoint, if the status names one."""

from __future__ import annotations

from typing import Any

import httpx

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Need, check
from openclaw_rl.conformance.policy_calls import ANSWER, state
from openclaw_rl.conformance.policy_turns import ARRIVES
from openclaw_rl.runtime.json import parse_json

_POLICY = ("policy",)
_MESSAGES = [{"role": "user", "content": "Say hello."}]


async def _door(kit: Context) -> httpx.AsyncClient:
    """A client of the door."""
    address = (await kit.status()).http_address
    if not address:
        kit.skip("the server has no HTTP door (GetStatus.http_address is empty)")
    # The door's certificate is looked at elsewhere; what it says is looked at here.
    return httpx.AsyncClient(base_url=address, timeout=ANSWER, trust_env=False, verify=False)


async def _ask(kit: Context, client: httpx.AsyncClient, headers: dict[str, str] | None = None, **body: Any
               ) -> httpx.Response:
    # Never trained on, should this be a mesh that lives.
    ours = {"X-Session-Id": kit.session(), "X-Turn-Type": "side"} | (headers or {})
    response = await client.post("/v1/chat/completions", headers=ours, json={
        "model": "default", "messages": _MESSAGES, "max_tokens": 12, "temperature": 0, **body})
    _needs_key(kit, response)
    return response


def _needs_key(kit: Context, response: httpx.Response) -> None:
    if response.status_code in (401, 403):
        kit.skip("the HTTP door needs a key, and the kit has none for it")


@check("policy.http.chat", "The OpenAI entrypoint answers a chat as OpenAI's API does, with turn and version in "
                           "headers.",
       services=_POLICY, after=["policy.chat"], seconds=2 * ANSWER, where="the design: policy server, HTTP")
async def chat(kit: Context) -> None:
    async with await _door(kit) as client:
        model = (await state(kit)).model
        response = await _ask(kit, client, model=model)
        kit.expect(response.status_code == 200, f"a chat was answered {response.status_code}: {response.text[:120]}")
        body = _json(kit, response, "the answer to a chat")
        try:
            choice, kind, usage = body["choices"][0], body["object"], body["usage"]
            message, reason = choice["message"], choice["finish_reason"]
            fine = isinstance(message["content"], str) and message["role"] == "assistant" and isinstance(reason, str)
        except (KeyError, IndexError, TypeError):
            kit.fail(f"the answer to a chat is no chat.completion: {response.text[:160]}")
        kit.expect(fine and kind == "chat.completion", f"the answer to a chat is no chat.completion: "
                   f"{response.text[:160]}")
        kit.expect(isinstance(usage, dict) and "total_tokens" in usage, "the answer to a chat has no usage")
        for header in ("x-openclaw-turn-id", "x-openclaw-policy-version"):
            kit.expect(response.headers.get(header), f"the answer to a chat has no header {header}")
        kit.expect(response.headers["x-openclaw-policy-version"] == str((await state(kit)).active_version),
                   f"the header says version {response.headers['x-openclaw-policy-version']}; another one is active")


@check("policy.http.stream", "A streamed chat uses OpenAI's event format and ends with [DONE].", services=_POLICY,
       after=["policy.http.chat"], seconds=ANSWER, where="the design: policy server, HTTP")
async def streamed(kit: Context) -> None:
    async with await _door(kit) as client:
        response = await _ask(kit, client, stream=True)
        kit.expect(response.status_code == 200 and response.headers.get("content-type", "").startswith(
            "text/event-stream"), f"a streamed chat was answered {response.status_code}, "
            f"{response.headers.get('content-type')!r}")
        events = [line.removeprefix("data:").strip() for line in response.text.splitlines() if line.startswith("data:")]
        kit.expect(events and events[-1] == "[DONE]", "a streamed chat does not end with `data: [DONE]`")
        text, reasons = "", []
        for event in events[:-1]:
            try:
                for choice in parse_json(event)["choices"]:
                    text += choice["delta"].get("content") or ""
                    reasons.append(choice.get("finish_reason"))
            except (ValueError, KeyError, TypeError, AttributeError):
                kit.fail(f"an event of a streamed chat is no chat.completion.chunk: {event[:120]}")
        kit.expect([reason for reason in reasons if reason], "no event of a streamed chat has a finish_reason")
        kit.expect(text, "the events of a streamed chat have no text")


@check("policy.http.models", "The OpenAI entrypoint lists its model.", services=_POLICY,
       where="the design: policy server, HTTP")
async def models(kit: Context) -> None:
    async with await _door(kit) as client:
        response = await client.get("/v1/models")
        _needs_key(kit, response)
        kit.expect(response.status_code == 200, f"/v1/models was answered {response.status_code}")
        body, model = _json(kit, response, "/v1/models"), (await state(kit)).model
        names = [one.get("id") for one in body.get("data", []) if isinstance(one, dict)]
        kit.expect(model in names, f"/v1/models lists {names[:5]}; the model is {model!r}")
        kit.expect((await client.get("/healthz")).status_code == 200, "/healthz is not answered 200")


@check("policy.http.errors", "The OpenAI entrypoint rejects invalid input with 400 and OpenAI's error body, which "
                             "names the field.",
       services=_POLICY, seconds=ANSWER, where="the design: policy server, HTTP")
async def errors(kit: Context) -> None:
    async with await _door(kit) as client:
        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("without messages", "messages", {"messages": []}),
            ("whose messages are text", "messages", {"messages": "Hello."}),
            ("with temperature -1", "temperature", {"temperature": -1})]
        for what, field, fields in cases:
            response = await _ask(kit, client, **fields)
            kit.expect(response.status_code == 400, f"a chat {what} was answered {response.status_code}, not 400")
            error = _json(kit, response, f"the refusal of a chat {what}").get("error")
            error = error if isinstance(error, dict) else {}
            kit.expect(error.get("message") and error.get("type"),
                       f"a chat {what} was refused without OpenAI's error body: {response.text[:120]}")
            kit.expect(field in str(error.get("param")), f"a chat {what} was refused with param "
                       f"{error.get('param')!r}, not {field!r}")
        broken = await client.post("/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"})
        kit.expect(broken.status_code == 400, f"a body that is no JSON was answered {broken.status_code}, not 400")


@check("policy.http.turns", "A chat over HTTP is recorded under the session of X-Session-Id and the turn id of its "
       "header.", services=_POLICY, needs=(Need.LISTEN,), after=["policy.http.chat", "policy.turns"],
       seconds=2 * ANSWER, where="the design: environment server, sessions")
async def turns(kit: Context) -> None:
    assert kit.listener is not None
    session = kit.session()
    async with await _door(kit) as client:
        response = await _ask(kit, client, {"X-Session-Id": session, "X-Turn-Type": "main"})
        turn_id = response.headers.get("x-openclaw-turn-id", "")
        await kit.listener.wait([turn_id], ARRIVES, "turns of the HTTP door")
        turn = kit.listener.got(turn_id)[0].message.turn
        kit.expect(turn.session_id == session, f"the turn of a chat with X-Session-Id {session} has the session "
                   f"{turn.session_id!r}")
        kit.expect(turn.declared_type == "main", f"the turn of a chat with X-Turn-Type main has the declared_type "
                   f"{turn.declared_type!r}")


def _json(kit: Context, response: httpx.Response, what: str) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        kit.fail(f"{what} is no JSON: {response.text[:120]!r}")
    kit.expect(isinstance(body, dict), f"{what} is no JSON object: {response.text[:120]!r}")
    return dict(body)
