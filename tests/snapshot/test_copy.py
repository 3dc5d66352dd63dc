"""Snapshots of code: what belongs to them, what the copy is like, and when two are the same."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobsdk.errors import JobsdkError
from jobsdk.snapshot import digests
from jobsdk.snapshot.copy import fingerprint, take
from jobsdk.snapshot.listing import scan
from tests.users import as_an_ordinary_user


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Make `files` (path to content) under root/"code", and give that folder."""
    code = root / "code"
    code.mkdir(exist_ok=True)
    for path, content in files.items():
        file = code / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return code


def taken(code: Path) -> list[str]:
    return [file.path for file in scan(code).files]


def reasons(code: Path) -> dict[str, str]:
    return {item.path: item.reason for item in scan(code).left_out}


def copied(target: Path) -> list[str]:
    return sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir())


# --- ignore rules


def test_git_and_aml_rules_at_every_level(tmp_path: Path) -> None:
    code = write(
        tmp_path,
        {
            ".gitignore": "*.log\ndata/\n",
            ".amlignore": "!keep.log\n*.tmp\n",
            "train.py": "",
            "a.log": "",
            "keep.log": "",
            "x.tmp": "",
            "data/big": "",
            "sub/.gitignore": "!*.tmp\nkeep.log\nonly_here\n",
            "sub/y.tmp": "",
            "sub/keep.log": "",
            "sub/only_here": "",
            "other/only_here": "",
            "sub/deep/z.tmp": "",
        },
    )
    assert taken(code) == [
        ".amlignore",
        ".gitignore",
        "keep.log",
        "other/only_here",
        "sub/.gitignore",
        "sub/deep/z.tmp",
        "sub/y.tmp",
        "train.py",
    ]
    assert reasons(code) == {
        "a.log": "is ignored by .gitignore:1: *.log",
        "data/": "is ignored by .gitignore:2: data/",
        "sub/keep.log": "is ignored by sub/.gitignore:2: keep.log",
        "sub/only_here": "is ignored by sub/.gitignore:3: only_here",
        "x.tmp": "is ignored by .amlignore:2: *.tmp",
    }


def test_a_folder_rule_deeper_down_does_not_bring_back_files_in_it(tmp_path: Path) -> None:
    # git: `!kept/` is about the folder; its files are still decided by the rule above.
    code = write(
        tmp_path, {".gitignore": "*.log\n", "sub/.gitignore": "!kept/\n", "sub/kept/a.log": "", "sub/kept/b": ""}
    )
    assert taken(code) == [".gitignore", "sub/.gitignore", "sub/kept/b"]


def test_rules_of_parents_up_to_the_git_root(tmp_path: Path) -> None:
    code = write(tmp_path, {"a.log": "", "b.txt": "", "c.cfg": "", "gen/x": "", "train.py": ""})
    top = tmp_path / "top"
    (top / "mid").mkdir(parents=True)
    code = code.rename(top / "mid" / "code")
    (tmp_path / ".gitignore").write_text("*.cfg\n")  # above the git root
    (top / ".git").mkdir()
    (top / ".gitignore").write_text("*.log\n*.txt\n/mid/code/gen/\n")
    (top / "mid" / ".gitignore").write_text("!b.txt\n")
    assert taken(code) == ["b.txt", "c.cfg", "train.py"]


def test_a_parent_that_ignores_the_code_folder_itself_has_no_say(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": "", "a.log": ""})
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("/code/\n")
    assert taken(code) == ["a.log", "train.py"]


def test_without_a_git_root_parents_have_no_say(tmp_path: Path) -> None:
    code = write(tmp_path, {"a.log": ""})
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert taken(code) == ["a.log"]


def test_what_is_never_taken(tmp_path: Path) -> None:
    code = write(
        tmp_path,
        {
            "train.py": "",
            ".git/HEAD": "",
            ".venv/bin/python": "",
            "venv/bin/python": "",
            "my_env/pyvenv.cfg": "",
            "my_env/lib/x.py": "",
            "node_modules/x/index.js": "",
            "pkg/__pycache__/a.cpython-311.pyc": "",
            "pkg/a.pyc": "",
            "pkg/a.py": "",
            "pkg/.ipynb_checkpoints/n.ipynb": "",
            ".mypy_cache/x": "",
            ".ruff_cache/x": "",
            ".pytest_cache/x": "",
            ".DS_Store": "",
        },
    )
    assert taken(code) == ["pkg/a.py", "train.py"]
    assert reasons(code)["my_env/"] == "is a virtual environment"
    # A broad rule to take things does not bring them in either ...
    (code / ".gitignore").write_text("*\n!*/\n!*.py\n!*.pyc\n")
    assert taken(code) == ["pkg/a.py", "train.py"]
    # ... but naming one does.
    (code / ".gitignore").unlink()
    (code / ".amlignore").write_text("!my_env/\n!node_modules\n")
    assert taken(code) == [
        ".amlignore",
        "my_env/lib/x.py",
        "my_env/pyvenv.cfg",
        "node_modules/x/index.js",
        "pkg/a.py",
        "train.py",
    ]


def test_the_home_of_jobsdk_is_not_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = write(tmp_path, {"train.py": "", "runs_here/runs/r/code/train.py": ""})
    monkeypatch.setenv("JOBSDK_HOME", str(code / "runs_here"))
    assert taken(code) == ["train.py"]
    assert reasons(code) == {"runs_here/": "is where jobsdk keeps its runs"}
    # Code that lies in there (a run's copy, run again) is code all the same.
    assert taken(code / "runs_here/runs/r/code") == ["train.py"]


def test_ignored_folders_are_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = write(tmp_path, {".gitignore": "data/\n", "data/deep/x": "", ".venv/deep/x": "", "pkg/a.py": ""})
    entered = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: entered.append(str(path)) or real(path))
    scan(code)
    assert sorted(entered) == [str(code), str(code / "pkg")]


# --- secrets

PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n"
PUBLIC = "-----BEGIN CERTIFICATE-----\n"


def test_what_looks_like_a_secret_is_left_out_with_a_warning(tmp_path: Path) -> None:
    secrets = [
        ".env",
        ".env.production",
        "sub/id_ed25519",
        "credentials.json",
        ".netrc",
        ".pypirc",
        "cert.pfx",
        "k.p12",
    ]
    secrets += ["kubeconfig", ".aws/credentials", ".kube/config"]
    plain = [".env.example", ".env.template", "id_rsa.pub", "environment.py", "config", "monkey.keys", "my.environment"]
    code = write(tmp_path, dict.fromkeys(secrets + plain, ""))
    write(tmp_path, {"a.pem": PRIVATE, "b.key": PRIVATE, "ca.pem": PUBLIC, "sort.key": "3"})
    listing = scan(code)
    assert [file.path for file in listing.files] == sorted([*plain, "ca.pem", "sort.key"])
    assert [item.path for item in listing.left_out if item.secret] == sorted([*secrets, "a.pem", "b.key"])
    assert len(listing.warnings) == len(secrets) + 2
    assert "'!.env'" in listing.warnings[1]


def test_only_a_line_that_names_it_takes_a_secret(tmp_path: Path) -> None:
    code = write(tmp_path, {".env": "", "sub/.env": "", ".gitignore": "!.env\n", ".amlignore": "!.*\n"})
    assert taken(code) == [".amlignore", ".gitignore"]
    (code / ".amlignore").write_text("!/.env\n")
    assert taken(code) == [".amlignore", ".env", ".gitignore"]
    (code / ".gitignore").write_text(".env\n")  # as nearly every project has it: the .amlignore beside it wins
    assert taken(code) == [".amlignore", ".env", ".gitignore"]


def test_a_link_to_a_secret_is_one(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": ""})
    (tmp_path / "id_rsa").write_text("key")
    (code / "settings").symlink_to(tmp_path / "id_rsa")
    assert taken(code) == ["train.py"]


# --- the copy


def test_the_copy_is_as_the_code(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": "print()", "pkg/data.bin": bytes(range(256)) * 9000, "tool.sh": "#!/bin/sh\n"})
    (code / "tool.sh").chmod(0o750)
    os.utime(code / "train.py", ns=(1, 1_234_567_890_123_456_789))
    snapshot = take(code, tmp_path / "copy")
    assert copied(tmp_path / "copy") == ["pkg/data.bin", "tool.sh", "train.py"]
    for path in ("train.py", "pkg/data.bin"):
        assert (tmp_path / "copy" / path).read_bytes() == (code / path).read_bytes()
        assert not os.access(tmp_path / "copy" / path, os.X_OK)
    assert (tmp_path / "copy/tool.sh").stat().st_mode & 0o100
    assert (tmp_path / "copy/train.py").stat().st_mtime_ns == 1_234_567_890_123_456_789
    facts = snapshot.to_dict()
    assert (facts["files"], facts["size"], facts["hash"]) == (3, 7 + 256 * 9000 + 10, snapshot.hash)


def test_a_single_file(tmp_path: Path) -> None:
    code = write(tmp_path, {".env": "A=1", "train.py": ""})
    take(code / "train.py", tmp_path / "copy")
    assert copied(tmp_path / "copy") == ["train.py"]
    take(code / ".env", tmp_path / "other")  # asked for by name
    assert copied(tmp_path / "other") == [".env"]


def test_nothing_left_is_fine(tmp_path: Path) -> None:
    snapshot = take(write(tmp_path, {"__pycache__/a.pyc": ""}), tmp_path / "copy")
    assert (tmp_path / "copy").is_dir()
    assert snapshot.listing.files == ()


def test_links_inside_stay_links_and_links_to_the_outside_are_followed(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": "x", "pkg/a.py": "a"})
    shared = tmp_path / "shared"
    (shared / "deep").mkdir(parents=True)
    (shared / "lib.py").write_text("lib")
    (shared / "deep/again").symlink_to(shared)  # a loop
    (shared / "deep/twin.py").symlink_to(shared / "lib.py")
    (code / "pkg/main.py").symlink_to("../train.py")
    (code / "absolute.py").symlink_to(code / "train.py")
    (code / "roundabout.py").symlink_to("../code/train.py")
    (code / "folder").symlink_to("pkg")
    (code / "winding.py").symlink_to("pkg/../train.py")
    (code / "here").symlink_to(".")
    (code / "lib.py").symlink_to(shared / "lib.py")
    (code / "shared").symlink_to(shared)
    (code / "above").symlink_to("..")
    (code / "gone").symlink_to("nowhere")
    (code / "self").symlink_to("self")
    copy = tmp_path / "elsewhere/copy"
    left_out = {item.path: item.reason for item in take(code, copy).listing.left_out}
    links = {path.relative_to(copy).as_posix(): os.readlink(path) for path in copy.rglob("*") if path.is_symlink()}
    assert links == {
        "absolute.py": "train.py",
        "folder": "pkg",
        "here": ".",
        "pkg/main.py": "../train.py",
        "roundabout.py": "train.py",
        "winding.py": "train.py",
    }
    assert (copy / "pkg/main.py").read_text() == "x"
    assert (copy / "lib.py").read_text() == (copy / "shared/lib.py").read_text() == "lib"
    assert (copy / "shared/deep/twin.py").read_text() == "lib"
    assert sorted(left_out) == ["above/", "gone", "self", "shared/deep/again/"]
    assert left_out["gone"] == "is a broken link to nowhere"


def test_a_rule_for_a_folder_holds_for_a_link_to_a_folder(tmp_path: Path) -> None:
    code = write(tmp_path, {".gitignore": "data/\n"})
    (tmp_path / "huge").mkdir()
    (tmp_path / "huge/file").write_text("")
    (code / "data").symlink_to(tmp_path / "huge")
    assert taken(code) == [".gitignore"]


def test_what_is_no_file_is_skipped(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": ""})
    os.mkfifo(code / "pipe")
    with socket.socket(socket.AF_UNIX) as server, tempfile.TemporaryDirectory() as short:
        server.bind(f"{short}/socket")
        shutil.move(f"{short}/socket", code / "socket")
        snapshot = take(code, tmp_path / "copy")
    assert copied(tmp_path / "copy") == ["train.py"]
    assert {item.path for item in snapshot.listing.left_out} == {"pipe", "socket"}


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": ""})
    (code / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    (code / "new\nline").write_text("y")
    assert len(take(code, tmp_path / "copy").listing.files) == 3
    assert (tmp_path / "copy" / os.fsdecode(b"caf\xe9.txt")).read_text() == "x"


# --- mistakes


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(JobsdkError, match=r"code folder .*/nowhere does not exist"):
        take(tmp_path / "nowhere", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="needs a file whose reading fails even for root")
def test_a_file_that_cannot_be_read_is_named_and_no_half_copy_stays(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": ""})
    (code / "wrong").symlink_to("/proc/self/mem")
    with pytest.raises(JobsdkError, match=r"cannot copy /proc/\d+/mem to .*/copy/wrong: Input/output error"):
        take(code, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own whose files can share blocks."""
    disk, folder = tmp_path / "disk", tmp_path / "btrfs"
    with open(disk, "wb") as file:
        file.truncate(256 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", str(disk)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk), str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def shared_bytes(folder: Path) -> int:
    """The bytes of a folder that share their blocks with other files."""
    done = subprocess.run(["btrfs", "filesystem", "du", "--raw", "-s", str(folder)], capture_output=True, check=True)
    total, exclusive, *_ = done.stdout.decode().splitlines()[-1].split()
    return int(total) - int(exclusive)


@pytest.mark.engine("btrfs")
def test_copies_of_equal_code_share_their_blocks_and_writing_to_one_changes_no_other(btrfs: Path) -> None:
    code = write(btrfs, {"big.bin": os.urandom(8 << 20), "train.py": "print(1)"})
    os.sync()
    first = take(code, btrfs / "first")
    second = take(code, btrfs / "second")
    assert first.hash == second.hash == fingerprint(code)
    os.sync()
    assert shared_bytes(btrfs / "second") >= 8 << 20
    with open(btrfs / "first/big.bin", "r+b") as file:
        file.write(b"changed")
    kept = (code / "big.bin").read_bytes()
    assert (btrfs / "second/big.bin").read_bytes() == kept
    assert (btrfs / "first/big.bin").read_bytes() == b"changed" + kept[7:]


def test_a_folder_that_cannot_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the tests' own folders are closed to others
        os.chmod(folder, 0o755)
        code = write(Path(folder), {"closed/x": ""})
        (code / "closed").chmod(0)
        with as_an_ordinary_user(), pytest.raises(JobsdkError, match=r"cannot read .*/closed: Permission denied"):
            scan(code)
        (code / "closed").chmod(0o700)


def test_an_ignore_file_that_is_a_folder(tmp_path: Path) -> None:
    code = write(tmp_path, {".gitignore/x": ""})
    with pytest.raises(JobsdkError, match=r"cannot read .*/\.gitignore: Is a directory"):
        scan(code)


def test_a_target_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    code = write(tmp_path, {"train.py": ""})
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/mine").write_text("mine")
    with pytest.raises(JobsdkError, match="it is not empty"):
        take(code, tmp_path / "copy")
    assert copied(tmp_path / "copy") == ["mine"]
    with pytest.raises(JobsdkError, match=r"cannot copy code to .*/copy/mine: File exists"):
        take(code, tmp_path / "copy/mine")


# --- the hash

TREES = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "c d", "é"]), min_size=1, max_size=3).map("/".join),
    st.tuples(st.binary(max_size=20), st.booleans()),
    max_size=6,
).filter(lambda tree: not any(other.startswith(path + "/") for path in tree for other in tree))


def tree_hash(tree: dict[str, tuple[bytes, bool]], order: list[str], mtime: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "code")
        code.mkdir()
        for path in order:
            content, executable = tree[path]
            (code / path).parent.mkdir(parents=True, exist_ok=True)
            (code / path).write_bytes(content)
            (code / path).chmod(0o755 if executable else 0o644)
            os.utime(code / path, (mtime, mtime))
        found = take(code, Path(folder, "copy")).hash
        assert fingerprint(code) == found
        return found


@settings(max_examples=60, deadline=None)
@given(tree=TREES, other=TREES, data=st.data())
def test_equal_hash_means_equal_content(
    tree: dict[str, tuple[bytes, bool]], other: dict[str, tuple[bytes, bool]], data: st.DataObject
) -> None:
    one = tree_hash(tree, list(tree), mtime=1)
    assert tree_hash(tree, data.draw(st.permutations(list(tree))), mtime=2_000_000_000) == one
    assert (tree_hash(other, list(other), mtime=1) == one) == (tree == other)


def test_each_fact_counts(tmp_path: Path) -> None:
    code = write(tmp_path, {"a": "1", "b": "2"})
    seen = [take(code, tmp_path / "0").hash]

    def changed(number: int) -> None:
        seen.append(take(code, tmp_path / str(number)).hash)
        assert len(set(seen)) == len(seen)

    (code / "a").write_text("2")
    changed(1)
    (code / "b").chmod(0o755)
    changed(2)
    (code / "a").rename(code / "c")
    changed(3)
    (code / "c").unlink()
    (code / "c").symlink_to("b")
    changed(4)
    # A copy has the hash of what it was copied from.
    assert take(tmp_path / "4", tmp_path / "again").hash == seen[-1]


def test_the_hash_does_not_change_between_versions(tmp_path: Path) -> None:
    # Kept beside runs and compared across them: a change of the format must be meant.
    code = write(tmp_path, {"train.py": "print('hello')\n", "pkg/run.sh": "#!/bin/sh\n"})
    (code / "pkg/run.sh").chmod(0o755)
    assert (
        take(code, tmp_path / "copy").hash == "sha256:ad18c711fc7c92ced23b837e00fd4039b6a173dd104f3ff68cf1c9288aa5b04e"
    )


# --- the hash of what has not changed


@pytest.fixture
def young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that the test has just written count as old enough to be known again."""
    monkeypatch.setattr(digests, "_TOO_YOUNG", -(10**18))


def kept(home: Path) -> dict[str, Any]:
    """What is known of the one code folder."""
    (file,) = home.glob("cache/code/*.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path, home: Path, young: None) -> None:
    code = write(tmp_path, {"a.py": "1", "sub/b.py": "2"})
    first = fingerprint(code)
    (file,) = home.glob("cache/code/*.json")
    known = kept(home)
    known["sub/b.py"][1] = "00" * 32  # were it read, nobody could tell it from what it holds
    file.write_text(json.dumps(known))
    assert fingerprint(code) != first
    file.write_text(json.dumps(known)[:-1])  # damaged: all is read
    assert fingerprint(code) == first == take(code, tmp_path / "copy").hash


def test_a_copy_makes_the_next_hash_quick_too(tmp_path: Path, home: Path, young: None) -> None:
    code = write(tmp_path, {"a.py": "1", "sub/b.py": "2"})
    taken_hash = take(code, tmp_path / "copy").hash
    assert set(kept(home)) == {"a.py", "sub/b.py"}
    assert fingerprint(code) == taken_hash


def test_no_change_can_hide(tmp_path: Path, young: None) -> None:
    code = write(tmp_path, {"a.py": "1"})
    first, before = fingerprint(code), (code / "a.py").stat()
    while (code / "a.py").stat().st_ctime_ns == before.st_ctime_ns:  # a tick of the file system's clock
        (code / "a.py").write_text("2")  # as long as it was,
        os.utime(code / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))  # and as old
    assert (code / "a.py").stat().st_mtime_ns == before.st_mtime_ns
    assert fingerprint(code) != first


def test_a_file_that_was_just_written_is_read_again(tmp_path: Path, home: Path) -> None:
    fingerprint(write(tmp_path, {"a.py": "1"}))
    assert not list(home.glob("cache/code/*"))


def test_what_is_gone_is_forgotten(tmp_path: Path, home: Path, young: None) -> None:
    code = write(tmp_path, {"a.py": "1", "b.py": "2"})
    fingerprint(code)
    (code / "a.py").unlink()
    fingerprint(code)
    assert set(kept(home)) == {"b.py"}


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path: Path, home: Path, young: None) -> None:
    (home / "cache").write_text("no folder")
    code = write(tmp_path, {"a.py": "1"})
    assert fingerprint(code) == fingerprint(code)


def said(folder: Path) -> list[str]:
    return [str(one) for one in scan(folder).findings]


def test_folders_and_many_files_that_rules_leave_out_are_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("data/\n*.bin\nsub/cache\n")
    for name in ("a.bin", "b.bin", "c.bin", "train.py"):
        (tmp_path / name).touch()
    assert said(tmp_path) == []  # a few files
    (tmp_path / "d.bin").touch()
    assert said(tmp_path) == [
        "warning: code: left out: a.bin (.gitignore:2), b.bin (.gitignore:2), c.bin (.gitignore:2), 1 more"
    ]
    for name in ("data", "sub/cache"):
        (tmp_path / name).mkdir(parents=True)
    assert said(tmp_path) == [
        "warning: code: left out: data/ (.gitignore:1), sub/cache/ (.gitignore:3), a.bin (.gitignore:2), 3 more"
    ]


def test_what_programs_make_is_left_out_without_a_word(tmp_path: Path) -> None:
    names = ("build", "wandb", "mlruns", "outputs", "x.egg-info", ".idea", ".venv", "__pycache__", "logs")
    (tmp_path / ".gitignore").write_text("".join(f"{name}/\n" for name in names) + "*.log\n")
    for name in names:
        (tmp_path / name).mkdir()
    for number in range(5):
        (tmp_path / f"{number}.log").touch()
    assert len(scan(tmp_path).left_out) == len(names) + 5
    assert said(tmp_path) == []


def test_a_large_copy_is_said_with_its_size(tmp_path: Path) -> None:
    for name, size in (("a", 60_000_000), ("b", 40_000_000)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    assert said(tmp_path) == []
    (tmp_path / "train.py").write_text("1")
    (text,) = said(tmp_path)
    assert "in 3 files are copied. Fix: leave out what the job does not need with .amlignore" in text

    listing = scan(tmp_path)
    one = listing.files[-1]
    assert listing._replace(files=(one,) * 10_000).findings == []
    (found,) = listing._replace(files=(one,) * 10_001).findings
    assert found.message.endswith("in 10,001 files are copied")
