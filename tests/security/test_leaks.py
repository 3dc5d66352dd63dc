"""Secrets that stay at home: by the name of a variable, and by what a file of the code holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobsdk import MLClient, command
from jobsdk.snapshot import digests
from jobsdk.snapshot.copy import fingerprint, take
from jobsdk.snapshot.listing import scan

PEM = "-----BEGIN {} KEY-----\nMC4CAQAwBQYDK2VwBCIEIHw\n-----END {} KEY-----\n"
KEYS = {
    "openssh": PEM.replace("{}", "OPENSSH PRIVATE"),
    "pkcs8": PEM.replace("{}", "PRIVATE"),
    "encrypted": PEM.replace("{}", "ENCRYPTED PRIVATE"),
    "rsa": PEM.replace("{}", "RSA PRIVATE"),
    "ec": "\ufeff\r\n" + PEM.replace("{}", "EC PRIVATE"),
    "commented": "# my key\n# of 2024\n\n" + PEM.replace("{}", "PRIVATE"),
    "attributes": "Bag Attributes\n    localKeyID: 54 69\nKey Attributes: <No Attributes>\n"
    + PEM.replace("{}", "PRIVATE"),
    "parameters": "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    + PEM.replace("{}", "EC PRIVATE"),
    "pgp": "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBGB\n-----END PGP PRIVATE KEY BLOCK-----\n",
    "ssh2": "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nP2/56wAAAi4AAAA3aWYtbW9kbntzaWdue3JzYS1wa2NzMX\n",
    "putty": "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: me\n",
    "age": "# created: 2024-01-03T20:21:24Z\n# public key: age1s3f0\nAGE-SECRET-KEY-1GFPYYSJZGFPYYSJZGFPYYSJZ\n",
    "minisign": "untrusted comment: minisign encrypted secret key\nRWRTY0Iyjh2vB4bZ9LqSzkLkVLN0KNVyQ\n",
    "google": '{\n  "type": "service_account",\n  "project_id": "p",\n  "private_key_id": "0123"\n}\n',
}
NONE = {
    "public": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n",
    "certificate": "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkq\n-----END CERTIFICATE-----\n",
    "docs.md": "# Keys\n\nA key begins with `-----BEGIN PRIVATE KEY-----`, and ends with the same.\n",
    "keys.py": 'MARK = "-----BEGIN PRIVATE KEY-----"\nassert text.startswith(MARK), "this is no private key"\n',
    "recipient": "# an age recipient\nage1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\n",
    "empty": "",
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def taken(code: Path) -> list[str]:
    return [file.path for file in scan(code).files]


@pytest.mark.parametrize("name", ["key.txt", "notes", "deep/data.bin"])
@pytest.mark.parametrize("kind", KEYS)
def test_a_private_key_does_not_travel_whatever_its_file_is_called(code: Path, kind: str, name: str) -> None:
    (code / "deep").mkdir()
    (code / name).write_text(KEYS[kind], newline="")
    (code / "train.py").write_text("pass\n")
    assert taken(code) == ["train.py"]
    (warning,) = scan(code).warnings
    assert warning.startswith(f"{name} holds a private key and is left out of the code")
    told: list[str] = []
    run = MLClient().jobs.create_or_update(command(command="true", code=code), warn=told.append).wait()
    assert not (run.folder.code / name).exists()
    assert [text for text in told if "private key" in text] == [f"code: {warning}"]


@pytest.mark.parametrize("name", NONE)
def test_what_only_speaks_of_keys_travels(code: Path, name: str) -> None:
    (code / name).write_text(NONE[name])
    assert taken(code) == [name]


def test_a_key_that_is_named_travels_and_is_found_again(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of unchanged files, so that they are not read again, hides no key."""
    monkeypatch.setattr(digests, "_TOO_YOUNG", -(10**18))
    (code / "key.txt").write_text(KEYS["age"])
    (code / "a.txt").write_text("a" * 100)
    assert taken(code) == ["a.txt"]
    (code / ".amlignore").write_text("!key.txt\n")
    assert taken(code) == [".amlignore", "a.txt", "key.txt"]
    before = fingerprint(code)
    assert take(code, code.parent / "copy").hash == before
    assert os.stat(code.parent / "copy/key.txt").st_mtime_ns == os.stat(code / "key.txt").st_mtime_ns
    (code / ".amlignore").unlink()
    assert taken(code) == ["a.txt"]
    (code / "a.txt").write_text(KEYS["pkcs8"])
    assert taken(code) == []


def test_a_file_that_has_not_changed_is_not_opened_again(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_TOO_YOUNG", -(10**18))
    (code / "a.txt").write_text("a" * 100)
    fingerprint(code)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **named: opened.append(str(path)) or real(path, *more, **named))
    assert taken(code) == ["a.txt"]
    assert [path for path in opened if path.endswith("a.txt")] == []


@pytest.mark.parametrize("name", ["MY_PASS", "SERVICE_PWD", "ldap_passwd"])
def test_a_password_by_the_last_word_of_its_name_is_written_nowhere(home: Path, name: str) -> None:
    job = command(command=f'test -n "${name}"', environment_variables={name: "hunter2-hunter2"})
    compiled = MLClient().jobs.compile(job)
    assert "hunter2-hunter2" not in repr(compiled.native) + repr(compiled.plan)
    run = MLClient().jobs.create_or_update(job).wait()
    assert run.status == "Completed", run.report
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {"plan.json", "native.json", "run.json", "job.yml", "history.db"} <= {path.name for path in files}
    assert [path for path in files if b"hunter2-hunter2" in path.read_bytes()] == []
