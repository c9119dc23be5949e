"""Print each policy version as it becomes the active one; goes on when the policy server is started anew.

    python clients/python/watch_versions.py [127.0.0.1:50051]
"""

import sys

from openclaw_rl.client import PolicyServiceClient

with PolicyServiceClient(sys.argv[1] if len(sys.argv) > 1 else None) as policy:
    for state in policy.follow_policy(on_break=lambda error: print(f"({error}; trying again)", file=sys.stderr)):
        print(f"version {state.active_version} answers; kept: {list(state.kept_versions)}", flush=True)
