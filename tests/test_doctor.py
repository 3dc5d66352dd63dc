"""The doctor's look at this machine: what it finds, and that nothing that is missing or broken stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobsdk import command, doctor
from jobsdk.bootstrap.preflight import machine
from jobsdk.bootstrap.preflight.finding import OK, PROBLEM, WARNING, Finding
from jobsdk.compute.local import LocalCompute
from jobsdk.errors import ComputeError, ValidationError
from tests.bootstrap.runs import wait_for


def of(subject: str) -> list[Finding]:
    return [one for one in doctor.this_machine() if one.subject == subject]


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is found first."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return path


def test_this_machine() -> None:
    found = {one.subject: one for one in doctor.this_machine()}
    assert {"python", "torch", "gpus", "limits", "resources", "shm", "disk", "network", "names", "home"} <= set(found)
    assert found["python"].text.startswith(".".join(map(str, sys.version_info[:3])) + ", ")
    assert sys.executable in found["python"].text


@pytest.mark.framework("torch")
def test_torch_is_known_without_importing_it() -> None:
    code = (
        "import sys; from jobsdk import doctor; found = doctor.this_machine();"
        "print([one.text for one in found if one.subject == 'torch'][0], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert done.stdout.startswith(f"{version}, ")
    assert done.stdout.endswith(" False\n")


def test_packages_are_found_as_python_would_find_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, version in ((first, "2.1.0"), (second, "9.9.9")):
        (folder / "torch").mkdir(parents=True)
        (folder / "torch/version.py").write_text(f"__version__ = '{version}+cu124'\ncuda: Optional[str] = '12.4'\n")
        (folder / f"torch-{version}+cu124.dist-info").mkdir()
    (second / "nvidia_nccl_cu12-2.21.5.dist-info").mkdir()
    assert machine.packages([str(tmp_path / "none"), str(first), str(second)]) == {
        "torch": "2.1.0+cu124", "cuda": "12.4", "nccl": "2.21.5",
    }  # fmt: skip


def test_a_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JOBSDK_HOME", str(tmp_path / "file/home"))
    (found,) = of("home")
    assert (found.level, found.fix) == (PROBLEM, "set JOBSDK_HOME to another folder")
    assert f"{tmp_path}/file is no folder" in found.text


@pytest.mark.slow
def test_engines_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE_S", 4.0)  # one answers, however slow the machine is, and one never does
    podman = program(tmp_path / "bin", "podman", "echo podman version 5.1.2", monkeypatch)
    srun = program(tmp_path / "bin", "srun", "exec sleep 600", monkeypatch)
    found = of("engines")
    assert Finding(OK, "engines", f"podman 5.1.2 ({podman})") in found
    (hanging,) = [one for one in found if one.level == WARNING and "srun" in one.text]
    assert hanging.text == f"srun ({srun}) does not answer"


def test_what_nvidia_smi_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo '0, 10, 81559, 0'; echo '1, 60000, 81559, 3'; echo '2, 10, 81559, [N/A]'"
    program(tmp_path / "bin", "nvidia-smi", script, monkeypatch)
    assert [one.text for one in of("gpus") if one.level != OK and "Xid" not in one.text] == [
        "GPU 1 has counted 3 memory errors that could not be corrected since it was reset",
        "GPU 1 has 60000 of 81559 MiB in use",
    ]
    program(tmp_path / "bin", "nvidia-smi", "exit 9", monkeypatch)
    assert "nvidia-smi does not answer" in [one.text for one in of("gpus")]


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "_engines", broken)
    found = doctor.this_machine()
    assert "could not be looked at: RuntimeError: no such thing" in [one.text for one in found]
    assert "home" in {one.subject for one in found}


def test_nothing_on_path_and_no_proper_environment(tmp_path: Path) -> None:
    code = "from jobsdk import doctor; print(len(doctor.this_machine()))"
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": root, "HOME": "/nonexistent"}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def make_open(home: Path) -> None:
    """As a version did that made folders by the umask."""
    for name in ("a b", "c"):
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "plan.json").write_text("{}")
    (home / "cache").mkdir()
    (home / "history.db").touch()
    for path in (home, *home.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def opened(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.stat().st_mode & 0o077)


def test_folders_that_others_can_read_and_the_command_that_closes_them(home: Path) -> None:
    make_open(home)
    (found,) = [one for one in of("home") if one.level == WARNING]
    assert found.text.endswith("and 2 more, made by an older version, can be read by other users")
    assert found.fix is not None
    subprocess.run(["sh", "-c", found.fix], check=True)
    assert opened(home) == []
    assert [one for one in of("home") if one.level == WARNING] == []


def test_runs_that_a_setting_shares_stay_open(home: Path, tmp_path: Path) -> None:
    make_open(home)
    (home / "runs/c/compute.json").write_text('{"folder_mode": "0755"}')
    (home / "runs/linked").symlink_to(tmp_path / "far")
    (tmp_path / "far").mkdir()
    (tmp_path / "far").chmod(0o750)
    (found,) = [one for one in of("home") if one.level == WARNING]
    assert found.fix is not None
    subprocess.run(["sh", "-c", found.fix], check=True)
    assert (home / "runs/c/plan.json").stat().st_mode & 0o077 == 0o044
    assert (tmp_path / "far").stat().st_mode & 0o077 == 0
    assert opened(home / "runs") == ["c", "c/compute.json", "c/plan.json"]


def test_processes_that_outlived_their_supervisor(tmp_path: Path, home: Path) -> None:
    run = home / "runs/left"
    run.mkdir(parents=True)
    (run / "owner.json").write_text('{"pid": 4194303, "start": 1}')
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, "JOBSDK_RUN_DIR": str(run)})
    try:
        (found,) = wait_for(lambda: [one for one in of("runs") if one.level == WARNING and str(run) in str(one.fix)])
        assert found.text == "1 process of run left outlived their supervisor"
        (run / "owner.json").write_text(f'{{"pid": {os.getpid()}, "start": {_start(os.getpid())}}}')
        assert any("left" in one.text for one in of("runs") if one.level == OK)
    finally:
        left.send_signal(signal.SIGKILL)
        left.wait()


def _start(pid: int) -> int:
    from jobsdk.bootstrap.system import processes

    found = processes.start_time(pid)
    assert found is not None
    return found


def test_the_preflight_of_a_job_keeps_its_nodes_and_leaves_the_rest(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big/train.py").write_text("")
    job = command(
        command="python train.py ${{inputs.data}}", code=str(tmp_path / "big"), instance_count=3,
        inputs={"data": 3}, environment_variables={"NCCL_DEBUG": "INFO"},
        distribution={"type": "pytorch", "process_count_per_instance": 4},
    )  # fmt: skip
    job.resources.gpus_per_process = 2
    compiled = doctor.plan_preflight(job, compute="local")
    plan = compiled.plan
    assert (plan["nodes"], plan["distribution"]["type"], plan["inputs"]) == (3, "none", {})
    assert plan["environment"]["NCCL_DEBUG"] == "INFO"
    assert plan["preflight"]["gpus"] == plan["gpus_per_process"] == 8
    assert compiled.spec["code"] is None
    assert job.command == "python train.py ${{inputs.data}}", "the user's job is not changed"
    assert doctor.plan_preflight(job, nodes=5).plan["nodes"] == 5


def test_the_preflight_of_a_job_that_is_not_valid() -> None:
    with pytest.raises(ValidationError):
        doctor.plan_preflight(command(command="python train.py ${{inputs.none}}"))


def test_where_outputs_cannot_be_fetched_the_log_of_node_0_has_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> dict[str, str]:
        raise ComputeError("no such volume")

    monkeypatch.setattr(LocalCompute, "fetch", fetch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = doctor.job_of(2)
    job.resources.gpus_per_process = 1
    found = doctor.run_preflight(doctor.plan_preflight(job, bandwidth=True), lambda text: None)
    assert found.summary.startswith("2 nodes: connect matrix 2/2 ok")
    assert found.nodes == {}
    problem = found.findings[0]
    assert (problem.level, problem.text[:48]) == (PROBLEM, "the job takes 1 GPU of a node, and all nodes hav")
    assert problem.fix == "ask the compute for GPUs (resources.instance_type), or lower gpus_per_process"
    assert any(one.text.startswith("TCP between 2 nodes: ") for one in found.findings)
