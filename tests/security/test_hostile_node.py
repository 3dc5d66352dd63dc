"""A node of a job answers what its owner did not expect: it gets nothing but the run's own folder."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from jobsdk.bootstrap import far_end
from jobsdk.bootstrap.extraction import Refused
from jobsdk.compute.engine.hold import Hold
from jobsdk.compute.gathering import gather
from jobsdk.compute.remote import RemoteHost
from jobsdk.errors import ComputeError
from jobsdk.runs import RunFolder
from tests.compute.ssh.sshd import Sshd, end_connections
from tests.security.archives import DEVICE, FIFO, FILE, FOLDER, HARD, LINK, Member, packed, untouched

Answer = Callable[[Sequence[Member]], RemoteHost]


@pytest.fixture
def node(sshd: Sshd, home: Path, tmp_path: Path) -> Iterator[Answer]:
    """A node, reached by ssh, that sends an archive of one's choice for any file that it is asked for."""
    answer, python = tmp_path / "node/answer", tmp_path / "node/python"
    answer.parent.mkdir()

    def answering(members: Sequence[Member]) -> RemoteHost:
        answer.write_bytes(far_end.MARK + b"{}\n" + packed(members))
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
    with untouched(run.path.parent, outputs), untouched(tmp_path):
        hold.leave([packed(honest)])
        hold.leave([packed([(FILE, "outputs/default/model", "second"), (FILE, "outputs/default/more", "x")])])
    assert sorted(path.name for path in (outputs / "default").iterdir()) == ["last", "model", "more", "same"]
    assert (outputs / "default/same").read_text() == "first"


@pytest.mark.parametrize("member", [(FILE, "job.yml", "x"), (FILE, "outputs/../job.yml", "x"), (LINK, "outputs", "/")])
def test_what_is_no_output_is_refused(member: Member) -> None:
    run = RunFolder.create("left")
    run.write_json("plan.json", {"nodes": 1})
    hold = Hold(run, {"code": None})
    with untouched(run.path), pytest.raises(Refused):
        hold.leave([packed([member])])
