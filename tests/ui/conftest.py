"""Runs to look at, and the page's server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

from jobsdk import MLClient, PyTorchDistribution, command
from jobsdk.client.run import Run
from jobsdk.ui.server import application
from tests import engines
from tests.needs import needs

expect.set_options(timeout=120_000)  # of what is seen in the end it costs nothing

TOKEN, PORT = "the-token", 8123
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
#: Who is up has written all it writes but its error; and what fails does so when all others are up.
SCRIPT = f"""import json, os, sys, time
rank, how = os.environ["RANK"], sys.argv[1]
with open(os.environ["JOBSDK_REPORTS"], "w") as file:
    for step in range(5):
        values = {{{"loss" + EVIL!r}: step / 10}}
        print(json.dumps({{"t": time.time(), "rank": int(rank), "step": step, "metrics": values}}), file=file)
print("up", rank, {EVIL!r}, flush=True)
open("up-" + rank, "w").close()
while how == "fail" and rank == "2" and not all(os.path.exists(f"up-{{one}}") for one in range(4)):
    time.sleep(0.01)
if how == "fail" and rank == "2":
    raise ValueError("bad batch " + {EVIL!r})
if how != "end":
    time.sleep(300)
"""


def submit(folder: Path, how: str) -> Run:
    """A job of 2 nodes x 2 processes that ends, fails in rank 2, or waits."""
    source = folder / "src"
    source.mkdir(exist_ok=True)
    (source / "work.py").write_text(SCRIPT)
    job = command(
        command=f"python work.py {how}",
        code=source,
        display_name=f"{how} {EVIL}",
        experiment_name="looks",
        environment_variables={"EVIL": EVIL},
        distribution=PyTorchDistribution(process_count_per_instance=2),
        instance_count=2,
    )
    return MLClient().jobs.create_or_update(job)


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A client of the page that has its token."""
    app = application(TOKEN, PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}", headers={"authorization": f"Bearer {TOKEN}"}) as one:
        yield one


def serve(port: str = "0") -> tuple[subprocess.Popen[str], str]:
    """A real `jobsdk ui` of this test's home, and where it listens, with the token."""
    argv = [sys.executable, "-m", "jobsdk", "ui", "--no-open", "--port", port]
    where = os.path.dirname(__file__)
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=where)
    assert server.stdout is not None
    return server, server.stdout.readline().strip()


@pytest.fixture
def address() -> Iterator[str]:
    """Where a server listens, with the token; it must have nothing to say."""
    server, line = serve()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", line)
    yield line
    server.send_signal(signal.SIGINT)
    _, said = server.communicate(timeout=200)
    assert server.returncode in (0, 130)
    assert said.strip() in ("", "Aborted!")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The system's Chromium."""
    needs("chromium")
    return str(engines.chromium())
