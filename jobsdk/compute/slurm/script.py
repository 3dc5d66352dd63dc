"""The sbatch script of a run: one `srun` that starts a bootstrap on each node. Pure."""

from __future__ import annotations

import math
import os.path
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.spec import paths, ranks, variables
from jobsdk.compute.shipping import parcel
from jobsdk.compute.slurm import settings as slurm_settings
from jobsdk.job import durations

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan

SCRIPT, LOG, SOURCE = "job.sbatch", "logs/slurm.log", "code.source"
#: Seconds for what comes before a job's time begins to count and after it has ended, beside rendezvous and grace.
_MARGIN_S = 60
#: Seconds that srun waits for the other nodes' bootstraps after the first has ended, beside the grace time. They end
#: together; a bootstrap that was killed is named by the others, which a step that is killed at once could not do.
_LAST_WORDS_S = 20

_SCRIPT = """\
#!/bin/bash
# Run {run}: a bootstrap on each node, which starts and watches the ranks there.
{header}
{environment}
trap : TERM # Slurm's signals are for the bootstraps; the script stays until they have ended
{srun}
code=$?
{requeue}exit $code
"""
_REQUEUE = """\
# Nodes that were taken away: the job goes on elsewhere. Slurm does so by itself only if it has to kill the job; and a
# job that Slurm is ending (scancel, the time limit) would come back to life.
if rm {mark} 2>/dev/null && [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
"""


class Folders(NamedTuple):
    """Where things are on the cluster."""

    run_dir: str
    shared: tuple[str, ...]  # what a container must see: the run's folder, the stored code
    has_code: bool  # whether submitting brings code, whose place is then in the file SOURCE of the run's folder
    in_place: str | None = None  # the working directory, where it is no private copy of the code


def script(plan: Plan, settings: Mapping[str, Any], folders: Folders, image: str | None) -> str:
    """The script; `image` is that of the container, where there is one."""
    requeues = may_requeue(plan, settings)
    run_dir = folders.run_dir
    options = _header(plan, settings, run_dir, requeues)
    environment = []
    if folders.has_code:
        environment.append(f'export {variables.CODE}="$(cat {shlex.quote(f"{run_dir}/{SOURCE}")})"')
    elif folders.in_place is None and "code" not in plan:
        empty = shlex.quote(f"{run_dir}/code")
        environment += [f"mkdir -p {empty}", f"export {variables.CODE}={empty}"]
    if requeues:
        environment.append(f"export {variables.REQUEUES}=1")
    python = settings.get("python", "python3")
    if "/" in python:
        environment.append(f"export PATH={shlex.quote(os.path.dirname(python))}:$PATH")
    environment += settings.get("setup", [])
    return _SCRIPT.format(
        run=plan["run"],
        header="".join(f"#SBATCH {option}\n" for option in options),
        environment="".join(f"{line}\n" for line in environment),
        srun=_srun(plan, settings, folders, image),
        requeue=_REQUEUE.format(mark=shlex.quote(paths.handed_over_mark(run_dir))) if requeues else "",
    )


def may_requeue(plan: Plan, settings: Mapping[str, Any]) -> bool:
    """Whether the job may be started again by Slurm: where it allows itself restarts and the settings do not forbid."""
    rules = plan["restarts"]
    return bool(rules["max"] or rules["max_preemptions"]) and settings.get("requeue", True)


def spares_of(plan: Plan, settings: Mapping[str, Any]) -> int:
    """How many nodes wait to take the place of a lost one: none where the job may not restart."""
    spares: int = settings.get("spare", 0) if plan["restarts"]["max"] else 0
    return spares


def nodes_of(plan: Plan, settings: Mapping[str, Any]) -> int:
    """The nodes to ask Slurm for."""
    return plan["nodes"] + spares_of(plan, settings)


def time_limit(plan: Plan, settings: Mapping[str, Any]) -> str | None:
    """For --time: more than the job's own limit, which is to end it with a card; None is the partition's."""
    if plan["timeout_s"] is None:
        return str(settings["time"]) if "time" in settings else None
    seconds = plan["timeout_s"] + plan["rendezvous_timeout_s"] + plan["grace_s"] + _MARGIN_S
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def _header(plan: Plan, settings: Mapping[str, Any], run_dir: str, requeues: bool) -> list[str]:
    def option(name: str, value: Any) -> str:
        return f"--{name}={_quoted(str(value))}"

    wanted = ranks.gpus_of(plan, distributions.of(plan).most_processes()) or None
    gpus = slurm_settings.gpus(settings, wanted)
    limit = time_limit(plan, settings)
    options = [option("job-name", plan["run"])]
    if "comment" in settings:
        options.append(option("comment", settings["comment"]))
    named = ("partition", "account", "qos", "reservation", "constraint", "exclude")
    options += [option(name, settings[name]) for name in named if name in settings]
    options += [option("nodes", nodes_of(plan, settings)), "--ntasks-per-node=1"]
    options += ["--no-kill"] if spares_of(plan, settings) else []  # Slurm would end the job with the lost node
    if gpus is not None:
        options.append(option(*gpus))
    options += [option(name.replace("_", "-"), settings[name]) for name in ("cpus_per_task", "mem") if name in settings]
    options += ["--exclusive"] if settings.get("exclusive") else []
    options += [option("time", limit)] if limit else []
    if "signal" in settings:
        options.append(f"--signal=TERM@{durations.whole(durations.seconds(settings['signal']) or 1)}")
    options.append("--requeue" if requeues else "--no-requeue")
    options += ["--open-mode=append", option("output", f"{run_dir}/{LOG}".replace("%", "%%")), option("chdir", run_dir)]
    return options + [str(line) for line in settings.get("sbatch", [])]


def _srun(plan: Plan, settings: Mapping[str, Any], folders: Folders, image: str | None) -> str:
    # One task a node that is no MPI program, and has the script's environment and all of the job's cores there.
    options = [
        "srun", f"--nodes={nodes_of(plan, settings)}", "--ntasks-per-node=1", "--kill-on-bad-exit=0",
        *(["--no-kill"] if spares_of(plan, settings) else []),
        f"--wait={math.ceil(plan['grace_s']) + _LAST_WORDS_S}", "--cpu-bind=none", "--mpi=none",
        "--export=ALL",
    ]  # fmt: skip
    if "cpus_per_task" in settings:  # srun does not take it from sbatch (since Slurm 22.05)
        options.append(f"--cpus-per-task={settings['cpus_per_task']}")
    if folders.in_place is not None:
        options.append(f"--chdir={folders.in_place}")
    options += [*settings.get("srun", []), *_container(settings, folders, image)]
    program = parcel.command(settings.get("python", "python3"), folders.run_dir, "node", folders.run_dir)
    return f"{shlex.join(options)} \\\n    {shlex.join(program)}"


def _container(settings: Mapping[str, Any], folders: Folders, image: str | None) -> list[str]:
    """What comes between srun and Python so that a node's bootstrap and ranks are in a container."""
    container = settings.get("container")
    if container is None or image is None:
        return []
    shared = [*folders.shared, *([folders.in_place] if folders.in_place else [])]
    mounts = [*(f"{folder}:{folder}" for folder in shared), *container.get("mounts", [])]
    args = container.get("args", [])
    if container["runner"] == "pyxis":
        return [f"--container-image={_of_enroot(image)}", f"--container-mounts={','.join(mounts)}", *args]
    binds = [word for mount in mounts for word in ("--bind", mount)]
    is_named = "://" in image or image.startswith(("/", "./")) or image.endswith(".sif")
    return ["apptainer", "exec", *binds, *args, image if is_named else f"docker://{image}"]


def _of_enroot(image: str) -> str:
    """`nvcr.io/nvidia/pytorch:24.05` as enroot has it: `nvcr.io#nvidia/pytorch:24.05`. Files stay."""
    if "#" in image or image.startswith(("/", "./")) or image.endswith(".sqsh"):
        return image
    return re.sub(r"^(docker://)?([^/]*[.:][^/]*)/", r"\1\2#", image)


def _quoted(text: str) -> str:
    """A word of an #SBATCH line. sbatch takes a backslash in quotes for its own, a shell does not."""
    return shlex.quote(text.replace("\\", "\\\\"))
