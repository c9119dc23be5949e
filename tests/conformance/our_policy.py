"""Our policy server as the kit starts it: `python our_policy.py --address HOST:PORT --data DIR --listen HOST:PORT
(--upstream URL | --models FOLDER) [--certs DIR]`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import yaml

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.home import Home


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--listen", default="")
    parser.add_argument("--upstream", help="base_url of an API")
    parser.add_argument("--models", help="folder of the embedded model")
    parser.add_argument("--certs", help="folder of the mesh's certificates")
    options = parser.parse_args()
    home = Home(options.data / "home").create()
    settings = {"port": 0, "grpc_port": int(options.address.rpartition(":")[2])}
    if options.upstream:
        settings |= {"engine": "openai", "model": "conformance-api", "base_url": options.upstream}
        os.environ["OPENAI_API_KEY"] = "conformance-key"
    elif not (home.models / EMBEDDED_MODEL).exists():
        (home.models / EMBEDDED_MODEL).symlink_to(options.models)
    environment = {"address": options.listen} if options.listen else {"port": 0}
    home.config_file.write_text(yaml.safe_dump({
        "components": {"policy_server": settings, "env_server": environment},
        "security": {"tls": "on", "certs": options.certs} if options.certs else {}}))
    os.environ["OPENCLAW_RL_HOME"] = str(home.root)
    os.execv(sys.executable, [sys.executable, "-m", "openclaw_rl.launch.component", "policy_server",
                              "--config", str(home.config_file)])


if __name__ == "__main__":
    main()
