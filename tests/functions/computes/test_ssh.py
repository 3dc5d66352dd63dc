from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jobsdk.compute.ssh.compute import SshCompute
from jobsdk.runs.refresh import Pace
from tests.compute.conftest import sshd as sshd
from tests.compute.ssh.sshd import Sshd, end_connections
from tests.functions.computes import check

pytestmark = [pytest.mark.engine("ssh")]


def test_functions_on_plain_machines(sshd: Sshd, work: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SshCompute, "pace", Pace(0.1, 0.5))
    content = {"type": "ssh", "hosts": [sshd.add("first")], "python": sys.executable, "ssh_options": list(sshd.options)}
    (work / "computes.yml").write_text(json.dumps({"computes": {"lab": content}}))
    try:
        check("lab", nodes=1)
    finally:
        end_connections(home)
