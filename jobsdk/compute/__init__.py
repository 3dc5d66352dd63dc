"""Where jobs run: computes by name, from `computes.yml`, and their types, from entry points.

    default: cluster            # where jobs that name no compute go; without it, local
    computes:
      cluster: {type: slurm, partition: gpu}
    machines:                   # kinds of machines besides those that jobsdk knows: see jobsdk.job.machines
      big-node: {gpus: 8, gpu: A100, infiniband: 200}
    retention: {older_than: 30d}    # which ended runs are deleted, once a day; in the user's own file only

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
from jobsdk.runs.folder import LOCAL as LOCAL

if TYPE_CHECKING:
    from jobsdk.compute.base import Compute
    from jobsdk.job.machines import Catalogue
    from jobsdk.runs.deletion import Retention
    from jobsdk.runs.folder import RunFolder

FILE = "computes.yml"
_KEYS = ("default", "computes", "machines", "retention")
_GROUP = "jobsdk.compute"  # the entry points of types that other packages bring
_BUILT_IN = {
    LOCAL: "jobsdk.compute.local:LocalCompute",
    "slurm": "jobsdk.compute.slurm.compute:SlurmCompute",
    "kubernetes": "jobsdk.compute.kubernetes.compute:KubernetesCompute",
    "ssh": "jobsdk.compute.ssh.compute:SshCompute",
    "azureml": "jobsdk.compute.azureml.compute:AzureMlCompute",
    "ray": "jobsdk.compute.ray.compute:RayCompute",
    "spark": "jobsdk.compute.spark.compute:SparkCompute",
}
#: What `pip install 'jobsdk[...]'` brings a type's library, where it is not called as the type.
_EXTRAS = {"azureml": "azure"}


class Entry(NamedTuple):
    """One compute as it is configured. `file` is None for `local` where no file speaks of it."""

    name: str
    type: str
    settings: dict[str, Any]
    file: Path | None


class Configuration(NamedTuple):
    """All computes, the name of the default with the file that it is from (None: no file names one), and the
    machines that the files describe."""

    default: str
    computes: dict[str, Entry]
    default_file: Path | None
    machines: dict[str, dict[str, Any]]


def user_file() -> Path:
    """The user's own computes.yml."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".config") / "jobsdk" / FILE


def project_file() -> Path | None:
    """The project's computes.yml: in the working directory or above it."""
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
    machines: dict[str, dict[str, Any]] = {}
    for file in (project_file(), user_file()):
        if file is not None and file.is_file():
            content = read(file)
            if "retention" in content and file != user_file():
                raise ComputeError(f"{file}: retention deletes your runs, so it belongs in your own {user_file()}")
            if content.get("default"):
                default, default_file = _bare(content["default"]), file
            for name, settings in (content.get("computes") or {}).items():
                computes[name] = _entry(str(name), settings, file)
            machines.update(content.get("machines") or {})
    return Configuration(default, computes, default_file, machines)


def retention() -> Retention | None:
    """Which runs may go, as the user's own computes.yml says. Raises ComputeError as `configuration` does."""
    file = user_file()
    content = read(file).get("retention") if file.is_file() else None
    if content is None:
        return None
    from jobsdk.job.durations import seconds
    from jobsdk.runs.deletion import Retention

    age = content.get("older_than")
    return Retention(None if age is None else seconds(age), content.get("keep"), content.get("failed", False))


def catalogue() -> Catalogue:
    """All kinds of machines that are known here. Raises ComputeError as `configuration` does."""
    from jobsdk.job.machines import known

    return known().joined(configuration().machines)


def read(file: Path, text: bytes | None = None) -> Mapping[str, Any]:
    """The content of a computes.yml, or of `text` that is to be one. Raises ComputeError for what is wrong in it."""
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        content = yaml.load(file.read_bytes() if text is None else text, loader)  # nosec B506 # both loaders are safe
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ComputeError(f"{place}: cannot be read: {what}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        from jobsdk.findings import one_of

        raise ComputeError(f"{file}: must be a mapping with the keys {one_of(_KEYS)}")
    mistakes = list(_mistakes(content))
    if mistakes:
        raise ComputeError("\n".join(f"{file}: {mistake}" for mistake in mistakes))
    return content


def _mistakes(content: Mapping[Any, Any]) -> Iterator[str]:
    """Everything that is wrong in the content of a file."""
    from jobsdk.findings import one_of

    for key in content:
        if key not in _KEYS:
            yield f"there is no key {key!r} here, only {one_of(_KEYS)}"
    if content.get("machines") is not None:
        from jobsdk.job.machines import mistakes

        yield from mistakes(content["machines"])
    if content.get("retention") is not None:
        yield from _retention_mistakes(content["retention"])
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


def _retention_mistakes(given: object) -> Iterator[str]:
    from jobsdk.findings import one_of
    from jobsdk.job.durations import seconds
    from jobsdk.runs.deletion import Retention

    if not isinstance(given, dict) or not given:
        yield "retention must be a mapping, as in retention: {older_than: 30d, keep: 20}"
        return
    for key, value in given.items():
        if key not in Retention._fields:
            yield f"retention has no key {key!r}, only {one_of(Retention._fields)}"
        elif key == "older_than" and seconds(value) is None:
            yield f"retention.older_than must be a length of time such as 30d, not {value!r}"
        elif key == "keep" and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            yield f"retention.keep must be a number of runs, not {value!r}"
        elif key == "failed" and not isinstance(value, bool):
            yield f"retention.failed must be true or false, not {value!r}"


def _entry(name: str, settings: dict[str, Any], file: Path) -> Entry:
    return Entry(name, settings["type"], {key: settings[key] for key in settings if key != "type"}, file)


def _bare(name: str) -> str:
    """The name without `azureml:`, which job files written for Azure ML put before it."""
    return name.removeprefix("azureml:")


def resolve(name: str | None, found: Configuration | None = None) -> Compute:
    """The compute of a name; without one the configured default. Raises ComputeError.

    `found` is the configuration, where it has been read already.
    """
    found = found or configuration()
    wanted = _bare(name) if name else found.default
    if wanted not in found.computes:
        raise ComputeError(_unknown(wanted, found, is_default=not name))
    entry = found.computes[wanted]
    compute = type_of(entry.type, entry.file)(entry.name, entry.settings)
    compute.site_machines = found.machines
    return compute


def of_run(run: RunFolder) -> Compute:
    """The compute that a run was submitted to, as it was configured then."""
    native = run.read_json("native.json")
    kind = native.get("type", LOCAL)
    settings = {} if kind == LOCAL else run.read_json("compute.json")
    return type_of(kind)(native.get("compute", LOCAL), settings)


def types() -> list[str]:
    """The types of compute that are installed."""
    from importlib.metadata import entry_points

    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=_GROUP))})


def _unknown(name: str, found: Configuration, *, is_default: bool) -> str:
    from jobsdk.findings import nearest, show

    near = nearest(name, found.computes)
    origin = f", the default in {found.default_file}" if is_default else ""
    return (
        f"there is no compute {show(name)}{origin}{f': did you mean {near!r}?' if near else '.'} Fix: add it to "
        f"{project_file() or user_file()} as 'computes: {{{name[:60]}: {{type: TYPE}}}}' "
        f'(types here: {", ".join(types())}), or use --compute {LOCAL} (in Python compute="{LOCAL}")'
    )


def type_of(name: str, file: Path | None = None) -> type[Compute]:
    """The class of a type of compute, which `file` asks for. Raises ComputeError if it is not available."""
    import importlib

    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        try:
            found: type[Compute] = getattr(importlib.import_module(module), attribute)
        except ImportError as error:  # of the engine's own library
            from jobsdk.installation import install_command

            fix = install_command(_EXTRAS.get(name, name))
            text = f"the compute type {name} cannot be used here: {error}. Fix: {fix}"
            raise ComputeError(text) from error
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=name):
        try:
            found = entry.load()
        except Exception as error:  # another package's import may fail in any way
            raise ComputeError(f"the compute type {name} ({entry.value}) cannot be loaded: {error}") from error
        return found
    from jobsdk.findings import nearest

    near = nearest(name, types())
    hint = f": did you mean {near!r}?" if near else ";"
    place = f"{file}: " if file else ""
    raise ComputeError(f"{place}there is no compute type {name!r}{hint} installed are {', '.join(types())}")
