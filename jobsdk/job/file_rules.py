"""Rules about the files and folders that a job names. They read the file system, and change nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from jobsdk.findings import Path, Report, nearest, show
from jobsdk.job.distribution import MpiDistribution
from jobsdk.job.environment import Environment, is_file
from jobsdk.job.io import Input
from jobsdk.job.paths import is_local, working_directory
from jobsdk.job.rules import rule

if TYPE_CHECKING:
    from pathlib import Path as FilePath

    from jobsdk.job.command import CommandJob
    from jobsdk.job.shell import Word

_MPI_IMPORT = r"(?m)^\s*(?:from|import) +(mpi4py|horovod)\b"
#: By which processes meet without MPI; mpi4py is then something else's.
_OTHER_WORLD = r"\binit_process_group\b|\bdeepspeed\b|\bAccelerator\b|\bTF_CONFIG\b"


@rule("code")
def code_exists(job: CommandJob, report: Report) -> None:
    """The code is a folder or file on this machine."""
    if job.code is not None and is_local(job.code):
        _exists(job, report, ("code",), job.code)


@rule("command", "code")
def scripts_exist(job: CommandJob, report: Report) -> None:
    """A script that the command plainly names is in the code. Only what is certain is reported; see `shell`."""
    from jobsdk.job.shell import scripts

    code = job.resolve(job.code) if job.code is not None and is_local(job.code) else None
    if job.code is not None and (code is None or not os.path.exists(code)):
        return
    if code is not None and os.path.isdir(code) and not _can_be_read(code):
        report.error(("code",), f"the code folder {show(job.code)} cannot be read", "give yourself read access to it")
        return
    text = job.command or ""
    for script in scripts(text):
        if code is None:
            fix = "add 'code: .' or the folder that has it"
            message = f"{script} is named, but the job has no code folder"
        elif os.path.isfile(code):
            if os.path.normpath(script) == code.name:
                continue
            message, fix = f"{script} is named, but the code is the file {code.name}", f"run {code.name}"
        elif os.path.exists(code / script):
            continue
        else:
            near = _inside(code, script) or nearest(os.path.basename(script), _names(code / os.path.dirname(script)))
            fix = f"did you mean '{near}'?" if near else "put it there, or correct the name; paths begin at that folder"
            message = f"{script} is not in the code folder {show(job.code)}"
        report.error(("command",), message, fix, within=script, nth=text.count(script, 0, script.offset))


def _can_be_read(folder: FilePath) -> bool:
    try:
        with os.scandir(folder / "."):  # "." needs the right to enter, the listing that to read
            return True
    except PermissionError:
        return False


@rule("command", "code", "distribution", "resources")
def ranks_share_one_mpi_world(job: CommandJob, report: Report) -> None:
    """A script that uses mpi4py or Horovod needs MPI's processes: others see a world of one process each."""
    given = job.distribution
    if given is not None and given.type in ("mpi", "ray"):
        return
    processes = job.resources.instance_count * ((given and given.process_count_per_instance) or 1)
    for script, nth, text in _python_scripts(job) if processes > 1 else ():
        found = re.search(_MPI_IMPORT, text)
        if found is not None and not re.search(_OTHER_WORLD, text):
            what = f"the distribution {given.type}" if given else "a job without a distribution"
            message = (
                f"{script} uses {found[1]}, and {what} starts no MPI: each of the {processes} processes "
                "would be rank 0 of a world of 1"
            )
            report.warn(("command",), message, "write 'distribution: {type: mpi}'", within=script, nth=nth)


@rule("command", "code", "distribution", "resources")
def an_exception_ends_all_mpi_ranks(job: CommandJob, report: Report) -> None:
    """Under plain Python a rank that raised waits in MPI_Finalize for the others (mpi4py's own documentation)."""
    given = job.distribution
    if not isinstance(given, MpiDistribution) or given.launcher == "direct" or "mpi4py" in (job.command or ""):
        return
    processes = job.resources.instance_count * (given.process_count_per_instance or 1)
    for script, nth, text in _python_scripts(job) if processes > 1 else ():
        found = re.search(_MPI_IMPORT, text)
        if found is not None and found[1] == "mpi4py" and ".Abort(" not in text:
            message = f"{script} uses mpi4py: if one rank raises an exception, the others wait for it forever"
            fix = f"write python -m mpi4py {script}, or call MPI.COMM_WORLD.Abort() on errors"
            report.warn(("command",), message, fix, within=script, nth=nth)


def _python_scripts(job: CommandJob) -> Iterator[tuple[Word, int, str]]:
    """The Python scripts that the command names: the name, how many of that name came before, and the content."""
    from jobsdk.job.shell import scripts

    if job.code is None or not is_local(job.code):
        return
    code, command = job.resolve(job.code), job.command or ""
    for script in scripts(command):
        path = code if os.path.isfile(code) else code / script
        if path.suffix == ".py":
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield script, command.count(script, 0, script.offset), file.read(1 << 20)
            except OSError:
                continue


@rule("inputs.*", "compute")
def input_paths_exist(job: CommandJob, report: Report) -> None:
    """A local input exists, is what its type says, and can be read where the job runs.

    A job that names another compute than this machine may name absolute paths that only that one has.
    """
    elsewhere = job.compute is not None and job.compute.removeprefix("azureml:") != "local"
    for name, item in job.inputs.items():
        if not isinstance(item, Input) or item.path is None or not is_local(item.path):
            continue
        path = ("inputs", name)
        if item.mode == "direct":
            message = "a local path cannot be passed on as it is: no node would find it"
            report.error((*path, "mode"), message, "write ro_mount or download")
        if elsewhere and os.path.isabs(item.path) and not os.path.exists(item.path):
            message = f"there is no {show(item.path)} on this machine; it is taken as a path of the job's nodes"
            report.warn((*path, "path"), message)
            continue
        if not _exists(job, report, (*path, "path"), item.path):
            continue
        is_folder = os.path.isdir(job.resolve(item.path))
        if item.type == "uri_file" and is_folder:
            report.error((*path, "type"), f"{show(item.path)} is a folder", "write uri_folder, or name the file in it")
        if item.type == "uri_folder" and not is_folder:
            report.error((*path, "type"), f"{show(item.path)} is a file", "write uri_file, or name its folder")


@rule("environment.*")
def environment_files_exist(job: CommandJob, report: Report) -> None:
    """The files that describe the environment exist."""
    environment = job.environment
    path: Path = ("environment",)
    if is_file(environment) and _exists(job, report, path, str(environment)):
        from jobsdk.job.yaml_file import read_environment

        file = job.resolve(str(environment))
        if os.path.isfile(file):
            report.findings += read_environment(file)[1]
        else:
            report.error(path, f"{show(environment)} is not a regular file", "name the environment's YAML file")
    if not isinstance(environment, Environment):
        return
    for field in ("conda_file", "requirements"):
        given = getattr(environment, field)
        if not isinstance(given, str) or not is_local(given) or not _exists(job, report, (*path, field), given):
            continue
        if not os.path.isfile(job.resolve(given)):
            what = "a folder" if os.path.isdir(job.resolve(given)) else "not a regular file"
            report.error((*path, field), f"{show(given)} is {what}", "name a file")
    if environment.build is None:
        return
    if environment.image is not None:
        report.error(path, "has both an image and a build folder", "keep one of the two", key=True)
    _build_exists(job, environment, report)


def _build_exists(job: CommandJob, environment: Environment, report: Report) -> None:
    build = environment.build
    path = ("environment", "build")
    if build is None or build.path is None:
        report.error(path, "has no path", "add 'path:', the folder with the Dockerfile", key=True)
    elif is_local(build.path) and _exists(job, report, (*path, "path"), build.path):
        dockerfile = build.dockerfile_path or "Dockerfile"
        if not os.path.isfile(job.resolve(build.path) / dockerfile):
            where = (*path, "dockerfile_path" if build.dockerfile_path else "path")
            report.error(
                where, f"{dockerfile} is not in the folder {show(build.path)}", "add it, or set dockerfile_path"
            )


@rule("distribution", "code")
def deepspeed_config_exists(job: CommandJob, report: Report) -> None:
    """DeepSpeed's configuration goes with the code."""
    config = getattr(job.distribution, "config", None)
    if not isinstance(config, str) or (job.code is not None and not is_local(job.code)):
        return
    folder = job.resolve(job.code or ".")
    if os.path.isdir(folder) and not os.path.isfile(folder / config):
        where = f"the code folder {show(job.code)}" if job.code else "the working directory"
        fix = "its path begins at the code folder; put the file there, or correct the path"
        report.error(("distribution", "config"), f"{show(config)} is not in {where}", fix)


def _inside(code: FilePath, script: str) -> str | None:
    """The end of the script's path that is in the code folder: paths begin there, not beside the job file."""
    parts = os.path.normpath(script).split(os.sep)
    ends = (os.sep.join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if os.path.isfile(code / end)), None)


def _exists(job: CommandJob, report: Report, path: Path, given: str) -> bool:
    """Whether a local path exists; if not, it is reported with what it was read as."""
    resolved = job.resolve(given)
    if os.path.exists(resolved):
        return True
    near = nearest(resolved.name, _names(resolved.parent))
    relative = "" if os.path.isabs(str(given)) else f"paths are relative to {job.base_path or working_directory()}"
    if str(given).startswith("~"):
        relative = f"it stands for {resolved}"
    fix = f"did you mean '{near}'?" if near else relative
    report.error(path, f"there is no {show(given)}", fix)
    return False


def _names(folder: os.PathLike[str]) -> list[str]:
    """The names in a folder, as suggestions; at most a thousand."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, 1000)]
    except OSError:
        return []
