"""`make audit` lets no finding of bandit and no vulnerable package pass without a reason."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts/audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("subprocess.run(text, shell=True)", "B602"),
        ("subprocess.run(text, shell=True)  # nosec", "names no finding"),
        ("subprocess.run(text, shell=True)  # nosec B602", "has no reason"),
        ("subprocess.run(text, shell=True)  # nosec B310 # another", "B602"),
        ("subprocess.run(['ls'])  # nosec B602 # it was once", "nothing needs nosec B602"),
        ("subprocess.run(text, shell=True", "syntax error"),
    ],
)
def test_what_is_wrong_is_found(audit: ModuleType, tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/x.py").write_text(f"import subprocess\ntext = input()\n{line}\n")
    found = list(audit.of_code(tmp_path / "package", ROOT / "pyproject.toml"))
    assert any(said in one for one in found), found


def test_what_is_explained_passes(audit: ModuleType, tmp_path: Path) -> None:
    text = "import subprocess\nsubprocess.run(input(), shell=True)  # nosec B602 # what the user types is the user's\n"
    (tmp_path / "x.py").write_text(text)
    assert list(audit.of_code(tmp_path, ROOT / "pyproject.toml")) == []


def test_vulnerable_packages_are_named_unless_they_are_accepted(audit: ModuleType) -> None:
    vulnerability = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": []}
    answer = {
        "dependencies": [
            {"name": "a", "version": "1.0", "vulns": [vulnerability]},
            {"name": "b", "version": "1.0", "vulns": []},
            {"name": "c", "skip_reason": "not found"},
        ]
    }
    assert audit.of_packages(answer) == (["a 1.0: PYSEC-1, fixed in 2.0"], 2, 1)
    assert audit.of_packages(answer, {"PYSEC-1": "that part is not used"}) == ([], 2, 1)
    assert all(reason for reason in audit.ACCEPTED.values())
