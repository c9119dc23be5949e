"""The network between the hosts: a bridge in the hub, and what may happen to a link."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.hosts.box import Box, BoxError

_SWITCH = Path(__file__).parent / "switch.py"
#: Kernel's shaper: bytes that may go at once, and how long a packet may wait.
_BURST, _LATENCY = "128kb", "200ms"


class Network:
    """A bridge `br0` in the hub with a link `vN` to each host."""

    def __init__(self, hub: Box) -> None:
        self._hub = hub
        self._switches: dict[int, subprocess.Popen[bytes]] = {}
        self._partitions: list[tuple[str, str]] = []
        self._limits: list[tuple[int, Box]] = []

    def create(self) -> None:
        """Make the bridge."""
        self._hub.ip("link", "add", "br0", "type", "bridge")
        self._hub.ip("link", "set", "br0", "up")

    def plug(self, number: int, host: Box) -> None:
        """Give a host its link and its address."""
        name = f"v{number}"
        self._hub.ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        # What the kernel leaves to a card, cutting into frames and checksums, is done at once: the switch has no card.
        for box, interface in ((self._hub, name), (host, "eth0")):
            box.net("ethtool", "-K", interface, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        self._hub.ip("link", "set", name, "master", "br0", "up")
        # The same card after a restart as before, or the others would go on asking for the old one.
        host.ip("link", "set", "eth0", "address", f"02:00:0a:00:00:{number:02x}")
        host.ip("addr", "add", f"10.0.0.{number}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")

    def unplug(self, number: int) -> None:
        """Take a host's link away, in the middle of whatever it carries."""
        self._stop_switch(number)
        try:
            self._hub.ip("link", "del", f"v{number}")
        except BoxError as error:
            if "Cannot find device" not in str(error):
                raise

    def partition(self, a: str, b: str) -> None:
        """Drop all packets between two addresses."""
        self._partitions.append((a, b))
        self._write_rules()

    def limit(self, number: int, host: Box, rate: str) -> None:
        """Bound a link each way."""
        for box, interface in ((self._hub, f"v{number}"), (host, "eth0")):
            box.net("tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", _BURST,
                    "latency", _LATENCY)
        self._limits.append((number, host))

    def delay(self, number: int, host: Box, milliseconds: float, loss: float) -> None:
        """Put a switch that holds packets back between a host's link and the bridge."""
        self._stop_switch(number)
        link, inner, outer = f"v{number}", f"s{number}", f"b{number}"
        self._hub.ip("link", "add", inner, "type", "veth", "peer", "name", outer)
        for interface in (inner, outer):
            self._hub.net("ethtool", "-K", interface, "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        self._hub.ip("link", "set", link, "nomaster")
        self._hub.ip("link", "set", outer, "master", "br0", "up")
        self._hub.ip("link", "set", inner, "up")
        self._hub.ip("link", "set", link, "promisc", "on")
        self._hub.ip("link", "set", inner, "promisc", "on")
        self._switches[number] = subprocess.Popen(
            [*self._hub.beside(), sys.executable, str(_SWITCH), str(milliseconds), str(loss), link, inner])

    def reconnect(self) -> None:
        """End all partitions."""
        self._partitions.clear()
        self._write_rules()

    def heal(self) -> None:
        """All links as they were made."""
        self.reconnect()
        for number in list(self._switches):
            self._stop_switch(number)
        for number, host in self._limits:
            for box, interface in ((self._hub, f"v{number}"), (host, "eth0")):
                if box.alive:
                    try:
                        box.net("tc", "qdisc", "del", "dev", interface, "root")
                    except BoxError:
                        pass  # the link was made anew meanwhile
        self._limits.clear()

    def close(self) -> None:
        """End the processes that serve links."""
        for switch in self._switches.values():
            switch.kill()
            switch.wait()
        self._switches.clear()

    def _stop_switch(self, number: int) -> None:
        switch = self._switches.pop(number, None)
        if switch is None:
            return
        switch.kill()
        switch.wait()
        self._hub.ip("link", "del", f"s{number}")
        self._hub.ip("link", "set", f"v{number}", "promisc", "off", "master", "br0")

    def _write_rules(self) -> None:
        rules = [f"ip saddr {x} ip daddr {y} drop" for a, b in self._partitions for x, y in ((a, b), (b, a))]
        # Addresses are asked for anew at times, which a partition cuts too.
        rules += [f"arp saddr ip {x} arp daddr ip {y} drop" for a, b in self._partitions for x, y in ((a, b), (b, a))]
        file = self._hub.folder / "partitions.nft"
        # nft takes each rule on a line of its own only.
        file.write_text("\n".join(["table bridge p", "delete table bridge p", "table bridge p {", "chain f {",
                                   "type filter hook forward priority 0", *rules, "}", "}"]) + "\n")
        self._hub.net("nft", "-f", str(file))
