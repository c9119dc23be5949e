"""Which session a request without a session id belongs to."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

from openclaw_rl.sessions.fingerprint import (
    DIGEST_BYTES,
    Digests,
    both_digests,
    call_ids,
    is_instruction,
    own_text,
    text_of,
)
from openclaw_rl.v1 import turn_pb2

#: Entries that are kept; a turn makes two or three.
LIMIT = 40_000
#: Sessions that are kept of one key, the newest.
_MOST_CANDIDATES = 64
#: Seconds after which a conversation that nothing has continued counts as ended.
IDLE = 300.0
#: Characters of an answer from which on it is recognised by itself; a shorter one by what it answered, too.
LONG_ANSWER = 80
#: Bytes of an answer's end, and characters of a line of what it answered, that count.
_END, _LINE = 400, 200
#: Characters of a message that are searched for a line, and of an answer that is looked for by its text.
_SEARCHED, _LONGEST = 2_000, 200_000
#: Answers of a request that are looked for, and ids of its latest tool calls.
_MOST_ANSWERS, _MOST_CALLS = 16, 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A turn of a session, under one of the keys by which it is found."""

    key: bytes
    session: str
    turn: int  #: number of the remembered turn, ascending
    instructions: bytes  #: digest of its instructions; empty if that is not known


class ConversationIndex:
    """Remembers the turns that were answered, and finds the session that a request continues.

    A conversation is looked for among those of the same client only, by (the first that is found):

    - the ids of its tool calls, which models draw at random, and the longest prefix that ends in an answer of ours;
    - a request whose response was cut off, or empty: the client has less of it, or repeats the request;
    - its last answers where they stand, when the client has dropped, summarised or rewritten what is around them: a
      long answer by its end, a short one with the first or the last line of what it answered.

    Of several sessions counts the one with the request's instructions, then one that waits for its continuation (it is
    the session's last turn, nothing has continued it, and it is younger than `idle`), then the newest. Conversations
    that are alike in all of this can't be told apart, nor do they have to be: up to there they are the same.

    Any thread; the least recently used entries go beyond `limit`.
    """

    def __init__(self, limit: int = LIMIT, entries: Iterable[Entry] = (), idle: float = IDLE,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            entries: those of an earlier run, the least recently used first.
            idle: seconds.
        """
        self._limit, self._idle, self._clock = limit, idle, clock
        self._entries: OrderedDict[bytes, dict[str, Entry]] = OrderedDict()
        # By session: its last turn unless that is continued, and when it was.
        self._waiting: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._count = self._turn = 0
        self._unsaved: dict[tuple[bytes, str], Entry] = {}
        self._lock = threading.Lock()
        for entry in entries:
            self._add(entry)
            self._turn = max(self._turn, entry.turn)
            self._wait(entry.session, entry.turn)

    def __len__(self) -> int:
        return self._count

    def remember(
        self, client: str, session_id: str, messages: Sequence[turn_pb2.ChatMessage], response: turn_pb2.ChatMessage,
        digests: Digests | None = None, *, complete: bool = True, done: bool = False
    ) -> None:
        """Note that `client`'s request `messages` of `session_id` was answered with `response`.

        Args:
            digests: those of the messages, where they are known.
            complete: whether the client has got all of the response.
            done: whether it ends the session.
        """
        digests = digests or both_digests(messages)
        keys = list(_keys(client, digests, response, complete))
        with self._lock:
            self._turn += 1
            for key in keys:
                entry = Entry(key, session_id, self._turn, digests.instructions)
                self._unsaved[key, session_id] = entry
                self._add(entry)
            self._waiting.pop(session_id, None)
            if not done:
                self._wait(session_id, self._turn)

    def match(self, client: str, messages: Sequence[turn_pb2.ChatMessage],
              digests: Digests | None = None) -> str | None:
        """The session that `messages` continues, which then waits no longer; None when there is none. `digests`: those
        of the messages, where they are known."""
        digests = digests or both_digests(messages)
        with self._lock:
            found = (self._exact(client, digests) or self._cut_off(client, digests)
                     or self._rewritten(client, digests))
            if not found:
                return None
            best = max(found.values(), key=lambda entry: (
                entry.instructions == digests.instructions, self._waits(entry), entry.turn))
            if self._waiting.get(best.session, (0, 0.0))[0] == best.turn:
                del self._waiting[best.session]
        return best.session

    def forget(self, session_id: str) -> int:
        """Drop a session's entries; returns their number."""
        with self._lock:
            keys = [key for key, entries in self._entries.items() if session_id in entries]
            for key in keys:
                self._remove(key, session_id)
            self._waiting.pop(session_id, None)
        return len(keys)

    def unsaved(self) -> list[Entry]:
        """Entries that `saved` was not told of yet, oldest first."""
        with self._lock:
            return list(self._unsaved.values())

    def saved(self, entries: Sequence[Entry]) -> None:
        """These entries are kept by now."""
        with self._lock:
            for entry in entries:
                if self._unsaved.get((entry.key, entry.session)) is entry:
                    del self._unsaved[entry.key, entry.session]

    def _wait(self, session: str, turn: int) -> None:
        self._waiting[session] = turn, self._clock()
        self._waiting.move_to_end(session)
        if len(self._waiting) > self._limit:
            self._waiting.popitem(last=False)

    def _waits(self, entry: Entry) -> bool:
        turn, since = self._waiting.get(entry.session, (0, 0.0))
        return turn == entry.turn and self._clock() - since < self._idle

    def _look_up(self, key: bytes) -> Mapping[str, Entry]:
        if key not in self._entries:
            return {}
        self._entries.move_to_end(key)
        return self._entries[key]

    def _exact(self, client: str, digests: Digests) -> Mapping[str, Entry]:
        by_prefix: Mapping[str, Entry] = {}
        for message, digest in zip(reversed(digests.messages), reversed(digests.prefixes), strict=True):
            if message.role == "assistant" and (by_prefix := self._look_up(_key(b"c", client, digest))):
                break
        by_calls: dict[str, Entry] = {}
        for call in _latest_calls(digests.messages):
            by_calls |= self._look_up(_key(b"t", client, call.encode()))
        both = {session: entry for session, entry in by_prefix.items() if session in by_calls}
        # An id alone is believed where it is one session's: some makers' are no more than the function's name.
        return both or (by_calls if len(by_calls) == 1 else by_prefix or by_calls)

    def _cut_off(self, client: str, digests: Digests) -> Mapping[str, Entry]:
        last = len(digests.messages) - 1
        if last >= 0 and (repeated := {session: entry for session, entry in self._look_up(
                _key(b"q", client, digests.prefixes[last])).items() if self._waits(entry)}):
            return repeated
        for i in _answers(digests.messages):
            if i > 0 and (found := self._look_up(_key(b"q", client, digests.prefixes[i - 1]))):
                return found
        return {}

    def _rewritten(self, client: str, digests: Digests) -> Mapping[str, Entry]:
        """Sessions of the latest known answer, as far as earlier answers are theirs, too."""
        found: Mapping[str, Entry] = {}
        for i in _answers(digests.messages):
            here: dict[str, Entry] = {}
            for key in _answer_keys(client, digests.messages, i, digests.messages[i]):
                here |= self._look_up(key)
            both = {session: entry for session, entry in found.items() if session in here}
            found = both or found or here
        return found

    def _add(self, entry: Entry) -> None:
        candidates = self._entries.setdefault(entry.key, {})
        self._count += entry.session not in candidates
        candidates.pop(entry.session, None)
        candidates[entry.session] = entry
        self._entries.move_to_end(entry.key)
        if len(candidates) > _MOST_CANDIDATES:
            self._remove(entry.key, next(iter(candidates)))
        while self._count > self._limit:
            key, oldest = next(iter(self._entries.items()))
            self._remove(key, next(iter(oldest)))

    def _remove(self, key: bytes, session: str) -> None:
        del self._entries[key][session]
        self._count -= 1
        if not self._entries[key]:
            del self._entries[key]
        self._unsaved.pop((key, session), None)


def in_flight_key(client: str, tools: Iterable[turn_pb2.ToolDefinition], digests: Digests) -> bytes:
    """The same for a client's request and its repetition, and for no other."""
    calls = (call_ids(message) for message in digests.messages if message.tool_calls)
    return _key(b"r", client, b"".join([*digests.singles, b"t", *calls, *(tool.name.encode() for tool in tools)]))


def _keys(client: str, digests: Digests, response: turn_pb2.ChatMessage, complete: bool) -> Iterator[bytes]:
    """Keys of a turn."""
    if response.content or response.tool_calls:
        yield _key(b"c", client, digests.followed_by(response).prefixes[-1])
        for call in response.tool_calls[:_MOST_CALLS]:
            if call.id:
                yield _key(b"t", client, call.id.encode())
        yield from _answer_keys(client, digests.messages, len(digests.messages), response)
    if digests.prefixes and not (complete and (response.content or response.tool_calls)):
        yield _key(b"q", client, digests.prefixes[-1])


def _latest_calls(messages: Sequence[turn_pb2.ChatMessage]) -> list[str]:
    """Ids of the latest tool calls in a request: the results may be there without them."""
    found: list[str] = []
    for message in reversed(messages):
        if message.role == "tool" and message.tool_call_id:
            found.append(message.tool_call_id)
        elif message.tool_calls:
            found.extend(call.id for call in message.tool_calls if call.id)
        if found and message.role != "tool":
            break
    return list(dict.fromkeys(found))[:2 * _MOST_CALLS]


def _answers(messages: Sequence[turn_pb2.ChatMessage]) -> Iterator[int]:
    """Positions of the latest answers in a request that something follows, the last one first."""
    return islice((i for i in range(len(messages) - 2, -1, -1) if messages[i].role == "assistant"), _MOST_ANSWERS)


def _answer_keys(client: str, messages: Sequence[turn_pb2.ChatMessage], place: int,
                 answer: turn_pb2.ChatMessage) -> Iterator[bytes]:
    """Keys of an answer by its text, and by what it answered: the message in front of `place`."""
    text = own_text(answer) if len(answer.content) <= _LONGEST else b""
    if len(text) >= LONG_ANSWER:
        yield _key(b"a", client, text[-_END:])
    elif text:
        asked = next((messages[i] for i in range(place - 1, -1, -1) if not is_instruction(messages[i])), None)
        if asked is None or asked.role == "assistant":
            return
        words = text_of(asked)
        begin, end = ([line.strip() for line in part.splitlines() if _says_something(line)]
                      for part in (words[:_SEARCHED], words[-_SEARCHED:]))
        for line in dict.fromkeys(begin[:1] + end[-1:]):
            yield _key(b"y", client, line[-_LINE:].encode() + b"\0" + text)


def _says_something(line: str) -> bool:
    """Whether a line is more than white space and a tag of those that frameworks put around their notes."""
    line = line.strip()
    return bool(line) and not (line.startswith("<") and line.endswith(">") and " " not in line)


def _key(kind: bytes, client: str, digest: bytes) -> bytes:
    return blake2b(kind + client.encode() + b"\0" + digest, digest_size=DIGEST_BYTES).digest()
