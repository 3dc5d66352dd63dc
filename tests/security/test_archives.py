"""Whoever wrote an archive, and whatever is in it: nothing outside of its target is written."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobsdk.bootstrap.agent import code
from jobsdk.bootstrap.transport import ssh_files
from jobsdk.compute.hosts.receiving import unpack
from tests.security.archives import DEVICE, FIFO, FILE, FOLDER, HARD, LINK, Member, packed, untouched


def _by_unpack(data: bytes, target: Path) -> None:
    unpack(io.BytesIO(data), [target, target.with_name("target-1")])


def _by_extract(data: bytes, target: Path) -> None:
    target.mkdir()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as archive:
        ssh_files._extract(archive, str(target))


def _by_copy(data: bytes, target: Path) -> None:
    file = target.parent.parent / "code.tar"
    file.write_bytes(data)
    try:
        code._copy(str(file), "", str(target), str(target.parent))
    finally:
        file.unlink()


_EXPECTED = (OSError, ValueError, tarfile.TarError, code.CodeError)
_UNPACKERS = pytest.mark.parametrize("unpacker", [_by_unpack, _by_extract, _by_copy])
Unpacker = Callable[[bytes, Path], None]


def _attack(unpacker: Unpacker, members: Sequence[Member]) -> None:
    """Unpack it beside a victim's files. Only an error that callers expect may be raised."""
    with tempfile.TemporaryDirectory() as name:
        top = Path(name).resolve()
        for path in ("secret", "beside/secret", "runs/secret"):
            (top / path).parent.mkdir(exist_ok=True)
            (top / path).write_text("mine")
        target = top / "runs/target"
        there = [(kind, path.replace("TOP", name), to.replace("TOP", name)) for kind, path, to in members]
        with untouched(top, target, target.with_name("target-1")), contextlib.suppress(*_EXPECTED):
            unpacker(packed(there), target)


_ATTACKS: dict[str, list[Member]] = {
    "the target itself becomes a link": [(LINK, "0", "../beside"), (FILE, "0/new", "x")],
    "a link replaces the target": [(FOLDER, "0", ""), (LINK, "0", "../beside"), (FILE, "0/new", "x")],
    "the top of the archive is a link": [(LINK, ".", "../beside"), (FILE, "./new", "x")],
    "a folder that is a link": [(LINK, "0/a", "../../beside"), (FILE, "0/a/new", "x")],
    "an absolute link": [(LINK, "0/a", "TOP/beside"), (FILE, "0/a/new", "x")],
    "two links that lead out together": [
        (FOLDER, "0/b/c", ""), (LINK, "0/a", "b/c/../.."), (LINK, "0/b/c/d", "../../a/.."),
        (FILE, "0/b/c/d/secret", "x"),
    ],
    "a link whose way changes later": [
        (LINK, "0/a", "b/.."), (FOLDER, "0/c", ""), (LINK, "0/b", "."), (FILE, "0/a/secret", "x"),
    ],
    "a file is written through a link": [(LINK, "0/a", "../../secret"), (FILE, "0/a", "x")],
    "a file is written through a hard link": [(HARD, "0/a", "../secret"), (FILE, "0/a", "x")],
    "a hard link to an absolute path": [(HARD, "0/a", "TOP/secret")],
    "a hard link by a negative index": [(HARD, "0/a", "-1/../secret")],
    "a hard link through a link": [(LINK, "0/a", "../.."), (HARD, "0/b", "0/a/secret")],
    "a hard link to a link moves it up": [
        (FOLDER, "0/a/b/c", ""), (LINK, "0/a/b/c/d", "../../.."), (HARD, "0/e", "0/a/b/c/d"), (FILE, "0/e/new", "x"),
    ],
    "dots": [(FILE, "0/../secret", "x")],
    "an absolute name": [(FILE, "TOP/secret", "x")],
    "a negative index": [(FILE, "-1/x", "x")],
    "an index of other digits": [(FILE, "²/x", "x")],
    "an index that nobody asked for": [(FILE, "2/x", "x")],
    "a device": [(DEVICE, "0/null", ""), (FIFO, "0/pipe", ""), (FIFO, "0", "")],
    "the mode of a folder": [(FOLDER, "0/..", "")],
    "a file instead of the target": [(FILE, ".", "x"), (FILE, "./x", "x")],
}  # fmt: skip


@_UNPACKERS
@pytest.mark.parametrize("attack", _ATTACKS)
def test_known_attacks(unpacker: Unpacker, attack: str) -> None:
    _attack(unpacker, _ATTACKS[attack])


_WORDS = st.sampled_from(
    ["0", "1", "-1", "a", "b", "c", ".", "..", "", "secret", "beside", "ü\n", "x\udcff", "a" * 300]
)
_PATHS = st.one_of(
    st.lists(_WORDS, min_size=1, max_size=5).map("/".join),
    st.lists(_WORDS, min_size=1, max_size=4).map(lambda parts: "0/" + "/".join(parts)),
    st.sampled_from(["TOP/secret", "TOP/beside", "../../secret", "../beside", "/", "0"]),
)
_MEMBERS = st.tuples(st.sampled_from([FILE, FILE, LINK, LINK, HARD, FOLDER, FIFO, DEVICE]), _PATHS, _PATHS)


@_UNPACKERS
@settings(max_examples=60, deadline=None)
@given(members=st.lists(_MEMBERS, max_size=8))
@example(members=_ATTACKS["the target itself becomes a link"])
@example(members=_ATTACKS["a hard link to a link moves it up"])
def test_no_archive_writes_outside_of_its_target(unpacker: Unpacker, members: list[Member]) -> None:
    _attack(unpacker, members)


@_UNPACKERS
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=600), at=st.integers(0, 1500))
def test_no_garbage_does_either(unpacker: Unpacker, data: bytes, at: int) -> None:
    """Headers that were tampered with, and streams that end early: they end in an error that callers expect."""
    whole = bytearray(packed([(FILE, "0/a", "x"), (LINK, "0/b", "a"), (HARD, "0/c", "0/a")]))
    whole[at : at + len(data)] = data
    with tempfile.TemporaryDirectory() as name:
        target = Path(name).resolve() / "runs/target"
        target.parent.mkdir()
        with (
            untouched(Path(name).resolve(), target, target.with_name("target-1")),
            contextlib.suppress(*_EXPECTED),
        ):
            unpacker(bytes(whole), target)


def test_what_is_honest_is_unpacked(tmp_path: Path) -> None:
    honest: list[Member] = [
        (FOLDER, "a/b", ""), (FILE, "a/b/file", "x"), (LINK, "a/up", "../a/b/file"), (LINK, "later", "a/b"),
        (HARD, "a/same", "a/b/file"), (FILE, "a/b/file.2", "y"),
    ]  # fmt: skip
    for unpacker, prefix in ((_by_unpack, "0/"), (_by_extract, ""), (_by_copy, "./")):
        target = tmp_path / unpacker.__name__ / "target"
        target.parent.mkdir()
        named = [(kind, prefix + path, prefix + to if kind == HARD else to) for kind, path, to in honest]
        unpacker(packed(named), target)
        assert (target / "a/up").read_text() == (target / "a/same").read_text() == "x"
        assert (target / "a/same").stat().st_ino == (target / "a/b/file").stat().st_ino
        assert os.readlink(target / "later") == "a/b"
        assert (target / "a/b/file.2").read_text() == "y"


def test_code_with_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(code.CodeError, match=r"it has data \(a link that leads out of the folder, to '/mnt/data'\)"):
        _by_copy(packed([(LINK, "data", "/mnt/data")]), tmp_path / "run/target")
