"""chat: a conversation in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_rl.cli.app import app
from openclaw_rl.cli.terminal import err, out
from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.api.facade import PolicyClient


@app.command(epilog="Example: openclaw-rl chat; openclaw-rl chat 'What is a heron?'; echo 'What is a heron?' | "
             "openclaw-rl chat")
def chat(
    text: Annotated[list[str] | None, typer.Argument(help="Message to send; default: a conversation, or standard "
                                                          "input.", show_default=False)] = None,
    session: Annotated[str, typer.Option("--session", "-s", help="Session id.", show_default=False)] = "",
    url: Annotated[str | None, typer.Option("--url", help="http://HOST:PORT; default: the running mesh.",
                                            show_default=False)] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", help="Bearer key, if the mesh requires one.",
                                                envvar="OPENCLAW_RL_API_KEY", show_default=False)] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.", show_default=False)] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Maximum tokens of an answer.", min=1,
                                                   show_default=False)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0, max=2, show_default=False, help=(
        "Sampling temperature; default: the policy server's."))] = None,
) -> None:
    """Chat with the policy. An answer is judged by your next message; /up and /down rate it directly.

    A conversation shows how each answer is judged, what the next training step waits for, and when a new version
    answers; /why tells an answer's story, /compare asks again for the newest version's answer, /help lists all."""
    from openclaw_rl.api.facade import PolicyClient

    home = Home.default()
    client = PolicyClient(url, api_key=api_key or _configured_key(), system=system, home=home)
    client.session_id = session
    options = {key: value for key, value in (("max_tokens", max_tokens), ("temperature", temperature))
               if value is not None}
    if text:
        _say(client, " ".join(text), options)
    elif not sys.stdin.isatty():
        _say(client, sys.stdin.read().strip(), options)
    else:
        from openclaw_rl.cli.chat_session import converse

        converse(client, options, home if url is None else None)


def _configured_key() -> str | None:
    from openclaw_rl.runtime.running_config import running_config

    keys = running_config(Home.default()).components.policy_server.api_keys
    return keys[0] if keys else None


def _say(client: PolicyClient, text: str, options: dict[str, Any]) -> None:
    """Print one answer to standard output, and version and session to standard error."""
    if not text:
        raise typer.BadParameter("empty message; pass a text or pipe one in")
    for piece in client.stream(text, **options):
        out.file.write(piece)
        out.file.flush()
    out.file.write("\n")
    out.file.flush()
    reply = client.last
    if reply is not None:
        version = "" if reply.policy_version is None else f"version {reply.policy_version}, "
        err.print(f"[dim]({version}session {reply.session_id})[/]", soft_wrap=True, highlight=False)
