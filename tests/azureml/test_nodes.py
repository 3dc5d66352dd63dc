"""The bootstrap inside Azure ML, with Azure ML's part played: real processes, real collectives, real failures."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk import DeepSpeedDistribution, Input, Output, PyTorchDistribution, command
from jobsdk.job.command import CommandJob
from jobsdk.runs.card import text
from tests.azureml.played import Played
from tests.bootstrap.namespaces import Hosts
from tests.bootstrap.runs import wait_for
from tests.compute import collectives

Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    started: list[Played] = []

    def start(job: CommandJob, **more: Any) -> Played:
        started.append(Played(job, tmp_path, **more))
        return started[-1]

    yield start
    for one in started:
        one.end()


def _job(text: str, nodes: int = 2, processes: int = 2, **fields: Any) -> CommandJob:
    return command(
        command=text,
        distribution=PyTorchDistribution(process_count_per_instance=processes),
        instance_count=nodes,
        **fields,
    )


def _logs(played: Played) -> dict[int, str]:
    return {
        int(path.stem.rpartition("-")[2]): path.read_text("utf-8", "replace")
        for path in played.run.logs.glob("node-*/rank-*.log")
    }


def _assert_all_add_up(played: Played) -> None:
    codes = played.wait()
    mirror = played.mirror()
    logs = _logs(played)
    assert codes == [0] * len(codes), "\n".join([str(mirror.report().get("message")), *map(str, logs.values())])
    size = len(logs)
    assert sorted(logs) == list(range(size))
    for rank, log in logs.items():
        said = re.findall(r"^rank .* total .*$", log, re.MULTILINE)
        assert said == [f"rank {rank} of {size} total {size * (size + 1) // 2}"]
    assert mirror.report()["status"] == "Completed"
    assert mirror.strays == {}


def test_all_ranks_add_up(play: Play) -> None:
    played = play(collectives.job("sockets", 2, "azure"))
    _assert_all_add_up(played)
    assert len(_logs(played)) == 4


@pytest.mark.engine("network")
def test_mpirun_starts_ranks_across_nodes_without_sshd(play: Play, openmpi: Any, tmp_path: Path) -> None:
    with Hosts(tmp_path, 2) as hosts:
        job = collectives.job("mpi", 2, "azure")
        played = play(job, hosts=[hosts.address(node) for node in range(2)], inside=hosts.argv)
        _assert_all_add_up(played)
    logs = {path.parent.name: path.read_text() for path in played.run.logs.glob("node-*/rank-*.log")}
    assert sorted(logs) == ["node-0", "node-1"]


def test_a_rank_that_fails_ends_the_job_with_its_code_and_is_on_the_card(play: Play, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    script = (
        f"echo begun; touch {begun}/$RANK; [ $RANK = 3 ] || exec sleep 600;"
        f" until [ $(ls {begun} | wc -l) = 4 ]; do sleep 0.05; done; exit 7"
    )
    played = play(_job(script))
    assert played.wait() == [7, 7]
    mirror = played.mirror()
    report = mirror.report()
    assert report["cause"]["rank"] == 3
    assert text(report, "one").startswith("run one ended as Failed: rank 3 on node 1 exited with code 7")
    assert sorted(_logs(played)) == [0, 1, 2, 3]
    assert all(log.startswith("begun\n") for log in _logs(played).values())
    assert mirror.ended == {0: 7, 1: 7}


def test_inputs_and_outputs_are_where_azure_ml_has_put_them(play: Play, tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    (data / "part.csv").write_text("1,2\n")
    script = (
        "cat '${{inputs.data}}/part.csv'; echo ${{inputs.epochs}} $[[--resume ${{inputs.resume}}]];"
        " echo $RANK > ${{outputs.model}}/rank-$RANK; mkdir -p outputs; echo here > outputs/of-$RANK;"
        ' [ "$AZURE_ML_INPUT_data" = "${{inputs.data}}" ] && [ "$AZURE_ML_OUTPUT_model" = "${{outputs.model}}" ]'
    )
    inputs = {"data": Input(path=str(data)), "epochs": 3, "resume": Input(optional=True)}
    code = tmp_path / "source"
    code.mkdir()
    played = play(_job(script, inputs=inputs, outputs={"model": Output()}, code=str(code)))
    assert played.wait() == [0, 0], _logs(played)
    played.mirror()
    assert set(_logs(played).values()) == {"1,2\n3\n"}
    for node in range(2):
        ranks = [2 * node, 2 * node + 1]
        assert sorted(path.name for path in played.output(node, "model").iterdir()) == [
            f"rank-{rank}" for rank in ranks
        ]
        assert sorted(path.name for path in (played.code(node) / "outputs").iterdir()) == [
            f"of-{rank}" for rank in ranks
        ]


def test_ranks_see_azure_mls_variables_and_none_of_the_bootstraps_own(play: Play) -> None:
    script = "env | grep -E '^(JOBSDK_(PLAN|TOKEN|RELAY|PATH)|AZUREML_EXPERIMENT_ID=|AZUREML_RUN_ID=|KEY=)' | sort"
    job = _job(script, nodes=1, processes=1, secrets=["KEY"], inputs={"data": Input(path="/etc")})
    played = play(job, environ={"KEY": "s3cr3t-value"})
    assert played.wait() == [0]
    played.mirror()
    experiment = "AZUREML_EXPERIMENT_ID=00000000-0000-0000-0000-000000000000"
    assert _logs(played) == {0: f"{experiment}\nAZUREML_RUN_ID={played.run.name}\nKEY=s3cr3t-value\n"}
    assert "s3cr3t" not in repr(played.native), "what is kept of the job holds no secret"


def test_a_secret_that_a_rank_tells_when_it_fails_is_not_in_the_report(play: Play) -> None:
    job = _job('echo "ValueError: $KEY" >&2; exit 3', nodes=1, processes=1, secrets=["KEY"])
    played = play(job, environ={"KEY": "s3cr3t-value"})
    assert played.wait() == [3]
    assert "s3cr3t" not in repr(played.mirror().report())


def test_a_job_that_hangs_says_where_its_ranks_are(play: Play, tmp_path: Path) -> None:
    code = tmp_path / "source"
    code.mkdir()
    (code / "train.py").write_text("import time\n\n\ndef wait():\n    time.sleep(600)\n\n\nwait()\n")
    played = play(_job("exec python train.py", code=str(code), limits={"hang_timeout": 5}))
    assert played.wait() == [124, 124]
    report = played.mirror().report()
    assert report["status"] == "TimedOut"
    assert report["cause"]["class"] == "hang"
    assert any("train.py:5" in line for line in report["stacks"])


def test_the_time_limit_is_the_bootstraps_before_it_is_azure_mls(play: Play) -> None:
    played = play(_job("exec sleep 600", nodes=1, timeout=1))
    assert played.wait() == [124]
    assert played.mirror().report()["message"] == "the job was stopped after limits.timeout = 1 s"
    assert played.native.limits is not None
    assert (played.native.limits.timeout or 0) > 600


def test_a_job_is_started_again_by_the_bootstrap(play: Play) -> None:
    played = play(_job("echo $JOBSDK_RESTART_COUNT; [ $JOBSDK_RESTART_COUNT = 1 ]", max_restarts=1, restart_delay=0))
    assert played.wait() == [0, 0]
    assert [restart["class"] for restart in played.mirror().report()["restarts"]] == ["exit"]


def test_preloaded_modules_are_imported_once_on_each_node(play: Play, tmp_path: Path) -> None:
    code = tmp_path / "source"
    code.mkdir()
    (code / "heavy.py").write_text("print('imported', flush=True)\n")
    (code / "train.py").write_text("import heavy\nprint('trained', flush=True)\n")
    played = play(_job("python train.py", code=str(code), preload="heavy"))
    assert played.wait() == [0, 0], _logs(played)
    played.mirror()
    assert set(_logs(played).values()) == {"trained\n"}
    preloaded = [path.read_text() for path in played.run.logs.glob("node-*/preload.log")]
    assert preloaded == ["imported\n"] * 2


def test_sigterm_leaves_the_last_word_to_azure_ml(play: Play) -> None:
    played = play(_job("exec sleep 600"))
    wait_for(lambda: b"rank_started" in played.log(0).read_bytes())
    for node in played.nodes:
        node.send_signal(signal.SIGTERM)
    assert played.wait() == [143, 143]
    assert played.mirror().report() == {}


def test_an_image_without_python_says_so_in_one_line(play: Play) -> None:
    played = play(_job("true", nodes=1), settings={"launcher": "bootstrap", "python": "no-such-python3"})
    assert played.wait() == [127]
    (line,) = played.mirror().strays[0]
    assert "no-such-python3: not found" in line


def test_a_wrong_number_of_nodes_is_said(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.azureml.played.variables", lambda *_: {"AZUREML_RUN_ID": "x", "AZUREML_NODE_COUNT": "1"})
    played = play(_job("true"))
    assert played.wait() == [78, 78]
    assert played.mirror().strays[0] == ["bootstrap: Azure ML has given the job 1 node(s), not 2"]


@pytest.mark.parity
@pytest.mark.engine("network")
def test_deepspeeds_own_launcher_across_nodes(play: Play, require_deepspeed: str, tmp_path: Path) -> None:
    job = collectives.job("deepspeed", 2, "azure")
    job.distribution = DeepSpeedDistribution(process_count_per_instance=2, launcher="deepspeed")
    with Hosts(tmp_path, 2) as hosts:
        played = play(job, hosts=[hosts.address(node) for node in range(2)], inside=hosts.argv)
        _assert_all_add_up(played)
