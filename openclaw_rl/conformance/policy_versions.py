"""GetPolicy, WatchPolicy and ActivateVersion, as far as nothing changes by them; what changes is in weights_*."""

from __future__ import annotations

import re

import grpc

from openclaw_rl.conformance.context import Context, listed
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.policy_calls import first_event, policy, state
from openclaw_rl.conformance.refusal import refusal
from openclaw_rl.conformance.weights_home import fetch, look_at_fetched
from openclaw_rl.v1 import policy_pb2 as pb

_POLICY = ("policy",)


@check("policy.state", "GetPolicy consistently reports the active version, kept versions with their manifests, model "
                       "and engine.", services=_POLICY, where="policy.proto: PolicyState")
async def fits(kit: Context) -> None:
    answer = await policy(kit)
    now, kept = answer.state, list(answer.state.kept_versions)
    kit.expect(now.model and now.engine, f"GetPolicy has {'no model' if not now.model else 'no engine'}")
    kit.expect(now.active_version in kept, f"the active version {now.active_version} is not among those kept "
               f"({listed(kept, 10)})")
    kit.expect(kept == sorted({*kept}), f"kept_versions are not ascending: {listed(kept, 10)}")
    taken = list(now.withdrawn_versions)
    kit.expect(taken == sorted({*taken}), f"withdrawn_versions are not ascending: {listed(taken, 10)}")
    kit.expect(now.highest_version >= now.active_version, f"highest_version is {now.highest_version}, and version "
               f"{now.active_version} is active")
    told = [manifest.version for manifest in answer.manifests]
    kit.expect(told == kept, f"GetPolicy has the manifests of versions {listed(told, 10)}, and keeps "
               f"{listed(kept, 10)}")
    if not now.accepts_weights:
        return
    kit.expect(now.model_id, "GetPolicy has no model_id: a trainer can't say what its versions belong to")
    manifest = next(one for one in answer.manifests if one.version == now.active_version)
    kit.expect(re.fullmatch("[0-9a-f]{64}", now.active_digest), f"active_digest is {now.active_digest!r}, not a "
               "SHA-256 in lower-case hexadecimal")
    kit.expect(manifest.digest == now.active_digest, f"active_digest is {now.active_digest}, the active version's "
               f"manifest has {manifest.digest}")
    foreign = [one for one in answer.manifests if one.model_id != now.model_id]
    kit.expect(not foreign, f"the manifest of version {foreign[0].version if foreign else 0} has another model_id than "
               "GetPolicy")


@check("policy.watch", "WatchPolicy reports the state at once.", services=_POLICY, where="policy.proto: WatchPolicy")
async def watch(kit: Context) -> None:
    call = kit.stream("WatchPolicy", timeout=kit.deadline)
    told = (await first_event(kit, call, kit.deadline)).state
    now = await state(kit)
    kit.expect(told.active_version == now.active_version and told.model == now.model,
               f"WatchPolicy says version {told.active_version} of {told.model!r}, GetPolicy version "
               f"{now.active_version} of {now.model!r}")


@check("policy.status_version", "The component's status names the active version.", services=_POLICY,
       where="component.proto: ComponentStatus.policy_version")
async def status_version(kit: Context) -> None:
    status, now = await kit.status(), await state(kit)
    kit.expect(status.HasField("policy_version"), "GetStatus has no policy_version")
    kit.expect(status.policy_version == now.active_version, f"GetStatus says version {status.policy_version}, "
               f"GetPolicy {now.active_version}")


@check("policy.activate", "ActivateVersion rejects missing versions and those not kept; the active version stays.",
       services=_POLICY, where="policy.proto: ActivateVersionRequest")
async def activate(kit: Context) -> None:
    before = await state(kit)
    refused = await kit.refused(kit.unary("ActivateVersion", pb.ActivateVersionRequest()),
                                grpc.StatusCode.INVALID_ARGUMENT, what="ActivateVersion without version and pin")
    kit.expect("version" in refused.violations, "ActivateVersion without version and pin was refused, but no field "
               "violation names version")
    version = before.highest_version + 1000
    refused = await kit.refused(kit.unary("ActivateVersion", pb.ActivateVersionRequest(version=version)),
                                grpc.StatusCode.FAILED_PRECONDITION, what=f"ActivateVersion of {version}, which there "
                                "is not,")
    kit.expect(refused.reason == "VERSION_UNKNOWN", f"ActivateVersion of {version} was refused for the reason "
               f"{refused.reason!r}, not VERSION_UNKNOWN")
    active = before.active_version
    answer = await kit.unary("ActivateVersion", pb.ActivateVersionRequest(version=active, reason="conformance"))
    kit.expect(answer.state.active_version == active, f"ActivateVersion of {active}, which is active, answers with "
               f"version {answer.state.active_version} active")
    after = await state(kit)
    kit.expect(after.withdrawn_versions == before.withdrawn_versions, "ActivateVersion of the active version took "
               "versions back")


@check("policy.fetch", "FetchWeights returns the active version's tensors: an offer, then their chunks.",
       services=_POLICY, seconds=60, where="policy.proto: FetchWeights")
async def fetched(kit: Context) -> None:
    now = await state(kit)
    try:
        await fetch(kit, [], stop=True)
    except grpc.aio.AioRpcError as error:
        kit.skip_unimplemented("FetchWeights", error)
        refused = refusal(error)
        kit.expect(not now.accepts_weights and refused.reason == "NO_WEIGHTS", f"FetchWeights was answered {refused}")
        return
    await look_at_fetched(kit, now)
    version = now.highest_version + 1000
    refused = await kit.refused(fetch(kit, [], version=version), grpc.StatusCode.NOT_FOUND,
                                what=f"FetchWeights of version {version}, which there is not,")
    kit.expect(refused.ours, "FetchWeights of a version that there is not has no ErrorInfo")
