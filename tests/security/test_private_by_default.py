"""Other users of the machine read nothing of a run, whatever the umask, unless `folder_mode` lets them."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsdk import MLClient, MpiDistribution, Output, PyTorchDistribution, command, function
from jobsdk import compute as computes
from jobsdk.bootstrap.transport import ssh_files
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.snapshot import digests

OPEN = 0o077
#: What the user's own program makes has the rights that its umask gives.
OF_PROGRAMS = re.compile(r"outputs/default/.|__pycache__|checkpoints/")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The widest umask: it removes no permission."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/a.py").write_text("x = 1\n")
    (folder / "tool.sh").write_text("#!/bin/sh\numask; echo > made; echo > outputs/result\n")
    (folder / "tool.sh").chmod(0o755)
    return folder


def with_rights(folder: Path, rights: int) -> dict[str, str]:
    """What of jobsdk's own in a folder gives any of these rights, with its mode."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        name, mode = str(path.relative_to(folder)), stat.S_IMODE(path.lstat().st_mode)
        if mode & rights and not path.is_symlink() and not OF_PROGRAMS.search(name):
            found[name] = oct(mode)
    return found


def identity(rank: int) -> int:
    return rank


def test_nothing_of_a_run_is_open_to_others(home: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_TOO_YOUNG", -(10**18))  # files that were just written are kept in the cache, too
    command_line = [sys.executable, "-m", "jobsdk", "run", "--processes", "2", "--", "sh", "-c", "umask"]
    environ = {**os.environ, "PYTHONPATH": str(Path(ssh_files.__file__).parents[2])}
    subprocess.run(command_line, check=True, capture_output=True, cwd=code, env=environ)
    job = command(command="./tool.sh", code=code, distribution=PyTorchDistribution(process_count_per_instance=2))
    run = MLClient().jobs.create_or_update(job).wait()
    assert run.status == "Completed", run.report
    assert function(identity, 5).submit().result() == 5
    assert len(list((home / "runs").iterdir())) == 3
    assert {"runs", "functions", "cache", "history.db"} <= {path.name for path in home.iterdir()}
    assert with_rights(home, OPEN) == {f"runs/{run.name}/code/made": "0o666"}
    copy = run.folder.code
    assert stat.S_IMODE((copy / "tool.sh").stat().st_mode) == 0o700
    assert stat.S_IMODE((copy / "pkg/a.py").stat().st_mode) == 0o600


def test_the_users_program_keeps_the_users_umask(code: Path) -> None:
    os.umask(0o027)
    run = MLClient().jobs.create_or_update(command(command="./tool.sh", code=code)).wait()
    assert (run.folder.logs / "node-0/rank-0.log").read_text().strip() == "0027"
    assert stat.S_IMODE((run.folder.code / "made").stat().st_mode) == 0o640


def test_ranks_that_a_launcher_starts(require_mpirun: str, code: Path) -> None:
    job = command(command="./tool.sh", code=code, distribution=MpiDistribution(process_count_per_instance=2))
    run = MLClient().jobs.create_or_update(job).wait()
    assert run.status == "Completed", run.report
    assert with_rights(run.folder.path, OPEN) == {"code/made": "0o666"}
    assert (run.folder.logs / "node-0/rank-0.log").read_text().split() == ["0000"]


def test_an_output_outside_of_the_run_is_the_users_own(tmp_path: Path) -> None:
    os.umask(0o022)
    outputs = {"model": Output(path=str(tmp_path / "shared/model"))}
    run = MLClient().jobs.create_or_update(command(command="true", outputs=outputs)).wait()
    assert run.status == "Completed", run.report
    assert stat.S_IMODE((tmp_path / "shared/model").stat().st_mode) == 0o755


@pytest.mark.parametrize(("given", "rights"), [('"0750"', 0o027), ('"2770"', 0o007), ("0750", 0o027)])
def test_a_setting_opens_them_to_a_group(home: Path, code: Path, given: str, rights: int) -> None:
    os.umask(0o077)
    (home / "config/jobsdk").mkdir(parents=True)
    settings = f"computes: {{local: {{type: local, folder_mode: {given}}}}}"
    (home / "config/jobsdk/computes.yml").write_text(settings)
    run = MLClient().jobs.create_or_update(command(command="./tool.sh", code=code)).wait()
    assert run.status == "Completed", run.report
    assert with_rights(run.folder.path, rights) == {}
    closed = {
        str(path.relative_to(run.folder.path))
        for path in (run.folder.path, *run.folder.path.rglob("*"))
        if not path.is_symlink() and not path.stat().st_mode & 0o040
    }
    assert closed <= {"compute.json", "secret-marks.json", "code/made", "outputs/default/result"}


@pytest.mark.parametrize("given", ["0777", "0600", "4750", "750x", 750, 2770, -1, True, None, [0o750]])
def test_a_mode_that_makes_no_sense_is_refused(given: object) -> None:
    with pytest.raises(ComputeError, match="folder_mode must be octal digits in quotes"):
        computes.type_of("local")("local", {"folder_mode": given})


def test_what_comes_to_another_machine(tmp_path: Path, code: Path) -> None:
    """The far end of ssh, as a program of its own."""
    import io
    import json
    import tarfile

    def call(operation: str, *arguments: object, data: bytes = b"") -> dict[str, str]:
        argv = [sys.executable, "-m", ssh_files.__name__, operation, json.dumps(arguments)]
        out = subprocess.run(argv, input=data, capture_output=True, check=True).stdout
        answer: dict[str, str] = json.loads(out.partition(ssh_files.MARK)[2])
        assert not answer or "error" not in answer
        return answer

    def packed() -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in ("tool.sh", "pkg/a.py"):
                archive.add(code / name, name)
        return buffer.getvalue()

    for mode, of_file in ((0o700, 0o600), (0o2750, 0o640)):
        there = tmp_path / f"there-{mode:o}"
        call("write", str(there / "runs/r"), ["tool.sh"], mode, data=packed())
        place = call("code_place", str(there / "code"), "sha256-0", mode)
        at = Path(call("take_code", place["partly"], data=packed())["there"])
        modes = {
            str(path.relative_to(there)).replace(at.name, "X"): stat.S_IMODE(path.stat().st_mode)
            for path in (there, *there.rglob("*"))
        }
        folders = dict.fromkeys((".", "runs", "runs/r", "runs/r/pkg", "code", "code/X", "code/X/pkg"), mode)
        files = {"runs/r/tool.sh": 0o600, "runs/r/pkg/a.py": of_file, "code/X/pkg/a.py": of_file}
        assert modes == {**folders, **files, "code/X/tool.sh": mode & 0o777}


def test_folders_that_were_there_stay_as_they_are(home: Path) -> None:
    (home / "runs").mkdir(mode=0o755)
    (home / "runs").chmod(0o755)
    run = RunFolder.create("r")
    assert stat.S_IMODE((home / "runs").stat().st_mode) == 0o755
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


@pytest.mark.parametrize(("settings", "mode"), [({}, 0o755), ({"folder_mode": "0750"}, 0o750)])
def test_containers_of_another_user_read_the_code_on_a_volume(
    code: Path, tmp_path: Path, settings: dict[str, str], mode: int
) -> None:
    """Whatever the umask of who submits."""
    from jobsdk.compute.kubernetes import code as kubernetes_code

    os.umask(0o077)
    volume = {"code_volume": {"here": str(tmp_path / "volume"), "path": "/code"}}
    compute = computes.type_of("kubernetes")("k", {**volume, **settings})
    folder_mode = compute.folder_mode if settings else kubernetes_code.MODE_ON_VOLUME
    brought = kubernetes_code.bring(code, "volume", compute.settings, folder_mode)
    copy = tmp_path / "volume" / Path(brought.facts["sent"]).name
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE((copy / "tool.sh").stat().st_mode) == mode
    assert stat.S_IMODE((copy / "pkg/a.py").stat().st_mode) == mode & 0o666
