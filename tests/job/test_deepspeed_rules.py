"""DeepSpeed's configuration: what is found in it, and that DeepSpeed itself judges its batch sizes in the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobsdk import DeepSpeedDistribution, MLClient, command, load_job
from jobsdk.findings import Finding, dotted
from jobsdk.job.deepspeed_rules import DATA, MICRO, SEQUENCE, STEPS, TOTAL, find_misfit


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code folder of the jobs below."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "src"


def found(text: str = "python train.py", nodes: int = 2, **fields: Any) -> list[Finding]:
    """The errors of a job with 2 processes on each node."""
    distribution = DeepSpeedDistribution(process_count_per_instance=2, **fields)
    job = command(command=text, code="src", distribution=distribution, instance_count=nodes)
    return [finding for finding in job.findings() if finding.is_error]


@pytest.mark.parametrize(
    ("config", "key", "says"),
    [
        ({TOTAL: 30, MICRO: 4, STEPS: 2}, TOTAL,
         f"{TOTAL} 30 is not {MICRO} 4 x {STEPS} 2 x 4 processes (2 nodes x 2) = 32. Fix: write {TOTAL}: 32"),
        ({TOTAL: 30, MICRO: 4}, TOTAL,
         f"{TOTAL} 30 is no multiple of {MICRO} 4 x 4 processes (2 nodes x 2) = 16. Fix: write {TOTAL}: 32"),
        ({TOTAL: 2, STEPS: 2}, TOTAL,
         f"no multiple of {STEPS} 2 x 4 processes (2 nodes x 2) = 8. Fix: write {TOTAL}: 8"),
        ({TOTAL: 33}, TOTAL, f"33 is no multiple of 4 processes (2 nodes x 2). Fix: write {TOTAL}: 32"),
        ({TOTAL: 9, SEQUENCE: 2}, TOTAL, f"4 processes (2 nodes x 2) / {SEQUENCE} 2 = 2. Fix: write {TOTAL}: 8"),
        ({TOTAL: 9, SEQUENCE: 2, DATA: 2}, TOTAL, f"{TOTAL} 9 is no multiple of {DATA} 2"),
        ({TOTAL: 8, SEQUENCE: 2, DATA: 4}, DATA, f"{DATA} 4 x {SEQUENCE} 2 is not the job's 4 processes"),
        ({MICRO: 0}, MICRO, f"{MICRO} must be a number greater than 0, not 0"),
        ({TOTAL: 8, STEPS: -1}, STEPS, "not -1"),
        ({TOTAL: "8"}, TOTAL, "not '8'"),
        ({MICRO: [1, 2]}, MICRO, "not a list"),
        ({TOTAL: 8, SEQUENCE: 0}, SEQUENCE, "not 0"),
        ({STEPS: 2}, None, f"neither {TOTAL} nor {MICRO} is given. Fix: add {MICRO}"),
        ({"zero_optimization": {"stage": 1}}, None, "is given"),
    ],
)  # fmt: skip
def test_batch_sizes_that_do_not_come_out(config: dict[str, Any], key: str | None, says: str) -> None:
    (finding,) = found(config=config)
    assert dotted(finding.path) == "distribution.config" + (f".{key}" if key else "")
    assert says in str(finding)
    assert len(str(finding)) <= 400


@pytest.mark.parametrize(
    "config",
    [
        {TOTAL: 32, MICRO: 4, STEPS: 2},
        {TOTAL: 32, MICRO: 4},
        {TOTAL: 32},
        {MICRO: 3},
        {MICRO: 3, STEPS: 5},
        {TOTAL: None, MICRO: 3},
        {TOTAL: 6, SEQUENCE: 2},
        {TOTAL: 30, MICRO: "auto", STEPS: "auto"},
        {TOTAL: 30, MICRO: 4, "pipeline": {"stages": "auto"}},
    ],
)
def test_batch_sizes_that_come_out(config: dict[str, Any]) -> None:
    assert found(config=config) == []


def test_the_fix_fits() -> None:
    (finding,) = found(config={TOTAL: 50, MICRO: 5}, nodes=3)
    fit = int(finding.fix.split(": ")[1].split(",")[0])
    assert found(config={TOTAL: fit, MICRO: 5}, nodes=3) == []


def test_the_place_in_a_job_file(tmp_path: Path) -> None:
    text = (
        "command: python train.py\ncode: src\nresources: {instance_count: 2}\n"
        "distribution:\n  type: deepspeed\n  config:\n    train_batch_size: 33\n"
    )
    (tmp_path / "job.yml").write_text(text)
    (finding,) = (finding for finding in load_job(tmp_path / "job.yml").findings() if finding.is_error)
    assert (finding.line, finding.column) == (7, 23)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"config": "ds.json"}, "distribution.config"),
        ({"text": "python train.py --deepspeed --deepspeed_config ds.json"}, "command"),
        ({"text": "python train.py --deepspeed ./ds.json --epochs 3"}, "command"),
    ],
)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps({TOTAL: 33}), f"ds.json', {TOTAL} 33 is no multiple of 4 processes"),
        ("{", "cannot be read as JSON: Expecting property name"),
        ("[1]", "cannot be read as JSON: it is not a mapping"),
        ("", "cannot be read as JSON"),
        ('{\n  "steps" 1}', "line 2 column 11"),
        (f'{{"{TOTAL}": 8, "{TOTAL}": 9}}', f"the key '{TOTAL}' stands in it twice"),
    ],
)
def test_files(fields: dict[str, Any], path: str, content: str, says: str, code: Path) -> None:
    (code / "ds.json").write_text(content)
    (finding,) = found(**fields)
    assert dotted(finding.path) == path
    assert says in str(finding)


def test_files_may_have_comments_as_deepspeed_lets_them(code: Path) -> None:
    (code / "ds.json").write_text(
        f'{{\n  // for "4" processes\n  "{TOTAL}": 8, # two each\n  /* a\n  b */ "text": "a // b, }}",\n}}\n'
    )
    assert found(config="ds.json") == []


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --deepspeed_config made-by-the-script.json",
        "python train.py --deepspeed",
        "cd sub && python train.py --deepspeed_config ds.json",
    ],
)
def test_a_file_that_is_not_surely_meant_is_left_alone(text: str, code: Path) -> None:
    (code / "ds.json").write_text("no JSON")
    assert found(text) == []


def test_autotuning_begins_with_a_micro_batch_of_one() -> None:
    fields = {"text": "python train.py --deepspeed_config $JOBSDK_DEEPSPEED_CONFIG", "nodes": 1}
    tuned = {"launcher": "deepspeed", "autotuning": "tune"}
    assert found(**fields, config={MICRO: [4, 8]}, **tuned) == []
    (finding,) = found(**fields, config={TOTAL: 32, MICRO: [4, 8], STEPS: 4}, **tuned)
    assert "the autotuner's first trial has the micro batch size 1" in finding.message


@pytest.mark.parametrize(
    ("text", "config", "severity", "says"),
    [
        ("--deepspeed_config $JOBSDK_DEEPSPEED_CONFIG", None, "error", "only where the distribution has a config"),
        ("--deepspeed_config missing.json", None, "warning", "missing.json is not in the code folder"),
        ("--deepspeed_config ds.json", {TOTAL: 8}, "warning", "distribution.config is another configuration"),
    ],
)
def test_the_configuration_that_is_passed_on(text: str, config: Any, severity: str, says: str, code: Path) -> None:
    (code / "ds.json").write_text("{}")
    distribution = DeepSpeedDistribution(process_count_per_instance=2, config=config)
    job = command(command=f"python train.py {text}", code=code, distribution=distribution, instance_count=2)
    (finding,) = job.findings()
    assert (finding.severity, finding.path) == (severity, ("command",))
    assert says in finding.message


def test_the_last_file_that_is_named_counts_in_either_spelling(code: Path) -> None:
    (code / "good.json").write_text(json.dumps({TOTAL: 8}))
    (code / "bad.json").write_bytes(b"\xef\xbb\xbf" + json.dumps({TOTAL: 30, MICRO: 8}).encode())  # Windows' mark
    good, bad = "--deepspeed_config good.json", "--deepspeed_config=bad.json"
    assert not found(f"python train.py {bad} {good}")
    (finding,) = found(f"python train.py {good} {bad}")
    assert "in 'bad.json', train_batch_size 30" in str(finding)


def test_several_nodes_are_tuned_on_this_machine_too() -> None:
    distribution = DeepSpeedDistribution(launcher="deepspeed", autotuning="tune", config={MICRO: 1})
    text = "python train.py --deepspeed_config $JOBSDK_DEEPSPEED_CONFIG"
    job = command(command=text, code="src", distribution=distribution, instance_count=2)
    found = MLClient().jobs.validate(job).findings
    assert not any(one.is_error for one in found)
    assert not any(one.path == ("distribution", "autotuning") for one in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("python train.py", "add --deepspeed_config FILE"),
        ("python -m train --deepspeed_config ds.json", "starts one Python script"),
        ("train --deepspeed_config ds.json", "starts one Python script"),
        ("python train.py --deepspeed_config ds.json && echo done", "starts one Python script"),
        ("python train.py --deepspeed_config ds.json &", "starts one Python script"),
    ],
)
def test_a_command_that_cannot_be_tuned(text: str, says: str) -> None:
    (finding,) = found(text, nodes=1, launcher="deepspeed", autotuning="run")
    assert dotted(finding.path) == "command"
    assert says in str(finding)


whole = st.integers(-1, 24)
size = st.one_of(st.none(), whole, whole, st.sampled_from([1.0, 2.5, 8.0, True, False, "8", [8], {}, 10**30, 1e308]))
few = st.integers(1, 4)


@pytest.fixture
def accepts() -> Any:
    """Whether DeepSpeed's own configuration takes these batch sizes in so many processes."""
    import deepspeed.runtime.config as theirs

    def judge(config: dict[str, Any], processes: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            # Where no process group has been made, it takes the world to have one process.
            patch.setattr(theirs.dist, "get_rank", lambda *_: 0)
            patch.setattr(theirs.dist, "get_world_size", lambda *_: processes)
            try:
                theirs.DeepSpeedConfig(dict(config))
            except (AssertionError, TypeError, ZeroDivisionError, OverflowError):
                return False
        return True

    return judge


@pytest.mark.framework("deepspeed")
@settings(derandomize=True, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(total=size, micro=size, steps=size, sequence=st.none() | whole, nodes=few, each=few, even=st.booleans())
def test_deepspeed_judges_the_same(
    accepts: Any, total: Any, micro: Any, steps: Any, sequence: Any, nodes: int, each: int, even: bool
) -> None:
    if even and isinstance(micro, int) and isinstance(steps, int):  # otherwise hardly one comes out
        total = micro * steps * nodes * each
    sizes = zip((TOTAL, MICRO, STEPS), (total, micro, steps), strict=True)
    config = {key: value for key, value in sizes if value is not None}
    if sequence is not None:
        config[SEQUENCE] = sequence
    misfit = find_misfit(config, nodes, each)
    assert (misfit is None) == accepts(config, nodes * each), misfit
