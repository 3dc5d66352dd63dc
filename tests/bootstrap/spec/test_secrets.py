"""What counts as secret and what does not, and that it is kept out of text."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from jobsdk.bootstrap.spec import secrets
from jobsdk.bootstrap.spec.secrets import Redactor

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx9\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
#: Text that holds a secret by its form, and the part that is secret.
FORMS = {
    "hf_" + "aB" * 17: "hf_" + "aB" * 17,
    "sk-" + "a1" * 24: "sk-" + "a1" * 24,
    "sk-proj-" + "a_1-" * 8: "sk-proj-" + "a_1-" * 8,
    "ghp_" + "a1" * 18: "ghp_" + "a1" * 18,
    "github_pat_" + "A1_" * 12: "github_pat_" + "A1_" * 12,
    "glpat-" + "x1" * 10: "glpat-" + "x1" * 10,
    "AKIA" + "B2" * 8: "AKIA" + "B2" * 8,
    "xoxb-123456789012-abcdef": "xoxb-123456789012-abcdef",
    "AIza" + "c3_" * 12: "AIza" + "c3_" * 12,
    JWT: JWT,
    KEY: KEY,
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=Zm9vYmFyYmF6cXV4cQ==;x": "Zm9vYmFyYmF6cXV4cQ==",
    "https://a.blob.core.windows.net/c/f.csv?sv=2024&sig=aBc%2Bd%3D&se=1": "aBc%2Bd%3D",
    "s3 https://b.s3.amazonaws.com/k?X-Amz-Signature=0123456789abcdef": "0123456789abcdef",
    "postgresql://user:hunter2@host/db": "hunter2",
    "pip --index-url https://me:pa55word@pypi.example/simple": "pa55word",
    "Authorization: Bearer abc123.def456-ghi789": "abc123.def456-ghi789",
}
ORDINARY = """hf_transformers_model hf_hub_download sk-learn-intelligent-extension-2024
task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa AKIATOOSHORT ghp_short xoxo-hugs https://host.example:8080/a@b?design=1&max_tokens=512
postgresql://$USER:$PASSWORD@host/db
http://[::1]:8080/x a:b@c eyJ.eyJ key=value sigma=0.123456789 bearer of-good-news /data/AIza tokens=123456789
user@host:path s3://bucket/key?versionId=123456
sha256:9f86d081884c7d659a2feaa0c55ad015""".split()
SECRET_NAMES = """HF_TOKEN HUGGING_FACE_HUB_TOKEN WANDB_API_KEY AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN DB_PASSWORD
MYSQL_PWD DB_PASS PGPASSWORD SMTP_PASSWD GITHUB_TOKEN AZURE_CLIENT_SECRET AZURE_STORAGE_CONNECTION_STRING
SAS_TOKEN STORAGE_SAS SSH_PRIVATE_KEY OPENAI_APIKEY apiKey hub-token api_secret MY_CREDENTIALS KEY_PASSPHRASE
MY_PASS PASS service_pass SVC_PWD ldapPasswd HUB_PASSWD MODEM_PWD ROOT_PASS
JOBSDK_TOKEN PYTHON_WORKER_FACTORY_SECRET STORAGE_ACCOUNT_KEY""".split()
ORDINARY_NAMES = """TOKENIZERS_PARALLELISM MAX_TOKENS MAX_TOKEN_LENGTH KEYBOARD MONKEY PAD_TOKEN_ID EOS_TOKEN PAD_TOKEN
TOKENS_PER_BATCH TOKEN_LIMIT PWD OLDPWD GPG_KEY PUBLIC_KEY SSH_AUTH_SOCK TOKEN_URL SECRET_NAME PASSWORD_FILE
AWS_ACCESS_KEY_ID FORWARD_PASS PASS_RATE COMPASS_DIR PRIMARY_KEY KEY SASS_PATH TOKENIZER SECRETARY NUM_PASSES
STRING CONNECTION BYPASS OLD_PWD HOST_PWD INITIAL_PWD LOW_PASS BACKWARD_PASS SECOND_PASS PASS_MANAGER_DIR""".split()


@pytest.mark.parametrize("text", FORMS)
def test_forms_of_secrets_are_known(text: str) -> None:
    assert secrets.is_secret("X", text)
    for around in ("%s", "say '%s', please", "x=%s\nnext"):
        whole = around % text
        assert FORMS[text] in whole
        assert FORMS[text] not in secrets.redacted(whole)
    assert secrets.redacted(text).count("***") == 1


def test_only_the_secret_part_is_hidden() -> None:
    assert (
        secrets.redacted("get https://a.example/c?sv=1&sig=abc%2Bdef&se=2!")
        == "get https://a.example/c?sv=1&sig=***&se=2!"
    )
    assert secrets.redacted("psql postgres://me:hunter2@h/db?x=1") == "psql postgres://me:***@h/db?x=1"


@pytest.mark.parametrize("text", [*ORDINARY, "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkq"])
def test_what_only_resembles_one_is_left_alone(text: str) -> None:
    assert secrets.redacted(text) == text
    assert not secrets.is_secret("X", text)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret(name, "correct horse")


@pytest.mark.parametrize("name", ORDINARY_NAMES)
def test_names_that_are_none(name: str) -> None:
    assert not secrets.is_secret(name, "correct horse")


@pytest.mark.parametrize(
    "value", ["", "0", "1", "true", "False", "none", "512", "$HOME", "${HF_TOKEN}", "<your token>", "***"]
)
def test_switches_and_references_are_no_secrets(value: str) -> None:
    assert not secrets.is_secret("HF_HUB_DISABLE_IMPLICIT_TOKEN", value)


def test_the_path_of_credentials_is_none() -> None:
    assert not secrets.is_secret("PROJECT_PWD", "/home/me/project")
    assert secrets.is_secret("PROJECT_PWD", "hunter2")
    assert not secrets.is_secret("GOOGLE_APPLICATION_CREDENTIALS", "/home/me/key.json")
    assert secrets.is_secret("GOOGLE_APPLICATION_CREDENTIALS", '{"type": "service_account"}')
    assert secrets.is_secret("DB_PASSWORD", "$wordfish")
    assert secrets.is_secret("AWS_SECRET_ACCESS_KEY", "/bPxRfiCYEXAMPLEKEYwJalrXUtnFEMIK7MDENG0")


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python t.py --verbose --token hunter22 --epochs 3", ["hunter22"]),
        ("WANDB_API_KEY=hunter22 python t.py", ["hunter22"]),
        ("export DB_PASSWORD='hunter 22'; python t.py", ["hunter 22"]),
        ('python t.py --api-key="hunter22" trainer.hub_token=hunter23', ["hunter22", "hunter23"]),
        ("curl https://me:hunter22@h/x && echo hf_" + "a" * 34, ["hunter22", "hf_" + "a" * 34]),
        ("python t.py --pw known-value", ["known-value"]),
        ('python t.py --token "$HF_TOKEN" --api-key $KEY --password ${{inputs.p}}', []),
        ("python t.py --tokenizer bert-base --max-tokens 100000 --token-file /run/token.txt --token /run/token", []),
        ("python t.py --pad-token endoftext --use-token true --password --verbose", []),
        ("token hunter22", []),
    ],
)
def test_secrets_that_are_written_into_a_command(command: str, found: list[str]) -> None:
    assert secrets.in_command(command, ["known-value", "short"]) == found


def test_given_values_are_hidden_in_every_form_in_which_programs_write_them() -> None:
    value = "p\"a\\s's\nwörd+/&"
    redactor = Redactor([value])
    for written in (value, repr(value), json.dumps(value), quote(value, safe=""), f"x {value} y {value}"):
        found = redactor.text(f"login with {written} failed")
        assert "wörd" not in found
        assert "w%C3%B6rd" not in found
        assert found.startswith("login with ")
        assert found.endswith(" failed")


def test_lines_of_a_value_are_hidden_and_so_is_what_was_cut() -> None:
    redactor = Redactor([KEY.replace("RSA PRIVATE", "MY"), "correct-horse-battery"])
    assert redactor.text("    MIIEowIBAAKCAQEAx9") == "    ***"
    assert redactor.text("the password is correct-horse-b") == "the password is ***"
    assert redactor.text("correct answers, correct") == "correct answers, ***"  # the price: it may have been cut


def test_short_values_and_longer_ones_that_hold_others() -> None:
    redactor = Redactor(["abc", "abcdef", "abcdefghi"])
    assert redactor.text("abc abcdef abcdefghi!") == "abc *** ***!"


def test_plain_data_keeps_its_shape() -> None:
    data = {"a": ["hunter22", 1, None, {"hunter22": "x hunter22 y"}], "api_key": "q1w2e3", "n": 1.5, "ok": True}
    expected = {"a": ["***", 1, None, {"hunter22": "x *** y"}], "api_key": "***", "n": 1.5, "ok": True}
    assert Redactor(["hunter22"]).data(data) == expected


def test_the_redactor_of_a_job_knows_its_secrets_and_those_that_it_inherits() -> None:
    plan = {"secret_values": ["from-the-plan"], "environment": {"NAME": "public-value"}}
    inherited = {"MY_PASSWORD": "from-the-shell", "https_proxy": "http://me:pr0xyword@proxy:1", "LANG": "C.UTF-8"}
    text = secrets.redactor(plan, inherited).text("from-the-plan public-value from-the-shell pr0xyword C.UTF-8")
    assert text == "*** public-value *** *** C.UTF-8"
