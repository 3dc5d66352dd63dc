"""Finding an mpirun and its family, and what becomes of the job when a rank calls MPI_Abort."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap.launchers import base, mpirun
from jobsdk.bootstrap.spec import facts as facts_
from jobsdk.bootstrap.spec import variables as variables_
from jobsdk.bootstrap.system import procfs
from tests.bootstrap.runs import LocalRun, plan, processes_of
from tests.conftest import Mpi

#: What real ones print for --version.
SAYS = {
    "open-mpi-5": "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "open-mpi-4": "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n    CC:   cc",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.5 Build 20211102 (id: 9279b7d62)\nCopyright 2003-2021",
    "other": "some launcher 1.0",
}


def distribution(launcher: str) -> dict[str, object]:
    return {"type": "mpi", "processes": 2, "launcher": launcher}


def install(path: Path, kind: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{SAYS[kind]}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "family", "version"),
    [
        ("open-mpi-5", "openmpi", "mpirun (Open MPI) 5.0.11"),
        ("open-mpi-4", "openmpi", "mpirun.openmpi (OpenRTE) 4.1.4"),
        ("mpich", "hydra", "HYDRA build details: Version: 5.0.2"),
        ("intel", "hydra", "Intel(R) MPI Library for Linux* OS, Version 2021.5"),
        ("other", "", "some launcher 1.0"),
    ],
)
def test_the_family_is_what_it_says_of_itself(tmp_path: Path, kind: str, family: str, version: str) -> None:
    program = install(tmp_path / "mpirun", kind)
    assert mpirun.identify(program) == (family, program, version)


def test_a_program_that_cannot_be_run_is_of_no_family(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text("#!/no/such/interpreter\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert mpirun.identify(str(tmp_path / "mpirun")).family == ""


def test_the_first_on_path_counts_and_a_family_passes_over_the_other(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    path = os.pathsep.join(map(str, (one, two, three)))
    assert mpirun.find("mpirun", path) is None
    openmpi = install(one / "mpirun", "open-mpi-5")
    intel = install(two / "mpiexec", "intel")
    hydra = install(three / "mpiexec.hydra", "mpich")
    found = {wanted: mpirun.find(wanted, path) for wanted in ("mpirun", "openmpi", "hydra")}
    assert {wanted: launcher and launcher.program for wanted, launcher in found.items()} == {
        "mpirun": openmpi, "openmpi": openmpi, "hydra": intel,
    }  # fmt: skip
    os.unlink(intel)
    assert getattr(mpirun.find("hydra", path), "program", None) == hydra
    os.unlink(openmpi)
    assert mpirun.find("openmpi", path) is None
    assert mpirun.find("mpirun", path) is None  # mpiexec.hydra alone is no mpirun


def facts(run_dir: str, *addresses: str) -> facts_.Facts:
    ports = [[1]] * len(addresses)
    return facts_.Facts(addresses, ports, ",".join(addresses), 8, "eth1", None, {}, run_dir, run_dir)


def started(job: dict[str, Any], known: facts_.Facts) -> tuple[list[str], dict[str, str]]:
    """(argv, variables) of the mpirun on node 0, whose files go to /f."""
    command = mpirun.Mpirun(job, 0, "/f").command(known)
    assert command is not None
    return command


def daemon_variables(job: dict[str, Any], known: facts_.Facts, node: int) -> dict[str, str]:
    """Of mpirun's daemon on a node, whose files go to /fNODE."""
    variables = mpirun.Mpirun(job, node, f"/f{node}").daemon_variables(known)
    assert variables is not None
    return variables


def test_each_family_is_called_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = install(tmp_path / "mpirun", "mpich")
    here = facts("/r", "127.0.0.1")
    argv, variables = started(plan("true", nodes=1, distribution=distribution("mpirun")), here)
    assert argv == [program, *"-rmk user -launcher fork -n 2".split(), *base.rank_argv()]
    assert json.loads(variables.pop(variables_.MPIRUN)) == list(mpirun.identify(program))
    assert variables == {}
    install(tmp_path / "mpirun", "open-mpi-5")
    argv, variables = started(plan("true", nodes=1, distribution=distribution("openmpi")), here)
    assert argv == [program, "--oversubscribe", "--bind-to", "none", "-np", "2", *base.rank_argv()]
    assert set(variables) == {
        variables_.MPIRUN, "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_ras", "PRTE_MCA_ras",
        "PRTE_MCA_prte_local_tmpdir_base",
    }  # fmt: skip


def test_over_several_nodes_hydra_starts_its_proxies_by_the_jobs_own_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = install(tmp_path / "mpirun", "mpich")
    there = facts("/r", "10.0.0.4", "10.0.0.9")
    argv, variables = started(plan("true", distribution=distribution("hydra")), there)
    assert argv == [
        program, "-f", "/r/machinefile", "-rmk", "user", "-launcher", "ssh",
        "-launcher-exec", "/r/remote-shell/node-0/ssh", "-localhost", "10.0.0.4",
        "-genvnone", "-genv", "JOBSDK_MPIRUN", variables[variables_.MPIRUN], "-wdir", "/", "-n", "4", "jobsdk-rank",
    ]  # fmt: skip
    assert variables["FI_TCP_IFACE"] == "eth1"


def test_over_several_nodes_open_mpi_is_told_in_the_words_of_4_and_of_5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = install(tmp_path / "mpirun", "open-mpi-5")
    job = plan("true", distribution=distribution("openmpi"), environment={"OMPI_MCA_btl_tcp_if_exclude": "lo"})
    argv, variables = started(job, facts("/r", "10.0.0.4", "10.0.0.9"))
    assert argv == [
        program, "--oversubscribe", "--bind-to", "none", "-np", "4", "--hostfile", "/r/hostfile",
        "--map-by", "slot", "--wdir", "/", "-x", "JOBSDK_MPIRUN", "jobsdk-rank",
    ]  # fmt: skip
    assert variables["OMPI_MCA_plm_rsh_agent"] == variables["PRTE_MCA_plm_ssh_agent"] == "jobsdk-ssh"
    assert variables["OMPI_MCA_plm_rsh_num_concurrent"] == "2", "fewer than there are daemons end in a crash"
    assert variables["OMPI_MCA_oob_tcp_if_include"] == variables["PRTE_MCA_prte_if_include"] == "10.0.0.0/28"
    assert "OMPI_MCA_btl_tcp_if_include" not in variables, "the job has chosen otherwise"
    assert {name for name in variables if "tmpdir" in name} == {"PRTE_MCA_prte_local_tmpdir_base"}, "not the daemons'"
    job = plan("true", distribution=distribution("openmpi"), network={"interface": "ib0"})
    _, variables = started(job, facts("/r", "10.0.0.4", "10.0.0.9"))
    assert {value for name, value in variables.items() if "if_include" in name} == {"ib0"}, "the compute's own"


def test_where_nodes_share_a_machine_each_daemon_has_files_of_its_own() -> None:
    job, here = plan("true", distribution=distribution("openmpi")), facts("/r", "127.0.0.1", "127.0.0.1")
    daemons = [daemon_variables(job, here, node) for node in (0, 1)]
    for name in ("OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"):
        assert [daemon[name] for daemon in daemons] == ["/f0", "/f1"]


def test_who_says_where_open_mpi_keeps_its_files_is_obeyed() -> None:
    there = facts("/r", "10.0.0.4", "10.0.0.9")
    for said, tmpdirs in (({}, {"PRTE_MCA_prte_remote_tmpdir_base"}), ({"PRTE_MCA_prte_tmpdir_base": "/s"}, set())):
        job = plan("true", distribution=distribution("openmpi"), environment=said)
        assert {name for name in daemon_variables(job, there, 1) if "tmpdir" in name} == tmpdirs


def test_open_mpi_5_starts_all_ranks_from_one_node_where_nodes_share_a_machine() -> None:
    newest = mpirun.Program("openmpi", "/mpirun", "mpirun (Open MPI) 5.0.11")
    older = newest._replace(version="mpirun (Open MPI) 4.1.4")
    assert not mpirun.can_span(newest, ["127.0.0.1"] * 2)
    assert mpirun.can_span(older, ["127.0.0.1"] * 2)
    assert mpirun.can_span(newest, ["10.0.0.4", "10.0.0.9"])


def test_a_family_that_is_not_there_is_said(tmp_path: Path) -> None:
    install(tmp_path / "mpirun", "open-mpi-5")
    run = LocalRun(tmp_path / "r", plan("true", distribution=distribution("hydra")), PATH=str(tmp_path))
    assert run.wait() == 126
    assert "no Hydra's mpiexec on PATH" in run.report()["message"]


def test_a_rank_that_ends_gives_the_job_its_code(tmp_path: Path, mpi: Mpi) -> None:
    text = "[ $RANK = 2 ] && exit 7; exec sleep 600"
    run = LocalRun(tmp_path / "r", plan(text, distribution=distribution(mpi.launcher)), PATH=path_of(mpi))
    assert run.wait() == 7
    assert run.report()["cause"]["rank"] == 2
    assert processes_of(run.folder) == []


def test_what_the_bootstrap_tells_itself_is_not_for_the_ranks(tmp_path: Path, openmpi: Mpi) -> None:
    job = plan("env", distribution=distribution(openmpi.launcher))
    run = LocalRun(tmp_path / "r", job, PATH=path_of(openmpi))
    assert run.wait() == 0
    names = {line.partition("=")[0] for line in run.log(0).splitlines()}
    assert "JOBSDK_RUN_DIR" in names
    assert not names & variables_.PRIVATE


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("raise ValueError('a bad sample')", 1)])
def test_a_rank_that_fails_while_others_wait_for_it(tmp_path: Path, mpi: Mpi, ending: str, code: int) -> None:
    (tmp_path / "fail.py").write_text(
        "import sys\n"
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "if world.rank == 2:\n"
        f"    {ending}\n"
        "world.Barrier()\n"
    )
    # `-m mpi4py` turns the end of one rank into MPI_Abort; under Hydra no rank is left then to report anything.
    text = f"{mpi.python} -m mpi4py {tmp_path}/fail.py"
    job = plan(text, distribution=distribution(mpi.launcher), environment=mpi.variables)
    run = LocalRun(tmp_path / "r", job, PATH=path_of(mpi))
    assert run.wait() == code
    report = run.report()
    assert (report["status"], report["cause"]["rank"], report["cause"]["node"]) == ("Failed", 2, 1)
    assert code == 7 or report["message"].endswith("ValueError: a bad sample")
    assert processes_of(run.folder) == []


def test_open_mpi_keeps_its_files_where_no_other_start_finds_them(tmp_path: Path, openmpi: Mpi) -> None:
    """They stay in /tmp under the number of a process when that is killed, and the next of that number ends at once."""
    scratch = tmp_path / "scratch"
    job = plan("exec sleep 600", distribution=distribution(openmpi.launcher), environment={"TMPDIR": str(scratch)})
    run = LocalRun(tmp_path / "r", job, PATH=path_of(openmpi))
    run.until(lambda: len(run.events("rank_started")) == 4)
    (files,) = (node for node in scratch.iterdir() if list(node.glob("ompi.*")))
    assert files.name.startswith("jobsdk-mpi-")
    (launcher,) = (pid for pid in processes_of(run.folder) if "--oversubscribe" in procfs.words(pid))
    os.kill(launcher, signal.SIGKILL)
    assert run.wait() == 137
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("restarts", [0, 1])
def test_what_mpi_keeps_goes_when_the_job_ends(tmp_path: Path, mpi: Mpi, restarts: int) -> None:
    scratch = tmp_path / "scratch"
    job = plan("exit 7", distribution=distribution(mpi.launcher), environment={"TMPDIR": str(scratch)})
    job["restarts"].update(max=restarts)
    run = LocalRun(tmp_path / "r", job, PATH=path_of(mpi))
    assert run.wait() == 7
    assert len(run.report()["restarts"]) == restarts
    assert not [path for path in scratch.iterdir() if path.name.startswith("jobsdk-mpi-")]


# Open MPI 4's mpirun ends, and says itself why.
@pytest.mark.parametrize("which", ["openmpi", pytest.param("mpich", marks=pytest.mark.engine("mpich"))])
def test_without_a_folder_for_temporary_files_mpi_keeps_its_own_with_the_run(
    tmp_path: Path, which: str, request: pytest.FixtureRequest
) -> None:
    mpi = request.getfixturevalue(which)
    (tmp_path / "no-folder").touch()
    job = plan("true", distribution=distribution(mpi.launcher), environment={"TMPDIR": f"{tmp_path}/no-folder"})
    run = LocalRun(tmp_path / "r", job, PATH=path_of(mpi))
    assert run.wait() == 0, run.report()
    assert sorted(path.name for path in run.folder.glob("remote-shell/node-?/*") if path.is_dir()) == []


def path_of(mpi: Mpi) -> str:
    return os.pathsep.join([mpi.folder, os.environ["PATH"]])
