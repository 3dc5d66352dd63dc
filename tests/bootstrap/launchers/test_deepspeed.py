"""DeepSpeed's own launcher and autotuner under the bootstrap; nothing here trains."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.distributions import contract
from jobsdk.bootstrap.launchers import deepspeed_tuner
from jobsdk.bootstrap.launchers.deepspeed import parse_config
from jobsdk.bootstrap.spec import facts as facts_
from tests.bootstrap.runs import LocalRun, plan, processes_of

LAUNCHED = {"type": "deepspeed", "processes": 2, "launcher": "deepspeed"}
TUNED = {**LAUNCHED, "autotuning": "tune", "config": {"train_micro_batch_size_per_gpu": 1}}


def test_the_launchers_exit_code_is_that_of_the_rank_that_failed(tmp_path: Path, require_deepspeed: str) -> None:
    run = LocalRun(tmp_path / "r", plan("[ $RANK = 3 ] && exit 7; exec sleep 600", distribution=LAUNCHED))
    assert run.wait() == 7
    cause = run.report()["cause"]
    assert (cause["rank"], cause["node"], cause["exit_code"]) == (3, 1, 7)
    assert cause["message"] == "rank 3 on node 1 exited with code 7"
    assert processes_of(run.folder) == []


#: DeepSpeed's launcher as it searches where no trial runs: it leaves the first one's output, and returns.
_FINDS_NOTHING = """
import json, os, subprocess, sys
def main(argv):
    with open(argv[argv.index("--deepspeed_config") + 1]) as file:
        folder = json.load(file)["autotuning"]["results_dir"] + "/profile_model_info"
    os.makedirs(folder)
    script = argv.index("--master_port") + 2
    with open(folder + "/stderr.log", "w") as stderr:
        assert subprocess.call([sys.executable, *argv[script:]], stderr=stderr) == 1
"""


_REAL = [pytest.mark.parity, pytest.mark.framework("deepspeed"), pytest.mark.engine("compiler")]


@pytest.fixture(params=["as recorded", pytest.param("for real", marks=_REAL)])
def searching(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """PYTHONPATH, with what stands in for DeepSpeed, which takes a minute to find nothing; or with DeepSpeed's own."""
    if request.param == "for real":
        request.getfixturevalue("require_deepspeed")
        return ""
    files = {"__init__": "", "launcher/__init__": "", "launcher/runner": _FINDS_NOTHING, "autotuning/scheduler": ""}
    for name, text in files.items():
        module = tmp_path / f"stand-in/deepspeed/{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text)
    return str(tmp_path / "stand-in")


def test_a_search_that_finds_nothing_has_failed(tmp_path: Path, searching: str) -> None:
    """The autotuner itself ends with code 0."""
    (tmp_path / "broken.py").write_text("raise ValueError('no such model')\n")
    text = f"{sys.executable} {tmp_path}/broken.py --deepspeed_config $JOBSDK_DEEPSPEED_CONFIG"
    run = LocalRun(tmp_path / "r", plan(text, nodes=1, distribution=TUNED), PYTHONPATH=searching)
    assert run.wait() == 1
    report = run.report()
    assert (report["status"], report["ranks"][0]["role"]) == ("Failed", "tuner")
    assert "found no configuration that runs" in report["message"]
    assert "profile_model_info/stderr.log): ValueError: no such model" in report["cause"]["error"]
    assert processes_of(run.folder) == []


def test_the_training_after_the_search_has_its_own_exit_code(
    tmp_path: Path, require_deepspeed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script, best = tmp_path / "train.py", tmp_path / "best.json"
    script.write_text("import os, sys\nprint(sys.argv[2:])\nsys.exit(7 * int(os.environ['RANK']))\n")
    best.write_text('{"train_micro_batch_size_per_gpu": 16}')
    monkeypatch.setenv("LOCAL_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("NODE_COUNT", "1")
    settings = {"arg_mappings": {"train_micro_batch_size_per_gpu": "--batch", "gradient_accumulation_steps": "--gas"}}
    argv = [str(script), "--deepspeed_config", "ds.json", "--batch", "4", "--gas", "1"]
    assert deepspeed_tuner._train(argv, 2, str(best), settings) == 7
    assert str(["--deepspeed_config", str(best), "--batch", "16", "--gas", "1"]) in capfd.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["train.py"], "names no configuration"),
        (["train.py", "--deepspeed"], "names no configuration"),
        (["train.py", "--deepspeed_config=none.json"], "none.json"),
        (["train.py", "--deepspeed", "none.json"], "none.json"),
    ],
)
def test_no_search_without_a_configuration(argv: list[str], says: str) -> None:
    with pytest.raises((deepspeed_tuner.TunerError, FileNotFoundError), match=says):
        deepspeed_tuner.run(["tune", *argv])


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("python train.py --x $X", "train.py --x $X"),
        ("python3.11 -u train.py", "train.py"),
        (" A=1 B= /opt/my/python train.py", "train.py"),
        ("python 'my train.py' | tee log", "'my train.py' | tee log"),
    ],
)
def test_the_tuner_stands_before_the_script(text: str, rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/it's/bootstrap.pyz"])
    python = text[: text.index("train.py")].replace("-u", "").replace("'my", "").rstrip()
    assert (
        deepspeed_tuner.Tuner(plan("x", distribution=TUNED), 0).rank_command(text)
        == f"{python} '/it'\\''s/bootstrap.pyz' tuner tune {rest}"
    )


@pytest.mark.parametrize("text", ["bash train.sh", "python -m train", "python -c 1", "python", "deepspeed train.py"])
def test_what_is_no_python_script_is_not_tuned(text: str) -> None:
    assert not deepspeed_tuner.fits(text)
    with pytest.raises(OSError, match="of the form"):
        deepspeed_tuner.Tuner(plan("x", distribution=TUNED), 0).rank_command(text)


def test_the_tuner_is_the_jobs_one_process(tmp_path: Path) -> None:
    the_plan = plan("x", nodes=1, distribution=TUNED, gpus_per_process=1)
    (process,) = distributions.of(the_plan).processes()
    assert (process.role, distributions.of(the_plan).world_size()) == ("tuner", 1)
    facts = facts_.Facts(["h"], [[1]], "h", 8, None, ["0", "1"], {}, str(tmp_path), str(tmp_path))
    variables = contract.Contract(the_plan, facts).environment(process)
    # What the processes of its trials inherit is right for them.
    assert (variables["LOCAL_SIZE"], variables["LOCAL_WORLD_SIZE"], variables["OMP_NUM_THREADS"]) == ("2", "2", "4")
    assert not {"CUDA_VISIBLE_DEVICES", "ROLE_RANK", "TORCHELASTIC_RUN_ID"} & set(variables)
    assert variables["JOBSDK_DEEPSPEED_CONFIG"] == f"{tmp_path}/deepspeed.json"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": "//x", # y\n /* , } */ "b": [1, 2,],}', {"a": "//x", "b": [1, 2]}),
        (json.dumps({"a": 'q" , } # \\'}), {"a": 'q" , } # \\'}),
    ],
)
def test_a_configuration_may_have_comments(text: str, content: dict[str, Any]) -> None:
    assert parse_config(text) == content


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"a": 1, "a": 2}', "'a' stands in it twice"), ("3", "not a mapping"), ("{\n a", "line 2 column 2")],
)
def test_what_is_no_configuration(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_config(text)
