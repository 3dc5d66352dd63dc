"""Job files written for Azure ML run on this machine as they are, where all that they need is in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobsdk import Input, MLClient, load_job
from jobsdk.job.io import is_local
from tests.azureml import files


def _is_complete(path: Path) -> bool:
    """Whether a file says all: its command is a shell's, without code, and its data is here."""
    if files.is_template(path):
        return False
    job = load_job(path)
    paths = [item.path for item in job.inputs.values() if isinstance(item, Input)]
    words = (job.command or "").split()
    return (
        job.code is None
        and words[0] in ("echo", "ls")
        and all(one is not None and is_local(one) and job.resolve(one).exists() for one in paths)
    )


COMPLETE = [path for path in (*files.OWN_JOBS, *files.OTHERS) if _is_complete(path)]


@pytest.mark.parametrize("path", COMPLETE, ids=files.name)
def test_it_runs_on_this_machine(path: Path) -> None:
    run = MLClient().jobs.create_or_update(load_job(path), compute="local").result(120)
    assert run.exit_code == 0
    said = (run.folder.logs / "node-0/rank-0.log").read_text()
    written = [one.read_text() for one in (run.folder.path / "outputs").rglob("*.txt")]
    assert "hello" in said + "".join(written) or (run.command or "").startswith("ls")


def test_there_are_such_files() -> None:
    assert [path.name for path in COMPLETE if path in files.OWN_JOBS] == ["hello.yml"]
    assert len(COMPLETE) >= (7 if files.OTHERS else 1)
