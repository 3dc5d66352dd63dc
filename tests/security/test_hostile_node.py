"""A node of a job answers what its owner did not expect: it gets nothing but the run's own folder."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jobsdk import JobFailed, MLClient, command, function
from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.transport import ssh_files
from jobsdk.bootstrap.transport.extraction import Refused
from jobsdk.client.outcome import RemoteTraceback
from jobsdk.client.run import Run
from jobsdk.compute.engine.hold import Hold
from jobsdk.compute.hosts.gathering import gather
from jobsdk.compute.hosts.remote import RemoteHost
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.runs.folder import RunFolder
from jobsdk.views.live import LiveCard
from tests.compute.ssh.sshd import Sshd, end_connections
from tests.security.archives import DEVICE, FIFO, FILE, FOLDER, HARD, LINK, Member, packed, untouched

LONG = 200.0
Answer = Callable[[Sequence[Member]], RemoteHost]


@pytest.fixture
def node(sshd: Sshd, home: Path, tmp_path: Path) -> Iterator[Answer]:
    """A node, reached by ssh, that sends an archive of one's choice for any file that it is asked for."""
    answer, python = tmp_path / "node/answer", tmp_path / "node/python"
    answer.parent.mkdir()

    def answering(members: Sequence[Member]) -> RemoteHost:
        answer.write_bytes(ssh_files.MARK + b"{}\n" + packed(members))
        real = shlex.quote(sys.executable)
        python.write_text(f'#!/bin/sh\ncase " $* " in *" fetch "*) exec cat {answer} ;; esac\nexec {real} "$@"\n')
        python.chmod(0o755)
        return RemoteHost(sshd.add("hostile"), sshd.options, str(python))

    yield answering
    end_connections(home)


@pytest.mark.parametrize(
    ("attack", "is_refused"),
    [
        ([(LINK, "0", "MINE"), (FILE, "0/.bashrc", "run me")], True),
        ([(LINK, "0/a", "MINE"), (FILE, "0/a/.bashrc", "run me")], False),
        ([(HARD, "0/key", "MINE/secret"), (FILE, "0/key", "other")], True),
        ([(FILE, "-1/.bashrc", "run me")], True),
    ],
)
def test_a_download_writes_the_output_and_nothing_else(
    node: Answer, tmp_path: Path, attack: list[Member], is_refused: bool
) -> None:
    mine, target = tmp_path / "mine", tmp_path / "run/outputs/model"
    mine.mkdir()
    (mine / "secret").write_text("mine")
    host = node([(kind, name, given.replace("MINE", str(mine))) for kind, name, given in attack])
    refused = (
        pytest.raises(ComputeError, match="cannot copy from hostile: ") if is_refused else contextlib.nullcontext()
    )
    with untouched(tmp_path, tmp_path / "run"), refused:
        gather([(0, host, "/outputs/model")], target)
    assert target.exists() != is_refused


def test_links_of_one_node_do_not_lead_the_files_of_another_out(node: Answer, tmp_path: Path) -> None:
    first = node([(FOLDER, "0/b", ""), (LINK, "0/a", "b/../.."), (FILE, "0/good", "x")])
    target = tmp_path / "run/outputs/model"
    with untouched(tmp_path, tmp_path / "run"):
        gather([(0, first, "/outputs/model")], target)
    assert sorted(path.name for path in target.iterdir()) == ["b", "good"]


def test_what_an_engines_node_leaves_is_its_outputs_alone(tmp_path: Path) -> None:
    run = RunFolder.create("left")
    run.write_json("plan.json", {"nodes": 1})
    hold = Hold(run, {"code": None})
    (tmp_path / "secret").write_text("mine")
    honest: list[Member] = [
        (FOLDER, "outputs/default", ""), (FILE, "outputs/default/model", "first"),
        (LINK, "outputs/default/last", "model"),
        (LINK, "outputs/default/key", str(tmp_path / "secret")), (FIFO, "outputs/default/pipe", ""),
        (DEVICE, "outputs/default/null", ""), (HARD, "outputs/default/same", "outputs/default/model"),
    ]  # fmt: skip
    outputs = run.path / "outputs"
    with untouched(run.path.parent, outputs, run.path / "left-out.json"), untouched(tmp_path):
        hold.leave([packed(honest)])
        hold.leave([packed([(FILE, "outputs/default/model", "second"), (FILE, "outputs/default/more", "x")])])
    assert sorted(path.name for path in (outputs / "default").iterdir()) == ["last", "model", "more", "same"]
    assert (outputs / "default/same").read_text() == "first"
    assert [text.partition(" ")[0] for text in run.left_out("default")] == ["key", "pipe", "null"]


@pytest.mark.parametrize("member", [(FILE, "job.yml", "x"), (FILE, "outputs/../job.yml", "x"), (LINK, "outputs", "/")])
def test_what_is_no_output_is_refused(member: Member) -> None:
    run = RunFolder.create("left")
    run.write_json("plan.json", {"nodes": 1})
    hold = Hold(run, {"code": None})
    with untouched(run.path), pytest.raises(Refused):
        hold.leave([packed([member])])


# -- what is downloaded


def _done(command_line: str) -> Run:
    return MLClient().jobs.create_or_update(command(command=command_line)).wait(LONG)


def test_links_of_outputs_do_not_fetch_files_of_the_reader(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    run = _done(
        f"cd outputs && ln -s {tmp_path}/secret key && ln -s {tmp_path} folder && mkfifo pipe && mkdir -p best && "
        "echo 1 > best/model && ln -s best last && ln -s $PWD/best/model best/again && ln -s gone broken"
    )
    told: list[str] = []
    found = MLClient().jobs.download(run, download_path=tmp_path / "got", warn=told.append) / "artifacts/outputs"
    links = {path.name: os.readlink(path) for path in found.rglob("*") if path.is_symlink()}
    assert links == {"last": "best", "again": "model", "broken": "gone"}
    assert sorted(path.name for path in found.iterdir()) == ["best", "broken", "last"]
    assert (found / "last/again").read_text() == "1\n"
    (warning,) = told
    assert warning.startswith("left out of the download: outputs/folder (a link that leads out of the folder, to '/")
    assert "outputs/key (a link" in warning
    assert "outputs/pipe (not a regular file)" in warning


def test_an_output_that_was_replaced_by_a_link_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/secret").write_text("mine")
    run = _done(f'out=$(realpath outputs) && rmdir "$out" && ln -s {tmp_path}/mine "$out"')
    told: list[str] = []
    found = MLClient().jobs.download(run, download_path=tmp_path / "got", warn=told.append) / "artifacts/outputs"
    assert not list(found.iterdir())
    assert "a link that leads out of the folder" in told[0]


def test_a_download_writes_through_no_link_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    found = tmp_path / "got/artifacts/outputs"
    found.mkdir(parents=True)
    (found / "key").symlink_to(tmp_path / "secret")
    MLClient().jobs.download(_done("echo other > outputs/key"), download_path=tmp_path / "got")
    assert (tmp_path / "secret").read_text() == "mine"
    assert (found / "key").read_text() == "other\n"


def test_what_a_node_did_not_send_is_named_when_it_is_downloaded(node: Answer, tmp_path: Path) -> None:
    run = _done("true")
    host = node([(LINK, "0/key", "/etc/passwd"), (FILE, "0/\x1b]0;odd", "x"), (FIFO, "0/\x1b]0;pipe", "")])
    shutil.rmtree(run.folder.path / "outputs/default")
    run.folder.note_left_out({"default": gather([(0, host, "/outputs")], run.folder.path / "outputs/default")})
    told: list[str] = []
    MLClient().jobs.download(run, download_path=tmp_path / "got", warn=told.append)
    (warning,) = told
    assert "key (a link that leads out of the folder, to '/etc/passwd')" in warning
    assert r"'\x1b]0;pipe' (not a regular file)" in warning


# -- what a function job brings back


class _Bomb:
    """A pickle that leaves a file where it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, int]]:
        return os.mkdir, (str(self.mark), 0o700)


def _forge(run: Run, data: bytes, **facts: object) -> None:
    """What a node writes instead of what the function did."""
    head = json.dumps({"outcome": "returned", "bytes": len(data), "python": "3.11", **facts})
    path = Path(paths.result(str(run.folder.path), 0, 0, 0))
    path.write_bytes(head.encode() + b"\n" + base64.b64encode(data) + b"\n.\n")


def _returning() -> dict[str, list[float]]:
    return {"loss": [0.5, 1e-300], "steps": [1, 2]}


def _raising() -> None:
    raise ValueError("it does not learn")


def test_plain_values_come_without_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    run = function(_returning).submit().wait(LONG)
    monkeypatch.setattr(pickle, "loads", None)
    assert run.result() == run.result(trusted=False) == _returning()


@pytest.mark.parametrize("form", [{}, {"form": "pickle"}, {"form": "other"}])
def test_a_pickled_value_is_not_read_where_the_node_is_not_trusted(form: dict[str, str], tmp_path: Path) -> None:
    run = function(_returning).submit().wait(LONG)
    mark = tmp_path / "mark"
    _forge(run, pickle.dumps(_Bomb(mark)), **form)
    with pytest.raises(JobsdkError, match=r"rank 0 of run \S+ returned is a pickle, .* Fix: return plain data"):
        run.result(trusted=False)
    with pytest.raises(JobsdkError, match="is a pickle"):
        run.result(all_ranks=True, trusted=False)
    assert "is a pickle" in LiveCard(run)._result({"status": "Completed"})
    assert not mark.exists()
    run.result()
    assert mark.exists()  # so it was one


def test_an_exception_of_a_node_that_is_not_trusted_is_text(tmp_path: Path) -> None:
    run = function(_raising).submit().wait(LONG)
    assert isinstance(run.exception(), ValueError)
    mark = tmp_path / "mark"
    facts = {"outcome": "raised", "type": "ValueError", "message": "it does not learn", "traceback": "ValueError: it"}
    _forge(run, pickle.dumps(_Bomb(mark)), form="pickle", **facts)
    with pytest.raises(JobFailed) as raised:
        run.result(trusted=False)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "ValueError: it" in str(raised.value.__cause__)
    assert isinstance(run.exception(trusted=False), JobFailed)
    assert not mark.exists()


@pytest.mark.parametrize("head", [b"[]", b"{}", b'{"outcome": "returned", "bytes": "4"}', b"1", b"\xff"])
def test_what_is_no_result_did_not_arrive(head: bytes) -> None:
    run = function(_returning).submit().wait(LONG)
    Path(paths.result(str(run.folder.path), 0, 0, 0)).write_bytes(head + b"\nAAAA\n.\n")
    with pytest.raises(JobsdkError, match="did not arrive"):
        run.result(trusted=False)
