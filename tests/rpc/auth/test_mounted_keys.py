"""Private keys that come as files of root's for a group, as Kubernetes mounts secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from openclaw_rl.rpc.auth.certificates import CertificateError, check_private


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root's")
def test_the_group_of_roots_file_may_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "policy_server.key"
    key.touch()
    key.chmod(0o440)
    with pytest.raises(CertificateError, match="others may read"):
        check_private(key)  # to root itself a group is others
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    check_private(key)
    for mode in (0o444, 0o460, 0o441):
        key.chmod(mode)
        with pytest.raises(CertificateError, match="others may read"):
            check_private(key)
    key.chmod(0o440)
    os.chown(key, 10002, 10002)
    with pytest.raises(CertificateError, match="others may read"):
        check_private(key)
