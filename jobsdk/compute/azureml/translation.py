"""A job in Azure ML's own terms: what of it the service starts by itself, and how it starts jobsdk's bootstrap. Pure.

With the launcher `native` Azure ML starts the ranks, and the job stays as it is but for what the service does not know.
With `bootstrap` the service starts the bootstrap once on each node, as a job of its type pytorch with one process a
node; that one starts the ranks, as on every other compute.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.agent import azureml_node
from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.spec import variables as variables_
from jobsdk.compute import job_rules
from jobsdk.compute.shipping import parcel
from jobsdk.findings import Finding
from jobsdk.job import durations
from jobsdk.job.distribution import (
    DeepSpeedDistribution,
    MpiDistribution,
    PyTorchDistribution,
    TensorFlowDistribution,
)
from jobsdk.job.resources import CommandJobLimits

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import DataPlan, Plan
    from jobsdk.job.command import CommandJob

NATIVE, BOOTSTRAP = "native", "bootstrap"
LAUNCHERS = (NATIVE, BOOTSTRAP)
#: What of a job is for this compute alone, in `resources.properties`; it is not sent.
PROPERTY = "azureml"
_FOLDER = ".jobsdk"  # in the code folder
#: Where the bootstrap lies in the code folder. Its bytes are those of the jobsdk, so that the same code stays the same.
BOOTSTRAP_FILE = f"{_FOLDER}/{parcel.BOOTSTRAP}"

_PATH_NAMES = {"inputs": azureml_node.INPUT, "outputs": azureml_node.OUTPUT}
#: Linux takes no longer string from one program to the next (MAX_ARG_STRLEN, 32 pages of 4 KiB, with the NUL).
_LONGEST = 128 * 1024 - len(azureml_node.PLAN) - 2
#: Seconds that Azure ML's own limit comes after the bootstrap's, which writes the report.
_MARGIN_S = 60.0
#: TensorFlow 2.13 and later refuse the empty list of parameter servers that Azure ML writes into TF_CONFIG.
_MEND = (
    '[ -z "$TF_CONFIG" ] || export TF_CONFIG="$(printf %s "$TF_CONFIG" | sed '
    """-e 's/"ps" *: *\\[ *\\] *, *//' -e 's/ *, *"ps" *: *\\[ *\\]//')"; """
)
#: Fields of jobsdk's own, beside those of distributions, that only the bootstrap uses.
_OWN = (
    ("preload",),
    ("max_restarts",),
    ("max_preemptions",),
    ("max_no_progress",),
    ("restart_delay",),
    ("retry_on",),
    ("never_retry_on",),
    ("limits", "hang_timeout"),
    ("limits", "grace_period"),
    ("limits", "rendezvous_timeout"),
    ("resources", "gpus_per_process"),
)


def settings_of(job: CommandJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The compute's settings, and over them those of the job itself."""
    return {**settings, **_own_settings(job)}


def launcher(job: CommandJob, settings: Mapping[str, Any]) -> str:
    """Who starts the ranks: as the job says, else the compute, else by the distribution.

    What the compute says is a default: it does not hold for DeepSpeed, which Azure ML does not know.
    """
    own = _own_settings(job).get("launcher")
    if own is not None:
        return str(own)
    if isinstance(job.distribution, DeepSpeedDistribution):
        return BOOTSTRAP
    return str(settings.get("launcher", NATIVE))


def native_job(job: CommandJob, plan: Plan, settings: Mapping[str, Any]) -> CommandJob:
    """A copy of a valid `job`, of which `plan` was made, that holds only what Azure ML knows. `settings` are the
    compute's. What is secret in it, and the run's token, are put in by `completed`."""
    from jobsdk.job.expressions import render_optional

    is_native = launcher(job, settings) == NATIVE
    settings = settings_of(job, settings)
    native = copy.deepcopy(job)
    native.inputs = job.given_inputs()
    native.secrets = []
    native.preload = native.retry_on = native.never_retry_on = None
    native.max_restarts = native.max_preemptions = 0
    native.max_no_progress = native._fields["max_no_progress"].default
    native.restart_delay = None
    native.resources.gpus_per_process = None
    properties = {key: value for key, value in (job.resources.properties or {}).items() if key != PROPERTY}
    native.resources.properties = properties or None
    native.limits = _limits(plan, is_native) or (job.limits if job.limits == CommandJobLimits() else None)
    if is_native:
        native.command = _mended(render_optional(job.command or "", native.inputs), job, settings)
        _only_what_azure_knows(native)
        return native
    native.command = _command_of_bootstrap(plan, settings)
    native.distribution = PyTorchDistribution(process_count_per_instance=1) if plan["nodes"] > 1 else None
    native.environment_variables = {**job.environment_variables, azureml_node.PLAN: azureml_node.packed(_sent(plan))}
    return native


def completed(native: CommandJob, plan: Plan, token: str) -> CommandJob:
    """A copy of what `native_job` gave with all that is only sent and never kept: secrets, and for the bootstrap the
    run's token (hexadecimal). `plan` is the run's as `plan_file.read` gives it, with its secrets."""
    whole = copy.deepcopy(native)
    variables = dict(native.environment_variables)
    variables.update({name: plan["environment"][name] for name in plan["secrets"] if name in plan["environment"]})
    if azureml_node.PLAN in variables:
        variables.update({azureml_node.PLAN: azureml_node.packed(_sent(plan)), variables_.TOKEN: token})
    elif "command" in plan["sealed"]:
        mended = _MEND if (native.command or "").startswith(_MEND) else ""
        whole.command = mended + _command_text(plan)
    whole.environment_variables = variables
    for part in ("inputs", "outputs"):
        if part in plan["sealed"]:
            _unseal(getattr(whole, part), plan[part])
    return whole


def findings(name: str, job: CommandJob, plan: Plan, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """What the launcher does not support in a job (errors), or ignores (warnings). `name` is the compute's."""
    chosen = launcher(job, settings)
    if chosen not in LAUNCHERS:
        where = ("resources", "properties", PROPERTY, "launcher")
        yield Finding("error", where, f"there is no launcher {chosen!r}", "write native or bootstrap")
    elif chosen == NATIVE:
        yield from _not_native(job)
    else:
        yield from _not_by_bootstrap(name, job, plan)
    hidden = plan["secrets"]
    if hidden:
        path = ("secrets",) if job.secrets else ("environment_variables", str(hidden[0]))
        message = (
            f"Azure ML shows {', '.join(hidden[:5])} to everybody who may read the job: it keeps no variable secret"
        )
        yield Finding("warning", path, message, "have the script read it from the workspace's key vault")


# -- the launcher native ---------------------------------------------------------------------------------------------


def _mended(command: str, job: CommandJob, settings: Mapping[str, Any]) -> str:
    """The command, which first takes an empty list of parameter servers out of TF_CONFIG where one may be."""
    distribution = job.distribution
    is_needed = isinstance(distribution, TensorFlowDistribution) and not distribution.parameter_server_count
    return _MEND + command if is_needed and settings.get("mend_tf_config", True) else command


def _only_what_azure_knows(native: CommandJob) -> None:
    if isinstance(native.distribution, TensorFlowDistribution):
        native.distribution.chief = False
    elif isinstance(native.distribution, MpiDistribution):
        native.distribution.launcher = None  # type: ignore[assignment]  # the default


def _not_native(job: CommandJob) -> Iterator[Finding]:
    fix = f"set resources.properties.{PROPERTY}.launcher: {BOOTSTRAP}"
    distribution = job.distribution
    if isinstance(distribution, DeepSpeedDistribution):
        yield Finding("error", ("distribution",), "Azure ML has no distribution for DeepSpeed", fix)
    if isinstance(distribution, TensorFlowDistribution) and distribution.chief:
        yield Finding("error", ("distribution", "chief"), "Azure ML starts no task of the role chief", fix)
    if isinstance(distribution, MpiDistribution) and distribution.launcher != "mpirun":
        yield Finding("warning", ("distribution", "launcher"), "Azure ML starts the ranks with its own mpirun", fix)
    for path in _OWN:
        if _is_given(job, path):
            yield Finding("warning", path, "has no effect where Azure ML starts the ranks", fix)


def _is_given(job: CommandJob, path: tuple[str, ...]) -> bool:
    model: Any = job
    for name in path[:-1]:
        model = getattr(model, name)
    return model is not None and getattr(model, path[-1]) != type(model)._fields[path[-1]].initial()


# -- the launcher bootstrap ------------------------------------------------------------------------------------------


def _command_of_bootstrap(plan: Plan, settings: Mapping[str, Any]) -> str:
    """One line for a shell. Azure ML puts paths into a job's command alone, so the command hands them on."""
    paths = [
        f"{_PATH_NAMES[part]}{name}='${{{{{part}.{name}}}}}'"
        for part in ("inputs", "outputs")
        for name, given in plan[part].items()
        if "literal" not in given
    ]
    argv = parcel.command(settings.get("python", "python3"), _FOLDER, "azureml")
    start = " ".join(["exec", *argv])
    return f"export {' '.join(paths)} && {start}" if paths else start


def _sent(plan: Plan) -> Plan:
    """The plan as the nodes get it: with its secrets, and without paths and URIs that say nothing to them."""
    inputs: dict[str, Any] = {
        name: given if "literal" in given else {**given, "uri": None} for name, given in plan["inputs"].items()
    }
    outputs: dict[str, DataPlan] = {name: {**given, "uri": None} for name, given in plan["outputs"].items()}
    return {**plan, "inputs": inputs, "outputs": outputs, "sealed": []}


def _not_by_bootstrap(name: str, job: CommandJob, plan: Plan) -> Iterator[Finding]:
    yield from job_rules.of_ray_cluster(name, job)
    if job.code is not None and layout.is_remote(job.code) and not job.code.lower().startswith("file:"):
        message = "the bootstrap goes with the code, which must be on this machine"
        yield Finding("error", ("code",), message, "give a local folder: --set code=FOLDER")
    if job.max_preemptions:
        message = "has no effect on Azure ML: it ends the whole job when it takes nodes away"
        yield Finding("warning", ("max_preemptions",), message)
    size = len(azureml_node.packed(_sent(plan)))
    if size > _LONGEST:
        message = f"the plan of the job is too long for an environment variable: {size} bytes, at most {_LONGEST}"
        fix = "move what is long (the command, DeepSpeed's config, variables) into files of the code folder"
        yield Finding("error", ("command",), message, fix)


def _limits(plan: Plan, is_native: bool) -> CommandJobLimits | None:
    """Azure ML's own limit. The bootstrap has the same from when all nodes have met, and says why it ended the job; the
    service's, which counts from before, is for where there is no bootstrap any more."""
    seconds = plan["timeout_s"]
    if seconds is None:
        return None
    if not is_native:
        seconds += plan["rendezvous_timeout_s"] + plan["grace_s"] + _MARGIN_S
    return CommandJobLimits(timeout=durations.whole(seconds))


# -- what is secret --------------------------------------------------------------------------------------------------


def _command_text(plan: Plan) -> str:
    """The job's command again, with the values of literals in it."""
    pieces = []
    for part in plan["command"]:
        if isinstance(part, str):
            pieces.append(part)
        else:
            ((kind, name),) = part.items()
            pieces.append(f"${{{{{kind}s.{name}}}}}")
    return "".join(pieces)


def _unseal(given: dict[str, Any], planned: Mapping[str, Any]) -> None:
    """Put the true values and URIs in the place of those that are kept without their secrets."""
    for name, value in given.items():
        if "literal" in planned[name]:
            given[name] = planned[name]["literal"]
        elif planned[name]["uri"] is not None and layout.is_remote(planned[name]["uri"]):
            value.path = planned[name]["uri"]


def _own_settings(job: CommandJob) -> dict[str, Any]:
    own = (job.resources.properties or {}).get(PROPERTY)
    return dict(own) if isinstance(own, Mapping) else {}
