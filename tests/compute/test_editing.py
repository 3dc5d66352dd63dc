"""Adding a compute to computes.yml: everything else in the file stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobsdk import compute as computes
from jobsdk.compute import editing
from jobsdk.errors import ComputeError

SETTINGS: dict[str, Any] = {"preload": ["torch"], "network": {"interface": "eth0", "gdr": True}}

#: Ways in which people write such a file.
FILES = {
    "none": None,
    "empty": "",
    "comments only": "# nothing yet\n",
    "usual": "default: a\ncomputes:\n  a: {type: local}   # mine\n  b:\n    type: local\n    preload: torch # why\n",
    "more after it": "computes:\n  a:\n    type: local\n\n# where jobs go\ndefault: a\n",
    "comment at the end": "computes:\n  a: {type: local}\n  # b: {type: slurm}\n",
    "four spaces": "computes:\n    a:\n        type: local\n",
    "not indented key after": "computes:\n  a: {type: local}\nmachines:\n  big: {gpus: 8}\n",
    "empty mapping": "computes: {}  # none\n",
    "null": "computes:   # none\ndefault: local\n",
    "in braces": "computes: {a: {type: local}}\n",
    "braces over lines": "computes: {\n  a: {type: local}, # first\n  b: {type: local},\n}\n",
    "all in braces": "{default: a, computes: {a: {type: local}}}\n",
    "braces without computes": "{default: local}\n",
    "no computes": "default: local # here\n",
    "no newline at the end": "computes:\n  a: {type: local}",
    "block text": "computes:\n  a:\n    type: local\n    preload: |-\n      torch\n\ndefault: a\n",
    "quoted keys": "'computes':\n  'a': {'type': 'local'}\n",
    "list last": "computes:\n  a:\n    type: local\n    preload:\n      - torch\n      - numpy\n",
    "windows": "computes:\r\n  a: {type: local}\r\n",
    "document marks": "---\ncomputes:\n  a: {type: local}\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
def test_the_file_has_one_more_compute_and_keeps_all_its_lines(text: str | None) -> None:
    file = Path("computes.yml").absolute()
    if text is not None:
        file.write_bytes(text.encode())
    editing.add(file, "new-one", "local", SETTINGS)
    after = file.read_bytes().decode()
    before = yaml.safe_load(text or "") or {}
    expected = {**before, "computes": {**(before.get("computes") or {}), "new-one": {"type": "local", **SETTINGS}}}
    assert yaml.safe_load(after) == expected
    comments = [line.partition("#")[2] for line in (text or "").splitlines() if "#" in line]
    assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == comments
    assert after.count("\r\n") == (text or "").count("\r\n")
    editing.add(file, "another", "local", {})
    assert list(computes.configuration().computes)[-2:] == ["new-one", "another"]


def test_names_that_yaml_would_take_for_something_else_are_quoted() -> None:
    file = Path("computes.yml").absolute()
    for name in ("no", "1", "a: b", "ü"):
        editing.add(file, name, "local", {})
        assert computes.resolve(name).name == name


@pytest.mark.parametrize(
    ("name", "kind", "settings", "message"),
    [
        ("a", "local", {}, "has a compute a already. Fix: change it there"),
        ("b", "slrm", {}, "there is no compute type 'slrm': did you mean 'slurm'?"),
        ("b", "local", {"preloads": "torch"}, "type local has no setting 'preloads': did you mean 'preload'?"),
        ("b", "local", {"network": {"mtu": 1}}, "compute b: network.mtu must be a number of bytes"),
        ("local", "ssh", {"hosts": ["h1"]}, "computes.local is always this machine"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_written(name: str, kind: str, settings: Any, message: str) -> None:
    file = Path("computes.yml").absolute()
    file.write_text("computes: {a: {type: local}}\n")
    with pytest.raises(ComputeError) as caught:
        editing.add(file, name, kind, settings)
    assert message in str(caught.value)
    assert file.read_text() == "computes: {a: {type: local}}\n"


def test_a_file_in_which_nothing_can_be_added_safely_is_left_alone() -> None:
    """A compute that is an alias of another: what is put after it would be in the middle of the first."""
    file = Path("computes.yml").absolute()
    text = "machines: &all {a: {gpus: 1}}\ncomputes: *all\n"
    file.write_text(text)
    with pytest.raises(ComputeError):
        editing.add(file, "b", "local", {})
    assert file.read_text() == text


def test_a_link_stays_a_link_and_the_mode_is_kept(tmp_path: Path) -> None:
    real = tmp_path / "real.yml"
    real.write_text("computes: {}\n")
    real.chmod(0o600)
    file = tmp_path / "computes.yml"
    file.symlink_to(real)
    editing.add(file, "a", "local", {})
    assert file.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert "a" in real.read_text()


def test_a_compute_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(ComputeError, match="a compute needs a name"):
        editing.add(tmp_path / "computes.yml", " ", "local", {})
    assert not (tmp_path / "computes.yml").exists()
