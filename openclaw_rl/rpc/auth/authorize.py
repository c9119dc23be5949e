"""Authorization of calls: by the role in a component's certificate, or by the scopes of a client's bearer key."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from openclaw_rl.rpc.errors import MeshError
from openclaw_rl.rpc.limits import Limiter
from openclaw_rl.runtime.home import COMPONENTS

if TYPE_CHECKING:
    from openclaw_rl.config import LimitsConfig
    from openclaw_rl.rpc.auth.certificates import Identity
    from openclaw_rl.rpc.auth.keys import Key, KeyRing, Scope

logger = logging.getLogger(__name__)

#: The bearer key of the call that runs, as shown, and its id; empty ones without a key.
caller: ContextVar[tuple[str, str]] = ContextVar("caller", default=("", ""))
#: The role in the certificate of the call that runs; empty without one.
caller_role: ContextVar[str] = ContextVar("caller_role", default="")

_POLICY, _ENV, _JUDGE, _TRAINER = COMPONENTS
_OPERATOR = "operator"
_ALL = (*COMPONENTS, _OPERATOR)


@dataclass(frozen=True)
class Rule:
    """Of one RPC.

    Attributes:
        roles: of the certificates that may call it.
        scope: of the bearer keys that may; None: no key does.
    """

    roles: frozenset[str]
    scope: Scope | None = None


def _rules(service: str, **rules: tuple[tuple[str, ...], Scope | None]) -> dict[str, Rule]:
    return {f"/openclaw_rl.v1.{service}/{rpc}": Rule(frozenset(roles), scope) for rpc, (roles, scope) in rules.items()}


def called_by(role: str) -> bool:
    """Whether the call that runs comes from a component of this role, as far as can be told: where nobody has to show a
    certificate or a key, everybody may be it."""
    return caller_role.get() == role or not (caller_role.get() or caller.get()[1])


#: Every RPC of the contract. What is not here is for nobody. What tells other users' words needs `admin` of a key.
TABLE: dict[str, Rule] = {
    **_rules(
        "PolicyService",
        Chat=((_ENV, _OPERATOR), "chat"), Generate=((_ENV, _TRAINER, _OPERATOR), "chat"),
        Score=((_ENV, _TRAINER, _OPERATOR), "chat"), SubmitFeedback=((_ENV, _OPERATOR), "chat"),
        SyncWeights=((_TRAINER,), None), FetchWeights=((_POLICY,), None),
        GetPolicy=(_ALL, "read"), WatchPolicy=(_ALL, "read"), ActivateVersion=((_TRAINER, _OPERATOR), "admin")),
    **_rules(
        "EnvironmentService",
        RecordTurns=((_POLICY,), None), Interact=((_OPERATOR,), "chat"), EndSession=((_OPERATOR,), "admin"),
        GetSession=((_TRAINER, _OPERATOR), "admin"), ListTurns=((_POLICY, _TRAINER, _OPERATOR), "admin"),
        Acquire=((_TRAINER, _OPERATOR), "admin"), Reset=((_TRAINER, _OPERATOR), "admin"),
        Step=((_TRAINER, _OPERATOR), "admin"), Evaluate=((_TRAINER, _OPERATOR), "admin"),
        Renew=((_TRAINER, _OPERATOR), "admin"), Release=((_TRAINER, _OPERATOR), "admin"),
        RunEpisodes=((_TRAINER, _OPERATOR), "admin"), ListEpisodes=((_TRAINER, _OPERATOR), "admin"),
        ListEnvironments=((_TRAINER, _OPERATOR), "read"), ListTasks=((_TRAINER, _OPERATOR), "admin"),
        ListLeases=((_TRAINER, _OPERATOR), "admin"), WatchLease=((_TRAINER, _OPERATOR), "admin")),
    **_rules(
        "JudgeService",
        JudgeTransitions=((_ENV,), None), Judge=((_ENV, _TRAINER, _OPERATOR), "chat"),
        WatchJudgements=((_TRAINER, _OPERATOR), "admin"), ListJudgements=((_TRAINER, _OPERATOR), "admin")),
    **_rules(
        "TrainerService",
        SubmitSamples=((_JUDGE,), None), FetchWeights=((_POLICY,), None),
        ListSamples=((_OPERATOR,), "admin"), GetVersion=((_POLICY, _OPERATOR), "read"),
        ListVersions=((_POLICY, _OPERATOR), "read"), WatchTraining=((_POLICY, _OPERATOR), "read"),
        TrainNow=((_OPERATOR,), "admin"), Pause=((_OPERATOR,), "admin"), Resume=((_OPERATOR,), "admin")),
    **_rules(
        "ComponentService",
        GetStatus=(_ALL, "read"), WatchStats=(_ALL, "read"), ReadLogs=((_OPERATOR,), "admin"),
        ListSpans=((_OPERATOR,), "admin"), Drain=((_OPERATOR,), "admin"), Forget=((_OPERATOR,), "admin")),
}

#: Services that are open to whoever has a certificate or a key: they tell who serves what, and how it is.
OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.v1alpha.ServerReflection/",
                 "/grpc.reflection.v1.ServerReflection/")


@dataclass(eq=False)
class Admission:
    """A call that was admitted."""

    who: str  #: for people: a role, or "the key NAME"
    key: Key | None = None
    task: asyncio.Task[Any] | None = None
    refused: MeshError | None = None  #: its key was revoked meanwhile


class Authorizer:
    """Lets a call in or refuses it.

    Args:
        identity: who this component is; certificates of other meshes are refused.
        keys: the bearer keys, for the port that takes clients without a certificate.
        limits: what one key may take of that port.
    """

    def __init__(self, identity: Callable[[], Identity], keys: KeyRing | None = None,
                 limits: LimitsConfig | None = None) -> None:
        self._identity, self._keys = identity, keys
        self._limiter: Limiter | None = None
        if keys is not None and limits is not None:
            self._limiter = Limiter(limits)
        self._admissions: set[Admission] = set()  # those with a key

    def enter(self, context: grpc.aio.ServicerContext, method: str) -> Admission:
        """Admit or refuse a call; `leave` ends it. Call it in the call's own task.

        Args:
            method: full name, such as /openclaw_rl.v1.PolicyService/Chat.

        Raises:
            MeshError: UNAUTHENTICATED, PERMISSION_DENIED, or RESOURCE_EXHAUSTED for a key that takes too much; the
                reason says why.
        """
        certificates = context.auth_context().get("x509_pem_cert")
        admission = (Admission(self._certified(certificates[0], method)) if certificates
                 else self._with_key(context, method))
        rule = TABLE.get(method)
        if rule is not None and rule.scope == "admin":
            logger.info("%s called by %s at %s", method.rpartition("/")[2], admission.who, context.peer())
        return admission

    def leave(self, admission: Admission) -> None:
        """The call has ended."""
        self._admissions.discard(admission)
        if admission.key is not None and self._limiter is not None:
            self._limiter.give_back(admission.key.id)

    def end_revoked(self) -> None:
        """End the running calls whose keys were revoked. Expiry is another thing: a call that began in time is
        finished, as at the HTTP entrypoint."""
        now = {key.id: key for key in self._keys.all()} if self._keys is not None else {}
        for admission in list(self._admissions):
            if admission.key is not None and admission.task is not None and admission.refused is None \
                    and ((key := now.get(admission.key.id)) is None or key.revoked is not None):
                admission.refused = _no_good("has been revoked")
                admission.task.cancel()

    def _certified(self, certificate: bytes, method: str) -> str:
        mine, peer = self._identity(), _identity_of(certificate)
        if peer is None or not peer.role or peer.mesh != mine.mesh:
            raise MeshError(grpc.StatusCode.PERMISSION_DENIED, "FOREIGN_MESH",
                            f"the certificate is not of a role in the mesh {mine.mesh or 'here'}: its URI is "
                            f"spiffe://{peer.mesh}/{peer.role}" if peer and peer.mesh else
                            "the certificate names no role of this mesh (URI spiffe://MESH/ROLE)")
        if method.startswith(OPEN_SERVICES):
            return peer.role
        rule = TABLE.get(method)
        if rule is None or peer.role not in rule.roles:
            allowed = ", ".join(sorted(rule.roles)) if rule else "nobody"
            raise MeshError(grpc.StatusCode.PERMISSION_DENIED, "WRONG_ROLE",
                            f"{method.rpartition('/')[2]} is for {allowed}; the certificate says {peer.role}",
                            metadata={"role": peer.role})
        caller_role.set(peer.role)  # a call has a task, and so a context, of its own
        return peer.role

    def _with_key(self, context: grpc.aio.ServicerContext, method: str) -> Admission:
        from openclaw_rl.rpc.auth.keys import shown_in

        shown = shown_in(_authorization(context))
        if not shown or self._keys is None:
            raise MeshError(grpc.StatusCode.UNAUTHENTICATED, "NO_CREDENTIALS",
                            "a bearer key is needed: send the metadata `authorization: Bearer KEY`; "
                            "`openclaw-rl keys add NAME` makes one")
        key = self._keys.match(shown)
        if key is None or key.dead():
            raise _no_good((key and key.dead()) or "is not one of this mesh")
        self._check_scope(key, method)
        if self._limiter is not None:
            self._limiter.take(key.id, f"the key {key.name}")
        admission = Admission(f"the key {key.name}", key, asyncio.current_task())
        self._admissions.add(admission)
        caller.set((shown, key.id))
        return admission

    def _check_scope(self, key: Key, method: str) -> None:
        if method.startswith(OPEN_SERVICES):
            return
        rule = TABLE.get(method)
        if rule is None or rule.scope is None:
            raise MeshError(grpc.StatusCode.PERMISSION_DENIED, "WRONG_SCOPE",
                            f"{method.rpartition('/')[2]} is for the mesh's own components; no key opens it")
        if not key.allows(rule.scope):
            raise MeshError(grpc.StatusCode.PERMISSION_DENIED, "WRONG_SCOPE",
                            f"{method.rpartition('/')[2]} needs the scope {rule.scope}; the key {key.name} has "
                            f"{', '.join(sorted(key.scopes))}", metadata={"scope": rule.scope})


def _no_good(why: str) -> MeshError:
    return MeshError(grpc.StatusCode.UNAUTHENTICATED, "UNKNOWN_KEY",
                     f"the bearer key {why}; `openclaw-rl keys` lists them by name")


def _authorization(context: grpc.aio.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key.lower() == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return ""


@functools.lru_cache(maxsize=256)
def _identity_of(certificate: bytes) -> Identity | None:
    """Who a certificate is for, which TLS has checked; None when it can't be read."""
    from openclaw_rl.rpc.auth.certificates import CertificateError, identity_of, parse

    try:
        return identity_of(parse(certificate, "the client's certificate"))
    except CertificateError:
        return None
