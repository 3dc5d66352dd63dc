"""Where jobs run: computes by name, from `computes.yml`, and their types, from entry points.

    default: cluster            # where jobs that name no compute go; without it, local
    computes:
      cluster: {type: slurm, partition: gpu}

The file is looked for in the working directory and above it, and in `$XDG_CONFIG_HOME/jobsdk`; what the latter says
wins. `local` is always there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.errors import ComputeError
from jobsdk.job.paths import working_directory

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute
    from jobsdk.runs import RunFolder

FILE = "computes.yml"
LOCAL = "local"
_GROUP = "jobsdk.compute"  # the entry points of types that other packages bring
_BUILT_IN = {LOCAL: "jobsdk.compute.local:LocalCompute"}


class Entry(NamedTuple):
    """One compute as it is configured. `file` is None for `local` where no file speaks of it."""

    name: str
    type: str
    settings: dict[str, Any]
    file: Path | None


class Configuration(NamedTuple):
    """All computes, and the name of the default with the file that it is from (None: no file names one)."""

    default: str
    computes: dict[str, Entry]
    default_file: Path | None


def user_file() -> Path:
    """The user's own computes.yml."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".config") / "jobsdk" / FILE


def _project_file() -> Path | None:
    here = working_directory()
    while not os.path.isfile(os.path.join(here, FILE)):
        here, below = os.path.dirname(here), here
        if here == below:
            return None
    return Path(here) / FILE


def configuration() -> Configuration:
    """All computes there are. Raises ComputeError for a file that cannot be read."""
    default, default_file = LOCAL, None
    computes = {LOCAL: Entry(LOCAL, LOCAL, {}, None)}
    for file in (_project_file(), user_file()):
        if file is not None and file.is_file():
            content = _read(file)
            if content.get("default"):
                default, default_file = _bare(content["default"]), file
            for name, settings in (content.get("computes") or {}).items():
                computes[name] = _entry(str(name), settings, file)
    return Configuration(default, computes, default_file)


def _read(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ComputeError(f"{place}: cannot be read: {what}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ComputeError(f"{file}: must be a mapping with the keys default and computes")
    mistakes = list(_mistakes(content))
    if mistakes:
        raise ComputeError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    return content


def _mistakes(content: Mapping[Any, Any]) -> Iterator[str]:
    """Everything that is wrong in the content of a file."""
    for key in content:
        if key not in ("default", "computes"):
            yield f"there is no key {key!r} here: the keys are default and computes"
    default, named = content.get("default"), content.get("computes")
    if default is not None and not isinstance(default, str):
        yield "default must be a name"
    if named is not None and not isinstance(named, dict):
        yield "computes must be a mapping of names"
        return
    for name, settings in (named or {}).items():
        if not isinstance(settings, dict) or not isinstance(settings.get("type"), str):
            yield f"computes.{name} needs a type, as in {name}: {{type: {LOCAL}}}"
        elif name == LOCAL and settings["type"] != LOCAL:
            yield f"computes.{LOCAL} is always this machine; give the other compute another name"


def _entry(name: str, settings: dict[str, Any], file: Path) -> Entry:
    return Entry(name, settings["type"], {key: settings[key] for key in settings if key != "type"}, file)


def _bare(name: str) -> str:
    """The name without `azureml:`, which job files written for Azure ML put before it."""
    return name.removeprefix("azureml:")


def resolve(name: str | None) -> Compute:
    """The compute of a name; without one the configured default. Raises ComputeError."""
    found = configuration()
    wanted = _bare(name) if name else found.default
    if wanted not in found.computes:
        raise ComputeError(_unknown(wanted, found, is_default=not name))
    entry = found.computes[wanted]
    return _type(entry.type, entry.file)(entry.name, entry.settings)


def of_run(run: RunFolder) -> Compute:
    """The compute that a run was submitted to."""
    native = run.read_json("native.json")
    if native.get("type", LOCAL) == LOCAL:
        return _type(LOCAL, None)(native.get("compute", LOCAL), {})
    return resolve(native["compute"])


def types() -> list[str]:
    """The types of compute that are installed."""
    from importlib.metadata import entry_points

    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=_GROUP))})


def _unknown(name: str, found: Configuration, *, is_default: bool) -> str:
    from jobsdk.job.findings import nearest, show

    near = nearest(name, found.computes)
    origin = f", the default in {found.default_file}" if is_default else ""
    return (
        f"there is no compute {show(name)}{origin}{f': did you mean {near!r}?' if near else '.'} Fix: add it to "
        f"{_project_file() or user_file()} as 'computes: {{{name[:60]}: {{type: TYPE}}}}' "
        f'(types here: {", ".join(types())}), or use --compute {LOCAL} (in Python compute="{LOCAL}")'
    )


def _type(name: str, file: Path | None) -> type[Compute]:
    import importlib

    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        found: type[Compute] = getattr(importlib.import_module(module), attribute)
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=name):
        try:
            found = entry.load()
        except Exception as error:  # another package's import may fail in any way
            raise ComputeError(f"the compute type {name} ({entry.value}) cannot be loaded: {error}") from error
        return found
    raise ComputeError(f"{file}: there is no compute type {name!r}; installed are {', '.join(types())}")
