"""What can be set for a compute of type slurm, in computes.yml and, but for the place, in a job's own properties."""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jobsdk.compute.settings import FLAG, Setting, duration, mistakes_in, must_be

_GPUS = re.compile(r"(?:([A-Za-z][\w.-]*):)?([1-9][0-9]*)")
_GPU_TYPE = re.compile(r"[A-Za-z][\w.-]*")
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")
_MEMORY = re.compile(r"\d+[KMGTkmgt]?")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        return "must be text"
    return "must be one line" if "\n" in value or "\r" in value else ""


def _like(pattern: re.Pattern[str], says: str) -> Callable[[Any], str]:
    def fits(value: Any) -> bool:
        is_plain = isinstance(value, str | int) and not isinstance(value, bool)
        return is_plain and pattern.fullmatch(str(value)) is not None

    return must_be(says, fits)


_time = must_be(
    "minutes, H:MM:SS or D-HH:MM:SS, in quotes (YAML takes 1:00:00 without them for a number)",
    lambda value: isinstance(value, str) and _TIME.fullmatch(value) is not None,
)
_count = must_be("a number above 0", lambda value: type(value) is int and value > 0)


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return "must be a list of lines"
    return next((f"has {line!r}, which {why}" for line in value if (why := _text(line))), "")


def _folder(value: Any) -> str:
    return _text(value) or ("" if os.path.isabs(value) else "must be an absolute path")


def _container(value: Any) -> str:
    if not isinstance(value, dict):
        return "must be a mapping, as in {runner: apptainer}"
    known = {"runner": _like(re.compile("pyxis|apptainer"), "pyxis or apptainer"), "image": _text, "mounts": _lines,
             "args": _lines}  # fmt: skip
    if "runner" not in value:
        return "needs runner: pyxis or apptainer"
    for name, given in value.items():
        if name not in known:
            return f"has no {name!r}; it has {', '.join(known)}"
        if why := known[name](given):
            return f"has a {name} that {why}"
    return ""


def _accelerators(value: Any) -> str:
    if not isinstance(value, dict):
        return "must be a mapping, as in {A100: a100}, or {A100: {type: a100, constraint: nvlink}}"
    known = {"type": _like(_GPU_TYPE, "the type of a gres"), "constraint": _text}
    for name, given in value.items():
        parts = given if isinstance(given, dict) else {"type": given}
        for part, one in parts.items():
            if part not in known:
                return f"has {name}.{part}; there are {', '.join(known)}"
            if why := known[part](one):
                return f"has a {part} of {name} that {why}"
    return ""


def _preload(value: Any) -> str:
    from jobsdk.findings import Report
    from jobsdk.job.command import PRELOAD

    report = Report()
    PRELOAD.structure(value, ("preload",), report)
    return report.findings[0].message if report.errors else ""


SETTINGS: Mapping[str, Setting] = {
    "folder": Setting(
        "folder that all nodes see: runs go to FOLDER/runs, code to FOLDER/code; without it $JOBSDK_HOME must be seen "
        "by the nodes",
        _folder, of_job=False,
    ),
    "login": Setting("login node to submit from, as user@host; the system's ssh is used", _text, of_job=False),
    "ssh_options": Setting('further options for ssh, as ["-F", "/path/to/config"]', _lines, of_job=False),
    "python": Setting("Python 3.8 or later on the nodes (python3); with a path its folder is put first on PATH", _text),
    "partition": Setting("partition, or several with commas", _text),
    "account": Setting("account that is charged", _text),
    "qos": Setting("quality of service", _text),
    "reservation": Setting("reservation", _text),
    "constraint": Setting("features that the nodes must have", _text),
    "exclude": Setting("nodes that are not to be used", _text),
    "gpus_per_node": Setting(
        "GPUs of each node, as 8 or a100:8, for jobs without gpus_per_process",
        _like(_GPUS, "a number, or TYPE:NUMBER"),
    ),
    "gres": Setting("the same by --gres, as gpu:a100:8, for clusters without --gpus-per-node", _text),
    "accelerators": Setting(
        "types of gres, or {type, constraint}, for the accelerator_type of scaling, as {A100: a100}; not given: its "
        "name in small letters",
        _accelerators, of_job=False,
    ),
    "cpus_per_task": Setting("cores of each node; Slurm gives 1 otherwise, unless exclusive", _count),
    "mem": Setting("memory of each node, as 64G; 0 is all", _like(_MEMORY, "a size such as 64G")),
    "exclusive": Setting("whether whole nodes are taken", FLAG),
    "time": Setting(
        "longest time of jobs without limits.timeout, as minutes, H:MM:SS or D-HH:MM:SS",
        _time,
    ),
    "requeue": Setting("false: never start again a job that lost its nodes, whatever it allows itself", FLAG),
    "spare": Setting(
        "nodes beside those of the job, which wait to take the place of one that is lost, for jobs with max_restarts",
        _count,
    ),
    "signal": Setting("how long before the end of its time a job gets SIGTERM: seconds, or 2m", duration),
    "comment": Setting("comment", _text),
    "setup": Setting("lines of shell before srun, such as module load cuda", _lines),
    "container": Setting("{runner: pyxis or apptainer, image: if the job has none, mounts: [A:B], args}", _container),
    "sbatch": Setting("further options of sbatch, as [--mail-type=END]", _lines),
    "srun": Setting("further options of srun", _lines),
    "preload": Setting("modules that each node imports once, for jobs that do not say it themselves", _preload, False),
}  # fmt: skip


def mistakes(settings: Mapping[str, Any], *, of_job: bool = False) -> Iterator[tuple[str, str]]:
    """What is wrong: (setting, words)."""
    yield from mistakes_in(SETTINGS, settings, of_job=of_job)
    if not of_job and "login" in settings and "folder" not in settings:
        yield "login", "needs folder: an absolute path there that all nodes see"


def gpus(settings: Mapping[str, Any], wanted: int | None) -> tuple[str, str] | None:
    """(option, value) that asks for GPUs on each node: `wanted` of them, otherwise what the settings say."""
    if "gres" in settings:
        entries = settings["gres"].split(",")
        if wanted:
            entries = [re.sub(r"^(gpu(?::[A-Za-z][^:]*)?)(:\d+)?$", rf"\1:{wanted}", entry) for entry in entries]
        return "gres", ",".join(entries)
    found = _GPUS.fullmatch(str(settings.get("gpus_per_node", "")))
    if found is None:
        return ("gpus-per-node", str(wanted)) if wanted else None
    kind, number = found.groups()
    return "gpus-per-node", f"{kind + ':' if kind else ''}{wanted or number}"


def gpu_count(settings: Mapping[str, Any]) -> int | None:
    """How many GPUs a node has by `gpus_per_node` or `gres`; None if they do not say."""
    found = _of_gpus(settings)
    return int(found[1]) if found else None


def gpu_kind(settings: Mapping[str, Any]) -> str | None:
    """The type of GPUs that `gpus_per_node` or `gres` asks for."""
    found = _of_gpus(settings)
    return found[0] if found else None


def is_gpu_kind(name: str) -> bool:
    """Whether Slurm can have a type of GPUs of that name."""
    return _GPU_TYPE.fullmatch(name) is not None


def _of_gpus(settings: Mapping[str, Any]) -> tuple[str | None, str] | None:
    entries = [one.partition(":")[2] or "1" for one in str(settings.get("gres", "")).split(",") if _is_gpu(one)]
    found = _GPUS.fullmatch((entries or [str(settings.get("gpus_per_node", ""))])[0])
    return (found[1], found[2]) if found else None


def _is_gpu(entry: str) -> bool:
    return entry.partition(":")[0] == "gpu"
