"""One of our own components as the kit starts it:
python tools/conformance/own.py SERVICE --address HOST:PORT --data DIR --listen HOST:PORT [--upstream URL] [--certs D].

Its neighbours are at --listen. The policy server has the embedded model, which is made once in OPENCLAW_RL_HOME or the
usual home, or with --upstream that of an API, whose key is in OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


def configuration(service: str, port: int, listen: str, upstream: str = "") -> dict[str, Any]:
    """The components' section of the configuration."""
    policy: dict[str, Any] = {"port": 0, "grpc_port": port} if service == "policy" else {"address": listen}
    if service == "trainer" and not upstream:  # the back end that needs no model: playbooks for an API that is away
        upstream = "http://127.0.0.1:9/v1"
    if upstream:
        policy |= {"engine": "openai", "model": "conformance", "base_url": upstream}
    sections: dict[str, dict[str, Any]] = {
        "environment": {"env_server": {"port": port}, "prm_judge": {"address": listen}, "policy_server": policy},
        "judge": {"prm_judge": {"port": port}, "trainer": {"address": listen}},
        "trainer": {"trainer": {"port": port}, "policy_server": policy},
        "policy": {"policy_server": policy, "env_server": {"address": listen}}}
    return sections[service]


def main() -> None:
    sys.path.insert(0, str(_ROOT))
    import yaml

    from openclaw_rl.conformance.services import SERVICES
    from openclaw_rl.runtime.home import Home

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--address", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--upstream", default="")
    parser.add_argument("--certs", default="")
    args = parser.parse_args()
    home = Home(args.data / "home").create()
    if args.service == "policy" and not args.upstream:
        from openclaw_rl.config import EMBEDDED_MODEL
        from openclaw_rl.models.prepare import ensure_model

        if not (home.models / EMBEDDED_MODEL).exists():
            (home.models / EMBEDDED_MODEL).symlink_to(ensure_model(EMBEDDED_MODEL, Home.default().create()))
    components = configuration(args.service, int(args.address.rpartition(":")[2]), args.listen, args.upstream)
    security = {"tls": "on", "certs": args.certs} if args.certs else {}
    home.config_file.write_text(yaml.safe_dump({"components": components, "security": security}))
    os.execve(sys.executable, [sys.executable, "-m", "openclaw_rl.launch.component",
                               SERVICES[args.service].component],
              {"OPENAI_API_KEY": "conformance", **os.environ, "OPENCLAW_RL_HOME": str(home.root),
               "PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))})


if __name__ == "__main__":
    main()
