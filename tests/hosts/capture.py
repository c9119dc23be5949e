"""What goes over the wires between the hosts, as an eavesdropper sees it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.hosts.box import Box, BoxError


class Capture:
    """Records all packets that go through the hub into a pcap file, from its making until `stop`."""

    def __init__(self, hub: Box, file: Path) -> None:
        self.file = file
        self._errors = file.with_suffix(".err")
        with self._errors.open("wb") as errors:
            # Each packet shows twice, where it comes in and where it goes out. -Z root: don't change the user.
            self._process = subprocess.Popen(
                [*hub.beside(), "tcpdump", "-Z", "root", "-i", "any", "-U", "--immediate-mode", "-B", "65536",
                 "-w", str(file)], stdout=errors, stderr=errors)
        deadline = time.monotonic() + 15
        while "listening on" not in self._errors.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BoxError(f"tcpdump: {self._errors.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the recording; the file is whole afterwards.

        Raises:
            BoxError: packets were lost, so that nothing could be said about what was not seen.
        """
        self._process.terminate()
        self._process.wait(30)
        said = self._errors.read_text(errors="replace")
        if "0 packets dropped by kernel" not in said:
            raise BoxError(f"tcpdump: {said}")

    def contains(self, text: str) -> bool:
        """A packet has this text. One that is cut in two by a packet's end is not found: send it several times."""
        return text.encode() in self.file.read_bytes()
