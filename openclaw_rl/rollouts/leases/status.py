"""What the component's status tells of environments."""

from __future__ import annotations

from openclaw_rl.rollouts.leases.pool import Pool
from openclaw_rl.runtime.alarms import Raised
from openclaw_rl.v1 import component_pb2

#: Of one environment that are told, the newest.
MOST_WARNINGS = 3


def tell(pool: Pool, status: component_pb2.ComponentStatus) -> list[Raised]:
    """Put the pool's counters and gauges into a status, and give its alarms. Each environment's gauges are `env_NAME_`
    and `capacity`, `leased`, `warm`, `starting` or `waiting`; as metrics these are five with the label `environment`.
    """
    status.counters.update(pool.counts())
    for type in pool.types:
        supply = pool.supply(type)
        status.gauges.update({f"env_{type}_capacity": supply.capacity, f"env_{type}_leased": supply.leased,
                              f"env_{type}_warm": supply.warm, f"env_{type}_starting": supply.starting,
                              f"env_{type}_waiting": supply.waiting})
    supplies = [pool.supply(type) for type in pool.types]
    return [*(("environment_unusable", f"environment {supply.name!r} can't be used: {supply.problem}")
              for supply in supplies if supply.offer.named and supply.problem),
            *(("environment_warning", f"environment {supply.name!r}: {warning}")
              for supply in supplies for warning in supply.offer.warnings[-MOST_WARNINGS:])]
