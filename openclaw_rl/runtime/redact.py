"""Secrets blotted out of what leaves a process in words: logs, errors, status, spans.

Two ways: the secrets that this process knows (values of variables such as OPENAI_API_KEY, the keys of the
configuration) wherever they stand, and what has the form of one (bearer keys, Authorization headers, private keys).
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from openclaw_rl.runtime import runtime

if TYPE_CHECKING:
    from openclaw_rl.config import Config

#: What stands in a secret's place.
BLOT = "[redacted]"

#: Variables whose values are secrets, by their names; a path, or a word as short as "false", is none.
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_NO_SECRET_NAME = re.compile(r"(_FILE|_PATH|_DIR|_NAME|_ENV|_URL|_PARALLELISM)$", re.IGNORECASE)
_SHORTEST = 8

#: What stands between a name and its value, in headers, YAML, JSON (quoted once more, too) and Python's tuples.
_BETWEEN = r"""(?:\\?["'])?\s*[:=]\s*(?:b?\\?["'])?|\\?["']\s*,\s*b?\\?["']"""
#: A word; in quotes all that is between them.
_VALUE = r"""(?:(?<=["'])[^"'\n\\]{6,400}(?=\\?["'])|[^\s"',;&\\)}\]]{6,})"""

_SUBSTITUTIONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), BLOT),
    (re.compile(rf"(?i)\b((?:proxy-)?authorization)({_BETWEEN})((?:bearer|basic)\s+|(?!(?:bearer|basic)\s))"
                rf"{_VALUE}"), rf"\1\2\3{BLOT}"),
    # A short one, too, where there is no doubt what it is; KEY stands for one in texts of ours.
    (re.compile(rf"""(?i)\b((?:proxy-)?authorization)({_BETWEEN})((?:bearer|basic)\s+)(?!\$|(?-i:KEY\b)|\[redacted)"""
                r"""[^\s"',;&\\)}\]`]+"""), rf"\1\2\3{BLOT}"),
    # Such words are followed by other words, too; but those have no digits in them, and are short.
    (re.compile(r"(?i)\b(bearer|basic)(\s+)(?=\S*[0-9=+]|\S{20})[A-Za-z0-9._~+/=-]{8,}"), rf"\1\2{BLOT}"),
    (re.compile(rf"(?i)\b(x-api-key|api[ _-]?key|password|passwd|secret)({_BETWEEN}){_VALUE}"), rf"\1\2{BLOT}"),
    (re.compile(rf"(?i)(--(?:[a-z]{{1,12}}-){{0,3}}(?:api-key|token|password|passwd|secret)\s+)(?!-){_VALUE}"),
     rf"\1{BLOT}"),
    (re.compile(rf"""(?i)\b((?:(?:access|auth|refresh|id|api|session|hf|github)[_-]?)?token=["']?){_VALUE}"""),
     rf"\1{BLOT}"),
    # Keys by the marks that their makers gave them: ours, OpenAI's and others', Hugging Face's, GitHub's, AWS's, JWTs.
    (re.compile(r"\b(?:ocl_[\w-]{20,}|sk-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16}"
                r")"), BLOT),
    # With no beginning inside of a word: a long text of many of them would take time without end.
    (re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"), BLOT),
    (re.compile(r"(\w://)[^/\s:@]*:[^/\s@]+@"), rf"\1{BLOT}@"),
)
#: One of these is in each text that a substitution could change: most texts have none, and are done.
_SIGN = re.compile(r"(?i)PRIVATE KEY|bearer|basic|authorization|api[ _-]?key|passw|secret|ocl_|sk-|hf_|gh[pousr]_|AKIA|"
                   r"eyJ|token[=\s]|://[^/\s]*@")
#: A part of each of those, in lower case: looking for these takes a tenth of the expression's time.
_SIGN_PARTS = ("private key", "bearer", "basic", "authorization", "api", "passw", "secret", "ocl_", "sk-", "hf_", "gh",
               "akia", "eyj", "token", "://")


class Redactor:
    """Blots secrets out.

    Args:
        secrets: known ones; those that are shorter than 8 characters are left, since they might be words.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Know more secrets."""
        self._secrets |= {secret.strip() for secret in secrets if len(secret.strip()) >= _SHORTEST}
        longest_first = sorted(self._secrets, key=lambda secret: (-len(secret), secret))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(BLOT, text)
        if _may_have_form(text) and _SIGN.search(text):
            for pattern, replacement in _SUBSTITUTIONS:
                text = pattern.sub(replacement, text)
        return text

    def message(self, message: Message) -> None:
        """Blot secrets out of all texts of a protobuf message, in place; the keys of maps are left."""
        for field, value in message.ListFields():
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for key in value if field.message_type.fields_by_name["value"].type == field.TYPE_STRING else ():
                    value[key] = self.text(value[key])
            elif field.type == field.TYPE_MESSAGE:
                for part in value if field.is_repeated else (value,):
                    self.message(part)
            elif field.type == field.TYPE_STRING and field.is_repeated:
                value[:] = [self.text(part) for part in value]
            elif field.type == field.TYPE_STRING:
                setattr(message, field.name, self.text(value))

    def value(self, value: Any) -> Any:
        """A text, or a sequence of texts, without secrets; anything else as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple | list):
            return type(value)(self.value(part) for part in value)
        return value


def _may_have_form(text: str) -> bool:
    """Whether `_SIGN` might match. Beyond ASCII, letters of other scripts match in any case, too."""
    if not text.isascii():
        return True
    low = text.lower()
    return any(part in low for part in _SIGN_PARTS)


def environment_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Values of the variables that hold secrets, by their names."""
    return [secret for name, value in environ.items()
            if _SECRET_NAME.search(name) and not _NO_SECRET_NAME.search(name)
            for secret in value.split(",") if not secret.strip().startswith(("/", "./", "~"))]


def config_secrets(config: Config, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The keys that a configuration has, or names the variables of."""
    policy, judge = config.components.policy_server, config.components.prm_judge
    names = (policy.api_key_env, policy.sglang.api_key_env, judge.api_key_env,
             config.components.trainer.playbook.api_key_env)
    return [*policy.api_keys, *(environ.get(name, "") for name in names if name)]


def of_component(config: Config) -> Redactor:
    """A redactor that knows the secrets of the environment and of a configuration."""
    return Redactor([*environment_secrets(), *config_secrets(config)])


_environment = Redactor(environment_secrets())


def current() -> Redactor:
    """The redactor of the current component; outside, one that knows the secrets in environment variables."""
    return runtime.current().redactor or _environment


def text(text: str) -> str:
    """A text without the secrets of the current component."""
    return current().text(text)


class Formatter(logging.Formatter):
    """Formats a record of a log, its traceback included, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return current().text(super().format(record))


def tell_faults_by_log() -> None:
    """Let what ends the process or a thread unexpectedly go through the log too, not to stderr as it is."""
    log = logging.getLogger("openclaw_rl")

    def process_ends(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.critical("ended by a fault", exc_info=(kind, error, trace))

    def thread_ends(args: threading.ExceptHookArgs) -> None:
        log.error("a thread ended by a fault", exc_info=args.exc_value)

    sys.excepthook, threading.excepthook = process_ends, thread_ends
