"""A machine that ssh reaches: commands, files, code and what a run has written, with a real sshd."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.bootstrap import archive
from jobsdk.bootstrap.transport import pull
from jobsdk.compute.hosts import remote
from jobsdk.compute.hosts.remote import RemoteHost
from jobsdk.errors import ComputeError
from jobsdk.runs.folder import RunFolder
from jobsdk.snapshot import copy
from tests.compute.ssh.sshd import Sshd, end_connections


@pytest.fixture
def there(sshd: Sshd, home: Path) -> Iterator[RemoteHost]:
    """A host with rsync."""
    yield RemoteHost(sshd.add("there"), sshd.options, sys.executable)
    end_connections(home)


@pytest.fixture
def bare(sshd: Sshd, home: Path) -> Iterator[RemoteHost]:
    """A host with nothing but a shell and Python."""
    (sshd.folder / "bin").mkdir(exist_ok=True)
    if not (sshd.folder / "bin/sh").exists():
        (sshd.folder / "bin/sh").symlink_to("/bin/sh")
    yield RemoteHost(sshd.add("bare", variables=f"PATH={sshd.folder}/bin"), sshd.options, sys.executable)
    end_connections(home)


# -- commands


def test_a_home_with_a_space_and_what_ssh_would_expand(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="a b%h ") as home:  # short: otherwise the sockets would lie elsewhere
        monkeypatch.setenv("JOBSDK_HOME", home)
        host = RemoteHost(sshd.add("spaced"), sshd.options)
        try:
            assert host.run(["echo", "yes"]).out == "yes\n"
            assert host.socket.is_socket()
            assert host.socket.is_relative_to(home)
        finally:
            end_connections(Path(home))


def test_every_word_arrives_as_it_is(there: RemoteHost) -> None:
    words = ["a b", "$HOME", "it's", '"', "", "*", "ü\n"]
    answer = there.run([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
    assert (answer.code, answer.out) == (0, f"{words}\n")


def test_stdin_environment_folder_and_exit_code(there: RemoteHost, tmp_path: Path) -> None:
    text = 'cat; echo "$GIVEN in $(pwd)"; echo wrong >&2; exit 3'
    answer = there.run(["sh", "-c", text], data=b"in\n", environ={"GIVEN": "a 'b'"}, cwd=str(tmp_path))
    assert answer == (3, f"in\na 'b' in {tmp_path}\n", "wrong\n")


def test_a_command_that_takes_too_long_or_is_not_there(there: RemoteHost) -> None:
    with pytest.raises(ComputeError, match=r"there has not answered for 0\.5 s"):
        there.run(["sleep", "5"], timeout=0.5)
    with pytest.raises(ComputeError, match="there is no squeue9 on there"):
        there.run(["squeue9"])


def test_calls_share_one_connection_and_a_lost_one_is_made_anew(there: RemoteHost) -> None:
    port = ["sh", "-c", "echo $SSH_CONNECTION $PPID"]
    first = there.run(port).out
    assert there.run(port).out == first
    there.close()
    assert there.run(port).out != first


@pytest.mark.parametrize("address", ["", "-oProxyCommand=x", "a b", "user@", "host:", "host:x", "user@-x"])
def test_what_can_be_no_address(address: str) -> None:
    with pytest.raises(ComputeError, match="is no address for ssh"):
        RemoteHost(address)


def test_addresses_are_taken_apart() -> None:
    argv = RemoteHost("me@gpu-1.example:2222").ssh()
    assert argv[-5:] == ["-T", "-p", "2222", "--", "me@gpu-1.example"]
    assert RemoteHost("[::1]:22").ssh()[-4:] == ["-p", "22", "--", "::1"]
    assert RemoteHost("alias").ssh()[-2:] == ["--", "alias"]


# -- what goes wrong


def _error(host: RemoteHost) -> str:
    with pytest.raises(ComputeError) as raised:
        host.run(["true"])
    return str(raised.value)


def test_a_name_that_nobody_knows(sshd: Sshd) -> None:
    sshd.add("there")
    assert "nowhere.invalid: ssh does not know that name. Fix: " in _error(RemoteHost("nowhere.invalid", sshd.options))


def test_a_port_where_nobody_listens(sshd: Sshd, home: Path) -> None:
    address = sshd.listen("plain")
    assert RemoteHost(address, sshd.options).run(["echo", "yes"]).out == "yes\n"
    end_connections(home)
    sshd.close()
    text = _error(RemoteHost(address, sshd.options))
    assert text.startswith(f"{address}: nothing listens there: ")
    assert "Connection refused. Fix: " in text


def test_a_host_that_does_not_answer(sshd: Sshd) -> None:
    """A connection that is opened and then silent."""
    name = sshd.add("silent")
    silent = RemoteHost(name, (*sshd.options, "-o", "ProxyCommand=sleep 60", "-o", "ConnectTimeout=1"))
    assert "silent: it does not answer: " in _error(silent)


def test_a_host_that_refuses_the_key(sshd: Sshd) -> None:
    text = _error(RemoteHost(sshd.add("strict"), (*sshd.options, "-o", "PubkeyAuthentication=no")))
    assert "strict: it refuses every key that ssh offers (it takes publickey). Fix: " in text


def test_host_keys_that_are_unknown_or_others(sshd: Sshd, tmp_path: Path) -> None:
    name = sshd.add("there")
    known = tmp_path / "known_hosts"
    options = (*sshd.options, "-o", f"UserKnownHostsFile={known}")
    assert "there: its host key is not known here yet. Fix: " in _error(RemoteHost(name, options))
    other = (sshd.folder / "key.pub").read_text().split()
    known.write_text(f"{(sshd.folder / 'known_hosts').read_text().split()[0]} {other[0]} {other[1]}\n")
    assert f"there: its host key is another one than in {known}:1. Fix: " in _error(RemoteHost(name, options))


@pytest.mark.engine("ssh")
def test_a_configuration_that_ssh_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("NoSuchOption yes\n")
    assert "ssh's configuration cannot be used: " in _error(RemoteHost("x", ("-F", str(tmp_path / "config"))))


def test_no_python_and_an_old_one(sshd: Sshd, there: RemoteHost, tmp_path: Path) -> None:
    absent = RemoteHost("there", sshd.options, "python3-that-is-not")
    with pytest.raises(ComputeError, match=r"there: there is no python3-that-is-not\. Fix: install Python 3\.8"):
        absent.write(str(tmp_path / "x"), {"a": b""})
    old = tmp_path / "python"
    # What the real thing would do: the first thing that every program of ours looks at is the version.
    lie = "import sys; sys.version_info = (3, 7, 3); sys.version = '3.7.3 (old)'; sys.argv = sys.argv[1:]"
    old.write_text(f'#!/bin/sh\nshift 3\nexec {sys.executable} -c "{lie}; exec(sys.argv.pop(0))" "$@"\n')
    old.chmod(0o755)
    with pytest.raises(ComputeError, match=r"is Python 3\.7\.3, and 3\.8 is needed\. Fix: "):
        RemoteHost("there", sshd.options, str(old)).write(str(tmp_path / "x"), {"a": b""})


def test_a_folder_that_cannot_be_written(there: RemoteHost) -> None:
    with pytest.raises(ComputeError, match=r"^there: /proc/nowhere.*: "):
        there.write("/proc/nowhere", {"a": b""})


# -- files


def test_written_files_are_whole_and_private_ones_private(there: RemoteHost, tmp_path: Path) -> None:
    large = os.urandom(1 << 20)
    for content in (b"first", b"second"):
        there.write(str(tmp_path / "w"), {"deep/er/a": content, "token": b"s", "large": large}, private=["token"])
    found = {str(path.relative_to(tmp_path / "w")) for path in (tmp_path / "w").rglob("*") if path.is_file()}
    assert found == {"deep/er/a", "token", "large"}
    assert (tmp_path / "w/deep/er/a").read_bytes() == b"second"
    assert (tmp_path / "w/large").read_bytes() == large
    assert oct((tmp_path / "w/token").stat().st_mode & 0o777) == "0o600"


def test_the_home_there_is_known(there: RemoteHost, sshd: Sshd) -> None:
    there.write("~/mine", {"a": b"1"})
    assert (sshd.home("there") / "mine/a").read_bytes() == b"1"


def test_fetched_files_are_as_they_were(there: RemoteHost, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "below/a b").write_bytes(b"\0\xff")
    (source / "run.sh").write_text("x")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    os.link(source / "run.sh", source / "same")
    there.fetch({str(source): tmp_path / "got", str(source / "run.sh"): tmp_path / "one/file"})
    assert (tmp_path / "got/below/a b").read_bytes() == b"\0\xff"
    assert os.access(tmp_path / "got/run.sh", os.X_OK)
    assert os.readlink(tmp_path / "got/link") == "run.sh"
    assert (tmp_path / "got/same").read_text() == (tmp_path / "one/file").read_text() == "x"
    with pytest.raises(ComputeError, match="there is no /nowhere/at/all on there"):
        there.fetch({"/nowhere/at/all": tmp_path / "none"})


def test_what_a_login_prints_is_passed_over(sshd: Sshd, home: Path, tmp_path: Path, away: Path) -> None:
    """A shell's own files may print; rsync cannot live with that, and tar takes its place."""
    loud = RemoteHost(sshd.add("loud"), sshd.options, sys.executable)
    (sshd.home("loud") / ".bashrc").write_text("echo welcome; echo to >&2\n")
    loud.write(str(tmp_path / "w"), {"a": b"1"})
    source = _code(tmp_path / "source")
    place = loud.send_code(source, copy.fingerprint(source), str(tmp_path / "store"))
    assert copy.fingerprint(Path(place)) == copy.fingerprint(source)
    loud.fetch({str(tmp_path / "w"): tmp_path / "got"})
    run = RunFolder.create("r")
    _event(away, '{"t":1,"event":"started"}\n')
    loud.pull(run, str(away))
    assert run.recorded_state().status == "Running"
    end_connections(home)


# -- code


def _code(folder: Path) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/ünï code.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/ünï code.py")
    (folder / "empty").touch()
    (folder / "cache").mkdir()
    (folder / "cache/large").write_text("not this")
    (folder / ".gitignore").write_text("cache/\n")
    os.utime(folder / "run.sh", (1_600_000_000, 1_600_000_000))
    return folder


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine("ssh")) for name in ("there", "bare")])
def host(request: pytest.FixtureRequest) -> Any:
    """A host with rsync, and one without."""
    return request.getfixturevalue(request.param)


def test_code_arrives_as_a_snapshot_takes_it(host: RemoteHost, tmp_path: Path) -> None:
    source, store = _code(tmp_path / "source"), tmp_path / "store"
    digest = copy.fingerprint(source)
    place = Path(host.send_code(source, digest, str(store)))
    assert place == store / digest.replace(":", "-")
    assert [path.name for path in store.iterdir()] == [place.name], "nothing else is left"
    assert copy.fingerprint(place) == digest
    assert not (place / "cache").exists()
    assert os.access(place / "run.sh", os.X_OK)
    assert int((place / "run.sh").stat().st_mtime) == 1_600_000_000
    assert os.readlink(place / "link") == "pkg/ünï code.py"
    assert oct(place.stat().st_mode & 0o777) == "0o700"


def _never(*_: object) -> None:
    raise AssertionError("that way is not to be taken")


def test_rsync_sends_it_where_both_ends_have_it_and_tar_elsewhere(
    there: RemoteHost, bare: RemoteHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _code(tmp_path / "source")
    digest = copy.fingerprint(source)
    for host, other in ((there, "_send_tar"), (bare, "_rsync")):
        with monkeypatch.context() as patch:
            patch.setattr(RemoteHost, other, _never)
            host.send_code(source, digest, str(tmp_path / host.name))


def test_unchanged_code_is_not_sent_again(host: RemoteHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, store = _code(tmp_path / "source"), str(tmp_path / "store")
    digest = copy.fingerprint(source)
    first = host.send_code(source, digest, store)
    monkeypatch.setattr(RemoteHost, "_rsync", _never)
    monkeypatch.setattr(RemoteHost, "_send_tar", _never)
    assert host.send_code(source, digest, store) == first


def test_code_that_has_changed_gets_a_place_of_its_own(host: RemoteHost, tmp_path: Path) -> None:
    """Also where size and time are the same: only what it holds counts."""
    source, store = _code(tmp_path / "source"), str(tmp_path / "store")
    first = host.send_code(source, copy.fingerprint(source), store)
    (source / "run.sh").write_text("#!/bin/xx\n"[:10])
    os.utime(source / "run.sh", (1_600_000_000, 1_600_000_000))
    digest = copy.fingerprint(source)
    second = host.send_code(source, digest, store)
    assert first != second
    assert copy.fingerprint(Path(second)) == digest


def test_code_that_changes_while_it_is_sent_is_named_by_what_arrived(host: RemoteHost, tmp_path: Path) -> None:
    source = _code(tmp_path / "source")
    place = host.send_code(source, "sha256:" + "0" * 64, str(tmp_path / "store"))
    assert Path(place).name == copy.fingerprint(source).replace(":", "-")


def test_links_out_of_the_folder_are_followed(there: RemoteHost, tmp_path: Path) -> None:
    source, outside = _code(tmp_path / "source"), tmp_path / "outside"
    outside.mkdir()
    (outside / "data").write_text("far")
    (source / "data").symlink_to(outside / "data")
    digest = copy.fingerprint(source)
    place = Path(there.send_code(source, digest, str(tmp_path / "store")))
    assert (place / "data").read_text() == "far"
    assert not (place / "data").is_symlink()
    assert place.name == digest.replace(":", "-")


def test_two_that_send_the_same_at_once(host: RemoteHost, tmp_path: Path) -> None:
    source, store = _code(tmp_path / "source"), tmp_path / "store"
    digest = copy.fingerprint(source)
    places: list[str] = []
    threads = [threading.Thread(target=lambda: places.append(host.send_code(source, digest, str(store)))) for _ in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert places == [str(store / digest.replace(":", "-"))] * 2
    assert len(list(store.iterdir())) == 1


# -- what a run has written


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """A run's folder on the other machine."""
    folder = tmp_path / "away"
    (folder / "logs/node-0").mkdir(parents=True)
    (folder / "bootstrap.pyz").write_bytes(archive.build())
    return folder


def _event(folder: Path, text: str) -> None:
    with open(folder / "events.jsonl", "a") as file:
        file.write(text)


def test_what_is_new_is_pulled(there: RemoteHost, away: Path) -> None:
    run = RunFolder.create("r")
    run.append_event("submitted")
    _event(away, '{"t":1,"event":"bootstrap_up"}\n{"t":2,"event":"sta')
    log = away / "logs/node-0/rank-0.log"
    log.write_bytes(b"one\n")
    there.pull(run, str(away))
    here = run.logs / "node-0/rank-0.log"
    assert [event["event"] for event in run.events()] == ["submitted", "bootstrap_up"], "whole lines only"
    assert here.read_bytes() == b"one\n"

    run.append_event("cancel_requested")
    _event(away, 'rted"}\n{"t":3,"event":"ended","status":"Completed","exit_code":0}\n')
    with open(log, "ab") as file:
        file.write(b"\xff\r two" * 300_000)
    (away / "report.json").write_text('{"status": "Completed"}')
    (away / "stacks-1.json").write_text("{}")
    inode = here.stat().st_ino
    for _ in range(2):
        there.pull(run, str(away))
    assert [event["event"] for event in run.events()][2:] == ["cancel_requested", "started", "ended"]
    assert here.read_bytes() == log.read_bytes()
    assert here.stat().st_ino == inode, "it grows: who follows it goes on"
    assert run.report() == {"status": "Completed"}
    assert (run.path / "stacks-1.json").exists()
    assert not (away / "stacks-1.json").exists(), "answers are given once"


def test_files_that_were_replaced_are_pulled_as_a_whole(there: RemoteHost, away: Path) -> None:
    run, log = RunFolder.create("r"), away / "logs/node-0/rank-0.error.json"
    for content in (b"the first text", b"short", b"the other one, longer"):
        log.write_bytes(content)
        there.pull(run, str(away))
        assert (run.logs / "node-0/rank-0.error.json").read_bytes() == content


def test_a_connection_that_tears_leaves_a_correct_beginning(
    there: RemoteHost, away: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no event is taken in before what it tells of."""
    run, whole = RunFolder.create("r"), os.urandom(3 << 20)
    (away / "logs/node-0/rank-0.log").write_bytes(whole)
    _event(away, '{"t":3,"event":"ended","status":"Completed","exit_code":0}\n')
    start = RemoteHost.start

    def torn(host: RemoteHost, argv: list[str]) -> Any:
        return start(host, ["sh", "-c", '"$@" | head -c 2000000', "sh", *argv])

    with monkeypatch.context() as patch:
        patch.setattr(RemoteHost, "start", torn)
        with pytest.raises(ComputeError, match="there: the connection was lost"):
            there.pull(run, str(away))
    here = run.logs / "node-0/rank-0.log"
    part = here.read_bytes()
    assert 0 < len(part) < len(whole)
    assert whole.startswith(part)
    assert not run.recorded_state().is_terminal
    there.pull(run, str(away))
    assert here.read_bytes() == whole
    assert run.recorded_state().status == "Completed"


def test_two_that_pull_at_once_take_every_event_once(there: RemoteHost, away: Path) -> None:
    run = RunFolder.create("r")
    _event(away, "".join(json.dumps({"t": n, "event": "waiting", "n": n}) + "\n" for n in range(100)))
    threads = [threading.Thread(target=there.pull, args=(run, str(away))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event["n"] for event in run.events()] == list(range(100))


def test_a_folder_that_is_gone_is_said_plainly(there: RemoteHost, tmp_path: Path) -> None:
    with pytest.raises(ComputeError, match=r"there: /.*/gone of run r is not there any more"):
        there.pull(RunFolder.create("r"), str(tmp_path / "gone"))


def test_a_pull_that_hangs_is_given_up(
    there: RemoteHost, away: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PULL_TIMEOUT_S", 0.5)
    # It says nothing, and ends when nobody listens any more.
    (away / "bootstrap.pyz").write_text("import select\nit = select.poll()\nit.register(1, 0)\nit.poll()\n")
    with pytest.raises(ComputeError, match=r"^there has not answered for 0\.5 s$"):
        there.pull(RunFolder.create("r"), str(away))


def test_nothing_is_written_outside_the_runs_folder(there: RemoteHost, tmp_path: Path) -> None:
    """Whatever the other end says."""
    run, away = RunFolder.create("r"), tmp_path / "away"
    away.mkdir()
    frame = b'{"path": "logs/../../x", "at": 0, "size": 1}' + b"\ny"
    liar = f"import sys; sys.stdout.buffer.write({pull.MARK + frame!r})"
    (away / "bootstrap.pyz").write_text(liar)
    with pytest.raises(ComputeError, match="which is no file of a run"):
        there.pull(run, str(away))
