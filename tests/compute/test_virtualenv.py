from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from jobsdk.compute import virtualenv
from jobsdk.errors import ComputeError
from jobsdk.job.command import CommandJob, command


def packaged(folder: Path, name: str) -> Path:
    """A package that pip can install without network."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "value = 42\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return packaged(tmp_path, "tinything")


class Built(NamedTuple):
    """One environment that was built, after a build of it that was killed, for two who wanted it at once."""

    folder: Path
    prefix: Path
    said: list[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, said = tmp_path_factory.mktemp("built"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setenv("JOBSDK_HOME", str(folder / "home"))
        patch.chdir(folder)
        recipe = virtualenv.recipe(with_requirements(packaged(folder, "tinything"), "# a comment"))
        prefix = Path(recipe["prefix"])
        (prefix / "bin").mkdir(parents=True)
        threads = [threading.Thread(target=virtualenv.build, args=(recipe, no_warning)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return Built(folder, prefix, said.getvalue().splitlines())


@pytest.fixture
def quick_venv(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m venv` makes a copy of the environment that was built, which takes a tenth of the time."""
    run = virtualenv._run

    def quick(argv: list[str]) -> None:
        if argv[1:3] == ["-m", "venv"]:
            shutil.copytree(built.prefix, argv[3], symlinks=True)
        else:
            run(argv)

    monkeypatch.setattr(virtualenv, "_run", quick)


def with_requirements(*lines: object) -> CommandJob:
    Path("requirements.txt").write_text("".join(f"{line}\n" for line in lines))
    return command(command="true", environment={"requirements": "requirements.txt"})


def no_warning(text: str) -> None:
    raise AssertionError(text)


def test_requirements_are_built_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    python = built.prefix / "bin/python"
    assert (built.prefix / "bin/pip").exists(), "a build that was killed is done again"
    assert subprocess.check_output([python, "-c", "import tinything; print(tinything.value)"]) == b"42\n"
    assert [line[:24] for line in built.said] == ["building the environment", "the environment was buil"]
    assert "(requirements.txt)" in built.said[0]
    made = python.lstat().st_mtime_ns
    monkeypatch.setenv("JOBSDK_HOME", str(built.folder / "home"))
    monkeypatch.chdir(built.folder)
    job = command(command="true", environment={"requirements": "requirements.txt"})
    assert virtualenv.recipe(job)["prefix"] == str(built.prefix)
    virtualenv.build(virtualenv.recipe(job), no_warning)
    assert python.lstat().st_mtime_ns == made


def test_other_requirements_are_another_environment(wheel: Path) -> None:
    Path("more.txt").write_text("a\n")
    prefixes = [virtualenv.recipe(with_requirements(*lines))["prefix"] for lines in ([wheel], ["-r more.txt"])]
    Path("more.txt").write_text("b\n")
    prefixes.append(virtualenv.recipe(with_requirements("-r more.txt"))["prefix"])
    assert len(set(prefixes)) == 3


@pytest.mark.usefixtures("quick_venv")
def test_a_build_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    recipe = virtualenv.recipe(with_requirements(tmp_path / "missing.whl"))
    with pytest.raises(ComputeError, match=r"missing\.whl"):
        virtualenv.build(recipe, no_warning)
    assert not Path(recipe["prefix"]).exists()


@pytest.mark.usefixtures("quick_venv")
def test_a_conda_file_without_conda_is_translated_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    wheel = packaged(tmp_path, "otherthing")
    here = ".".join(map(str, sys.version_info[:2]))
    Path("conda.yml").write_text(
        f"name: x\nchannels: [conda-forge]\ndependencies: [python={here}, pip, {{pip: ['{wheel}', '--no-index']}}]\n"
    )
    job = command(command="true", environment={"image": "i", "conda_file": "conda.yml"})
    said: list[str] = []
    recipe = virtualenv.recipe(job)
    virtualenv.build(recipe, said.append)
    assert said == [
        "there is no conda, mamba or micromamba on PATH: environment.conda_file is built with venv and pip of "
        f"Python {here}"
    ]
    python = Path(recipe["prefix"]) / "bin" / "python"
    subprocess.check_call([python, "-c", "import otherthing"])


def test_what_conda_calls_a_package_is_what_pip_is_asked_for() -> None:
    wanted, translated, dropped = virtualenv._for_pip(
        [
            "numpy=1.26",
            "conda-forge::pytorch==2.1.0",
            "scipy>=1.10,<2",
            "tqdm",
            "a=1.2.*",
            "b=1=py_0",
            "python=2.7",
            "?",
        ]
    )
    assert wanted == ["numpy==1.26.*", "torch==2.1.0", "scipy>=1.10,<2", "tqdm", "a==1.2.*", "b==1.*"]
    assert "numpy=1.26 to numpy==1.26.*" in translated
    assert dropped == ["python=2.7", "?"]


@pytest.mark.parametrize("program", ["conda", "mamba", "micromamba"])
def test_a_conda_is_used_where_there_is_one(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    script = '#!/bin/sh\nwhile [ "$1" != --prefix ]; do shift; done\nmkdir -p "$2/bin"\ncp "$4" "$2/got"\n'
    (tools / program).write_text(script)
    (tools / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert shutil.which("conda") in (None, str(tools / "conda"))
    job = command(command="true", environment={"image": "i", "conda_file": {"dependencies": ["numpy=1.26"]}})
    recipe = virtualenv.recipe(job)
    virtualenv.build(recipe, no_warning)
    assert "numpy=1.26" in (Path(recipe["prefix"]) / "got").read_text()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"requirements": "nowhere.txt"}, "nowhere.txt"),
        ({"image": "i", "conda_file": "nowhere.yml"}, "nowhere.yml"),
        ({"image": "i", "conda_file": {"dependencies": "numpy"}}, "no list of dependencies"),
        ("file:broken.yml", "broken.yml"),
        ("file:image.yml", "neither conda_file nor requirements"),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(environment: object, message: str) -> None:
    Path("broken.yml").write_text("a: [")
    Path("image.yml").write_text("image: ubuntu\n")
    with pytest.raises(ComputeError, match=message):
        virtualenv.recipe(command(command="true", environment=environment))  # type: ignore[arg-type]


def test_an_environments_own_file_names_paths_beside_itself(wheel: Path) -> None:
    Path("env").mkdir()
    Path("env/environment.yml").write_text("name: e\nimage: i\nconda_file: conda.yml\n")
    Path("env/conda.yml").write_text("dependencies: [numpy]\n")
    job = command(command="true", environment="file:env/environment.yml")
    assert virtualenv.can_build(job)
    assert virtualenv.recipe(job)["packages"] == {"dependencies": ["numpy"]}
