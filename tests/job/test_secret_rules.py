"""What is said of a job's secrets, and that saying it does not show them."""

from __future__ import annotations

import pytest

from jobsdk import Input, command
from jobsdk.errors import ValidationError
from jobsdk.job.command import CommandJob
from jobsdk.job.secret_rules import names, without
from jobsdk.job.yaml_file import load_job

TOKEN = "hf_" + "aBcD" * 9


def said(job: CommandJob) -> dict[str, str]:
    return {".".join(map(str, one.path)): f"{one.severity}: {one.message}. {one.fix}" for one in job.findings()}


def test_secrets_are_declared_or_found() -> None:
    job = command(
        command="x",
        environment_variables={"HF_TOKEN": "anything", "URL": "redis://me:hunter22@h", "N": "1", "ARGS": "-p anything"},
        secrets=["MINE", "N"],
    )
    assert names(job) == ["MINE", "N", "HF_TOKEN", "URL", "ARGS"]


def test_a_declared_secret_that_is_not_set_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "x")
    monkeypatch.delenv("UNSET", raising=False)
    found = said(command(command="x", secrets=["SET", "UNSET", "GIVEN"], environment_variables={"GIVEN": "y"}))
    assert found == {
        "secrets.1": "warning: UNSET is not set here, so the job cannot be submitted from here. "
        "export UNSET before submitting, or add it to environment_variables"
    }


def test_a_secret_in_the_command_is_warned_of_with_its_place() -> None:
    text = f"command: |\n  echo begin\n  curl -H 'token: {TOKEN}' h\nenvironment_variables: {{PASS_WORD: hunter22}}\n"
    (found,) = load_job_text(text).findings()
    assert (found.severity, found.path, found.line, found.column) == ("warning", ("command",), 3, 19)
    assert TOKEN not in str(found)
    assert "environment_variables" in found.fix
    job = command(command="x --pw hunter22", environment_variables={"DB_PASSWORD": "hunter22"})
    assert said(job)["command"].endswith('write "$DB_PASSWORD" in its place')


def load_job_text(text: str) -> CommandJob:
    import io

    return load_job(io.StringIO(text))


def test_a_secret_literal_is_warned_of() -> None:
    job = command(command="x ${{inputs.hub_token}} ${{inputs.n}}", inputs={"hub_token": "anything", "n": TOKEN})
    found = said(job)
    assert {name for name in found if name.startswith("inputs")} == {"inputs.hub_token", "inputs.n"}
    assert not any(TOKEN in text for text in found.values())


def test_ordinary_jobs_are_not_warned_of() -> None:
    job = command(
        command='train --token "$HF_TOKEN" --tokenizer ${{inputs.tokenizer}} --max-tokens ${{inputs.max_tokens}}',
        inputs={"tokenizer": "bert-base-uncased", "max_tokens": 100000},
        environment_variables={"HF_TOKEN": TOKEN, "TOKENIZERS_PARALLELISM": "false"},
    )
    assert said(job) == {}


def test_an_identity_cannot_be_a_secret() -> None:
    assert said(command(command="x", secrets=["RANK"]))["secrets.0"].startswith("error: RANK is set for each process")


@pytest.mark.parametrize("name", ["A-B", "1A", "", TOKEN + "-x"])
def test_secrets_are_names(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        command(command="x", secrets=[name])
    assert TOKEN not in str(caught.value)


def test_a_job_can_be_shown() -> None:
    job = command(
        command=f"x {TOKEN} ${{{{inputs.data}}}} --password hunter22",
        description="uses hunter22",
        environment_variables={"MY_SECRET": "two\nlines 'quoted'", "N": "1"},
        inputs={"key": TOKEN, "data": Input(type="uri_file", path="https://h/d.csv?sig=abcdefgh")},
        tags={"t": TOKEN},
    )
    shown = repr(job)
    for value in (TOKEN, "two", "quoted", "abcdefgh", "hunter22"):
        assert value not in shown
    assert "'MY_SECRET': '***', 'N': '1'" in shown
    assert "https://h/d.csv?sig=***" in shown
    assert job.environment_variables["MY_SECRET"].startswith("two")  # the job itself is as it was
    assert TOKEN in job.to_yaml()


def test_a_job_without_its_secrets_asks_for_them() -> None:
    job = command(command="x", environment_variables={"MY_SECRET": "hunter22", "N": "1"}, inputs={"n": 3})
    bare = without(job)
    assert bare.to_dict() == {
        "type": "command", "command": "x", "environment_variables": {"N": "1"}, "secrets": ["MY_SECRET"],
        "inputs": {"n": 3},
    }  # fmt: skip
    assert CommandJob(**bare.to_dict()) == bare
