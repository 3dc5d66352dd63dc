"""Building the environment that a job describes as packages, once for all jobs that describe the same."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsdk.errors import ComputeError
from jobsdk.home import home, locked, make_folder
from jobsdk.job.environment import Environment, is_file
from jobsdk.job.paths import local_path

if TYPE_CHECKING:
    from jobsdk.job.command import CommandJob

Recipe = dict[str, Any]
_CONDA = ("mamba", "conda", "micromamba")
_MARK = "jobsdk.json"  # is in an environment once it is whole
#: Packages whose name on PyPI is not that of conda.
_PYPI_NAMES = {"pytorch": "torch", "tensorflow-gpu": "tensorflow", "pytorch-gpu": "torch", "msgpack-python": "msgpack"}
_SPEC = re.compile(r"(?:[\w.-]+::)?(?P<name>[\w.-]+)\s*(?P<version>[<>=!~][^\s\[]*|\d[^\s]*)?\s*(?P<build>\S+)?")


def can_build(job: CommandJob) -> bool:
    """Whether the job's environment is described by packages."""
    given = job.environment
    return is_file(given) or (isinstance(given, Environment) and bool(given.conda_file or given.requirements))


def recipe(job: CommandJob) -> Recipe:
    """All that decides what is built, and where it goes. Reads files; raises ComputeError if they cannot be read."""
    environment = _described(job)
    found: Recipe
    if environment.conda_file is not None:
        program = next((path for path in map(shutil.which, _CONDA) if path), None)
        found = {"kind": "conda", "program": program, "packages": _conda(job, environment.conda_file)}
    else:
        assert environment.requirements is not None
        file = job.resolve(environment.requirements)
        found = {"kind": "pip", "file": str(file), "packages": _requirements(file)}
    key = {**found, "python": [sys.executable, *sys.version_info[:3]], "platform": sys.platform}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return {**found, "prefix": str(home() / "envs" / digest)}


def _described(job: CommandJob) -> Environment:
    if isinstance(job.environment, Environment):
        return job.environment
    file = job.resolve(str(job.environment))  # file:env.yml, an environment's own YAML file
    content = _yaml(file)
    try:
        environment = Environment(**{key: value for key, value in content.items() if key != "$schema"})
    except (TypeError, ValueError) as error:
        raise ComputeError(f"{file}: {error}") from None
    if environment.conda_file is None and environment.requirements is None:
        raise ComputeError(f"{file}: has neither conda_file nor requirements, so there is nothing to build")
    for name in ("conda_file", "requirements"):
        path = getattr(environment, name)
        if isinstance(path, str):
            setattr(environment, name, str(file.parent / local_path(path)))
    return environment


def _conda(job: CommandJob, given: str | dict[str, Any]) -> dict[str, Any]:
    content = given if isinstance(given, dict) else _yaml(job.resolve(given))
    if not isinstance(content.get("dependencies"), list):
        raise ComputeError("environment.conda_file: has no list of dependencies")
    return {key: content[key] for key in ("channels", "dependencies") if key in content}


def _yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ComputeError(f"{file}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise ComputeError(f"{file}: must be a mapping")
    return content


def _requirements(file: Path) -> list[str]:
    """The lines of a requirements file and of those that it includes."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ComputeError(f"environment.requirements: {file} cannot be read: {error}") from None
    found = []
    for line in lines:
        text = line.split(" #")[0].strip()
        included = re.fullmatch(r"(?:-r|-c|--requirement|--constraint)[ =]*(\S+)", text)
        if included and "://" not in included[1] and (file.parent / included[1]) != file:
            found += _requirements(file.parent / included[1])
        elif text and not text.startswith("#"):
            found.append(text)
    return found


def build(recipe: Recipe, warn: Callable[[str], None]) -> None:
    """Build the environment unless it is there. Two that want it at once wait for one build.

    Raises ComputeError with the tool's last output if it fails; nothing of it is left then.
    """
    prefix = Path(recipe["prefix"])
    if (prefix / _MARK).exists():
        return
    make_folder(prefix.parent)
    with locked(prefix.with_suffix(".lock")):
        if (prefix / _MARK).exists():
            return
        shutil.rmtree(prefix, ignore_errors=True)  # of a build that was killed
        what = Path(recipe["file"]).name if recipe["kind"] == "pip" else "conda_file"
        print(f"building the environment ({what}) ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            if recipe["kind"] == "conda" and recipe["program"]:
                _build_with_conda(recipe["program"], recipe["packages"], prefix)
            else:
                _build_with_pip(recipe, prefix, warn)
            (prefix / _MARK).write_text(json.dumps(recipe, indent=1))
            print(f"the environment was built in {time.monotonic() - begun:.0f} s", file=sys.stderr)
        except BaseException:
            shutil.rmtree(prefix, ignore_errors=True)
            raise


def _build_with_conda(program: str, packages: dict[str, Any], prefix: Path) -> None:
    file = prefix.with_suffix(".yml")
    file.write_text(json.dumps(packages))  # JSON is YAML
    try:
        if Path(program).name == "micromamba":
            _run([program, "create", "--yes", "--prefix", str(prefix), "--file", str(file)])
        else:
            _run([program, "env", "create", "--prefix", str(prefix), "--file", str(file)])
    finally:
        file.unlink(missing_ok=True)


def _build_with_pip(recipe: Recipe, prefix: Path, warn: Callable[[str], None]) -> None:
    if recipe["kind"] == "pip":
        what = ["--requirement", recipe["file"]]
    else:
        wanted, translated, dropped = _for_pip(recipe["packages"]["dependencies"])
        warn(
            "there is no conda, mamba or micromamba on PATH: environment.conda_file is built with venv and pip of "
            f"Python {sys.version_info[0]}.{sys.version_info[1]}"
            + (f"; translated: {', '.join(translated)}" if translated else "")
            + (f"; left out: {', '.join(dropped)}" if dropped else "")
        )
        what = wanted
    _run([sys.executable, "-m", "venv", str(prefix)])
    if what:
        python = str(prefix / "bin" / "python")
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *what])


def _for_pip(dependencies: Iterable[Any]) -> tuple[list[str], list[str], list[str]]:
    """(what pip is asked for, what was translated for it, what was left out) of a conda environment."""
    wanted: list[str] = []
    translated, dropped = [], []
    for item in dependencies:
        if isinstance(item, dict):
            wanted += [word for line in item.get("pip") or [] for word in _pip_words(str(line))]
            continue
        match = _SPEC.fullmatch(str(item).strip())
        if match is None or match["name"].startswith("_") or match["name"] in ("pip", "setuptools", "wheel"):
            if match is None:
                dropped.append(str(item))
            continue
        name, version = match["name"], match["version"] or ""
        if name == "python":
            if version.lstrip("=") not in ("", ".".join(map(str, sys.version_info[:2]))):
                dropped.append(str(item))
            continue
        exact = re.fullmatch(r"=?(\d[\w.*]*)(=\S+)?", version)
        if exact:  # conda's numpy=1.26 means any 1.26
            version = f"=={exact[1].removesuffix('.*')}.*"
        text = _PYPI_NAMES.get(name, name) + version
        wanted.append(text)
        if text != str(item):
            translated.append(f"{item} to {text}")
    return wanted, translated, dropped


def _pip_words(line: str) -> list[str]:
    """A line of a conda file's pip section as arguments: options (`-r FILE`, `--index-url URL`) are two words."""
    return line.split(None, 1) if line.startswith("-") else [line]


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-8:]
        tool = " ".join([Path(argv[0]).name, *argv[1:4]])
        raise ComputeError(
            f"the job's environment cannot be built: {tool} ended with {done.returncode}\n" + "\n".join(said)
        )
