"""Environments in the component's status."""

from __future__ import annotations

from openclaw_rl.rollouts.leases.pool import LeasePool
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.v1 import component_pb2

#: Newest warnings of an environment that are reported.
MOST_WARNINGS = 3


def add_to_status(pool: LeasePool, status: component_pb2.ComponentStatus) -> list[Raised]:
    """Add the pool's counters and gauges to a status, and return its alarms. Each environment's gauges are `env_NAME_`
    and `capacity`, `leased`, `warm`, `starting` or `waiting`; as metrics these are five with the label `environment`.
    """
    status.counters.update(pool.counts())
    for type in pool.types:
        warm_pool = pool.warm_pool(type)
        status.gauges.update({f"env_{type}_capacity": warm_pool.capacity, f"env_{type}_leased": warm_pool.leased,
                              f"env_{type}_warm": warm_pool.warm, f"env_{type}_starting": warm_pool.starting,
                              f"env_{type}_waiting": warm_pool.waiting})
    warm_pools = [pool.warm_pool(type) for type in pool.types]
    return [*(("environment_unusable", f"environment {warm_pool.name!r} can't be used: {warm_pool.problem}")
              for warm_pool in warm_pools if warm_pool.configured.named and warm_pool.problem),
            *(("environment_warning", f"environment {warm_pool.name!r}: {warning}")
              for warm_pool in warm_pools for warning in warm_pool.configured.warnings[-MOST_WARNINGS:])]
