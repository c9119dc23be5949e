"""The four services and their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

from openclaw_rl.v1 import environment_pb2, judge_pb2, policy_pb2, trainer_pb2

PACKAGE = "openclaw_rl.v1"


@dataclass(frozen=True)
class Service:
    """One of the four.

    Attributes:
        name: "policy", "environment", "judge" or "trainer".
        component: name of its component, as ComponentStatus.name has it.
        file: what the contract's file describes.
        port: the contract's port.
        ring: method of its ring stream; "" for the policy server, where the ring begins.
        next: name of the service that its own ring stream goes to; the trainer's is the weight stream.
    """

    name: str
    component: str
    file: FileDescriptor
    port: int
    ring: str
    next: str

    @property
    def descriptor(self) -> ServiceDescriptor:
        return self.file.services_by_name[f"{self.name.capitalize()}Service"]

    @property
    def sender(self) -> str:
        """Component whose ring stream comes here, which nobody else may open; "" for the policy server."""
        return next((one.component for one in SERVICES.values() if self.ring and one.next == self.name), "")

    @property
    def full_name(self) -> str:
        """Such as "openclaw_rl.v1.JudgeService"."""
        return str(self.descriptor.full_name)

    def path(self, method: str) -> str:
        """Of an RPC of this service, as it goes over the wire: "/openclaw_rl.v1.JudgeService/Judge"."""
        return f"/{self.full_name}/{method}"


SERVICES = {service.name: service for service in (
    Service("policy", "policy_server", policy_pb2.DESCRIPTOR, 50051, "", "environment"),
    Service("environment", "env_server", environment_pb2.DESCRIPTOR, 50052, "RecordTurns", "judge"),
    Service("judge", "prm_judge", judge_pb2.DESCRIPTOR, 50053, "JudgeTransitions", "trainer"),
    Service("trainer", "trainer", trainer_pb2.DESCRIPTOR, 50054, "SubmitSamples", "policy"))}

ALL = tuple(SERVICES)
#: Those with an incoming ring stream.
RING = ("environment", "judge", "trainer")


def find(name: str) -> Service | None:
    """By the service's or the component's name: "judge", "prm_judge", "JudgeService", "openclaw_rl.v1.JudgeService"."""
    return next((service for service in SERVICES.values() if name.lower() in (
        service.name, service.component, service.descriptor.name.lower(), service.full_name.lower())), None)
