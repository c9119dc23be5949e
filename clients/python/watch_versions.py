"""Print each policy version as it becomes the active one.

    python clients/python/watch_versions.py [127.0.0.1:50051]
"""

import sys

from openclaw_rl.client import PolicyServiceClient

with PolicyServiceClient(sys.argv[1] if len(sys.argv) > 1 else None) as policy:
    for change in policy.watch_policy():
        state = change.state
        print(f"version {state.active_version} answers; kept: {list(state.kept_versions)}", flush=True)
