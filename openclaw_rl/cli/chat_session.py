"""A conversation and its commands: /why, /compare, /up, /down, /new."""

from __future__ import annotations

import copy
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openclaw_rl.api.facade import PolicyClient, PolicyError, Reply
from openclaw_rl.cli.chat_screen import Screen
from openclaw_rl.cli.terminal import clipped
from openclaw_rl.cli.turns import SCORES
from openclaw_rl.rpc.errors import MeshError

if TYPE_CHECKING:
    from openclaw_rl.cli.chat_news import News
    from openclaw_rl.client.stories import TurnStory
    from openclaw_rl.runtime.home import Home

#: Characters of a question, an answer or a hint in a turn's story.
_LONGEST = 200
HELP = """\
/why [N]        how answer N came to be judged and trained on; default: the last one that was judged
/compare [N]    ask question N again and see both answers; default: the last one that an older version answered
/up [comment]   rate the last answer up
/down [comment] rate it down; a comment says what it should have been
/new            start a new session
/quit           exit"""
HINT = "What you say next is how an answer is judged. /help lists the commands."


class CommandError(Exception):
    """A command of the conversation can't be done; the text says why."""


@dataclass(frozen=True)
class Exchange:
    """A question, the messages before it, and its answer."""

    before: list[dict[str, Any]]
    question: str
    reply: Reply


def converse(client: PolicyClient, options: dict[str, Any], home: Home | None) -> None:
    """Talk until the user ends it.

    Args:
        options: fields of each request.
        home: of the mesh that answers, for news of it; None: unknown, the address was given.
    """
    screen = Screen()
    with ExitStack() as stack:
        news = None
        if home is not None:
            from openclaw_rl.cli.chat_news import News

            news = stack.enter_context(News(home, screen.note))
        conversation = Conversation(client, options, screen, home, news)
        screen.note(HINT)
        if home is None:
            screen.note("--url names the policy server only: judgements and new versions are not told")
        while True:
            try:
                line = screen.read()
            except EOFError:
                return
            try:
                if line == "/quit":
                    return
                if line.startswith("/"):
                    conversation.command(line)
                elif line:
                    conversation.say(line)
            except CommandError as error:
                screen.note(str(error))
            except (PolicyError, MeshError) as error:
                screen.note(f"error: {error}", "red")
            except KeyboardInterrupt:
                screen.note("(cut off)")


class Conversation:
    """What was said, and the commands on it."""

    def __init__(self, client: PolicyClient, options: dict[str, Any], screen: Screen, home: Home | None,
                 news: News | None) -> None:
        self._client, self._options, self._screen = client, options, screen
        self._home, self._news = home, news
        self._exchanges: list[Exchange] = []

    def say(self, text: str) -> None:
        """Say something and show the answer, with its number and version."""
        before, session = list(self._client.messages), self._client.session_id
        with self._screen.answer():
            for piece in self._client.stream(text, **self._options):
                self._screen.write(piece)
            self._screen.write("\n")
        assert self._client.last is not None
        reply = self._client.last
        self._exchanges.append(Exchange(before, text, reply))
        if self._news is not None:
            self._news.answered(len(self._exchanges), reply.turn_id)
        self._screen.note(answered(len(self._exchanges), reply, new_session=reply.session_id != session))

    def command(self, line: str) -> None:
        """Do what a line with a slash says.

        Raises:
            CommandError: it can't be done.
            PolicyError, MeshError: the mesh can't do it.
        """
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word in ("/up", "/down"):
            self._client.feedback(1 if word == "/up" else -1, rest)
            self._screen.note("noted")
        elif word == "/new":
            self._client.new_session()
            self._screen.note("new session")
        elif word == "/why":
            self._why(rest)
        elif word == "/compare":
            self._compare(rest)
        else:
            if word != "/help":
                self._screen.note(f"there is no {word}")
            self._screen.note(HELP)

    def _why(self, which: str) -> None:
        from openclaw_rl.client.stories import story

        if self._home is None:
            raise CommandError("/why asks the mesh of this home: start the conversation without --url")
        if which.startswith("turn_"):
            self._screen.note(told(story(self._home, which)))
            return
        # Before the first judgement: the last answer is judged by what comes next, the one before may have been.
        number = self._number(which) or (self._news and self._news.judged) or max(len(self._exchanges) - 1, 1)
        self._screen.note(f"answer {number}\n" + told(story(self._home, self._exchanges[number - 1].reply.turn_id)))

    def _compare(self, which: str) -> None:
        number = self._number(which)
        if not number:
            active = self._news.active if self._news is not None else None
            if active is None:
                active = self._exchanges[-1].reply.policy_version
            number = next((i for i in range(len(self._exchanges), 0, -1)
                           if self._exchanges[i - 1].reply.policy_version != active), 0)
            if not number:
                raise CommandError(f"version {active} gave all answers here and still answers: complain, and compare "
                                   "once a new version does")
        old = self._exchanges[number - 1]
        # Of a session of its own and a side turn: it is neither a repeated question nor trained on.
        again = copy.copy(self._client)
        again.messages, again.session_id = list(old.before), f"compare-{uuid.uuid4().hex}"
        self._screen.note(f"question {number}: {old.question}\nversion {_version(old.reply)} answered:")
        self._screen.write(f"{old.reply.text}\n")
        with self._screen.answer():
            reply = again.chat(old.question, **self._options, turn_type="side")
        self._screen.note(f"version {_version(reply)} answers:")
        self._screen.write(f"{reply.text}\n")

    def _number(self, which: str) -> int:
        """Number of the answer that is meant; 0 when none is named."""
        if not self._exchanges:
            raise CommandError("there is no answer yet")
        if not which:
            return 0
        if which.isascii() and which.isdecimal() and 1 <= int(which) <= len(self._exchanges):
            return int(which)
        raise CommandError(f"{which}: not the number of an answer here, which are 1 to {len(self._exchanges)}")


def answered(number: int, reply: Reply, new_session: bool) -> str:
    """Say by which version an answer is, and of which session when that is new."""
    return (f"(answer {number}, version {_version(reply)}" + (f", session {reply.session_id}" if new_session else "")
            + ")")


def _version(reply: Reply) -> str:
    return "unknown" if reply.policy_version is None else str(reply.policy_version)


def told(story: TurnStory) -> str:
    """Tell a turn in lines: question and answer, votes, judgement, hint, fate."""
    fate, judgement = story.fate, story.judgement
    lines = [("turn", f"{fate.turn}, version {fate.version}, {fate.turn_class}"),
             ("asked", clipped(fate.request_text, _LONGEST).plain),
             ("answered", clipped(fate.response_text, _LONGEST).plain)]
    for vote in judgement.votes if judgement is not None else ():
        lines.append(("vote", f"{vote.judge}: " + (f"failed: {vote.error}" if vote.error else "; ".join(
            filter(None, (SCORES.get(vote.score, str(vote.score)), vote.rationale))))))
    if judgement is not None and not judgement.failed:
        lines.append(("judged", SCORES.get(judgement.score, str(judgement.score))))
        if judgement.hint:
            lines.append(("hint", clipped(judgement.hint, _LONGEST).plain))
    what = f"trained version {fate.trained_version}" if fate.fate == "trained" else fate.fate.replace("_", " ")
    lines.append(("fate", f"{what}: {fate.reason}" if fate.reason else what))
    return "\n".join(f"  {name:<10}{text}" for name, text in lines)
