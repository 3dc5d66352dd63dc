"""What all computes that start jobsdk's own bootstrap say alike of a job that is valid by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobsdk import compute as computes
from jobsdk.bootstrap.spec import paths, stores
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding, meant, show
from jobsdk.job.distribution import RayDistribution

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.job.command import CommandJob

Path = tuple[str, ...]

#: Options of `ray start` by which the nodes of a job find one another, and what to do for each.
_OF_RAY_START = {
    **dict.fromkeys(("--head", "--block", "--address", "--node-ip-address"), "remove it"),
    "--port": "set distribution.port",
    "--temp-dir": "set RAY_TMPDIR in environment_variables",
}


def is_in_a_cloud(uri: str | None) -> bool:
    """Whether only Azure ML's own compute could read it. Any node can read an https URL, or fetch from a store."""
    if uri is None or stores.store_of(uri) is not None:
        return False
    return paths.is_remote(uri) and not uri.lower().startswith(("http://", "https://"))


def code_here(job: CommandJob) -> str | None:
    """The folder or file of this machine with the job's code; None without, and where nodes fetch it from a store."""
    return None if job.code is None or stores.store_of(job.code) is not None else str(job.resolve(job.code))


def what_none_can(compute: str, job: CommandJob, plan: Plan, instead: str) -> Iterator[Finding]:
    """Errors. `instead` says what an input may be in the place of a URI of a cloud."""
    yield from of_ray_cluster(compute, job)
    remote = job.code is not None and paths.is_remote(job.code) and not job.code.lower().startswith("file:")
    if remote and stores.store_of(job.code) is None:
        message = f"{show(job.code)} is not on this machine"
        yield Finding("error", ("code",), message, "give a local folder: --set code=FOLDER")
    for name, given in plan["inputs"].items():
        uri = given.get("uri")
        if is_in_a_cloud(uri):
            message = f"{show(uri)} can be read only in its cloud"
            yield Finding("error", ("inputs", name, "path"), message, instead.format(name=name))
    for kind, all_given in (("inputs", plan["inputs"]), ("outputs", plan["outputs"])):
        for name, given in all_given.items():
            if stores.is_passed_on(given) and not paths.is_one_word(str(given["uri"])):
                message = f"{show(given['uri'])} has characters that a shell would interpret"
                yield Finding("error", (kind, name, "path"), message, "rename the object, or leave out mode: direct")


def inputs_not_sent(plan: Plan, nodes: str) -> Iterator[Finding]:
    """Warnings for inputs that lie on a disk. `nodes` says what has to have it, as "the hosts of lab"."""
    for name, given in plan["inputs"].items():
        uri = given.get("uri")
        if uri is not None and not paths.is_remote(uri):
            message = f"{show(uri)} is looked for on {nodes}; it is not sent there"
            yield Finding("warning", ("inputs", name, "path"), message)


def of_ray_cluster(compute: str, job: CommandJob) -> Iterator[Finding]:
    """What the bootstrap does not support in a Ray cluster, or ignores."""
    given = job.distribution
    if not isinstance(given, RayDistribution):
        return
    if "RAY_ADDRESS" in job.environment_variables:
        where = ("environment_variables", "RAY_ADDRESS")
        yield Finding("error", where, "is set for the job's own Ray cluster", "remove it, or set distribution.address")
    for name in ("head_node_additional_args", "worker_node_additional_args"):
        for problem, fix in _unfit_words(getattr(given, name) or ""):
            yield Finding("error", ("distribution", name), problem, fix)
    if given.address is None:
        return
    for name in RayDistribution._fields:
        if name not in ("type", "address") and getattr(given, name) is not None:
            message = "has no effect: with an address no cluster is started"
            yield Finding("warning", ("distribution", name), message, "remove it, or remove distribution.address")
    if (job.resources.instance_count or 1) > 1:
        message = f"only the first of the {job.resources.instance_count} nodes has anything to do on {compute}: with an"
        message += " address no cluster is started"
        yield Finding(
            "warning", ("resources", "instance_count"), message, "set it to 1, or remove distribution.address"
        )


def ray_within_ray(compute: str, job: CommandJob) -> Iterator[Finding]:
    """An error for a job that would start a Ray cluster inside of the one that it runs on."""
    if isinstance(job.distribution, RayDistribution) and job.distribution.address is None:
        message = f"the compute {compute} is a Ray cluster itself, and none is started inside of one"
        fix = "remove the distribution and call ray.init() in the script, or set distribution.address"
        yield Finding("error", ("distribution",), message, fix)


def _unfit_words(text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with further arguments of `ray start`, and what to do."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        yield f"cannot be split into arguments: {error}", "quote it as for a shell"
        return
    for word in words:
        option = word.partition("=")[0]
        if option in _OF_RAY_START:
            yield f"{option} is set by jobsdk", _OF_RAY_START[option]


def ignored_fields(compute: str, job: CommandJob, supported: Collection[Path] = ()) -> Iterator[Finding]:
    """Warnings for fields that have no effect, except those that the compute supports."""
    resources: Any = job.resources
    given: dict[Path, bool] = {
        ("resources", "shm_size"): resources.shm_size is not None,
        ("resources", "docker_args"): bool(resources.docker_args),
        ("resources", "locations"): bool(resources.locations),
        ("resources", "max_instance_count"): resources.max_instance_count is not None,
        ("services",): bool(job.services),
        ("queue_settings",): job.queue_settings is not None,
        ("identity",): job.identity is not None,
    }
    for path, is_given in given.items():
        if is_given and path not in supported:
            yield Finding("warning", path, f"has no effect on the compute {compute}")
    yield from of_other_computes(compute, job, supported)


def of_other_computes(compute: str, job: CommandJob, supported: Collection[Path] = ()) -> Iterator[Finding]:
    """What is wrong in the settings that a job has for other types of compute than the one where it goes, which is
    heard here and not first there; and warnings for those of no type at all."""
    for name, own in (job.resources.properties or {}).items():
        path = ("resources", "properties", str(name))
        if path in supported or own is None:
            continue
        if _takes_job_settings(name):
            yield from of_settings(name, job)
        else:
            fix = meant(name, filter(_takes_job_settings, computes.types()), "")
            yield Finding("warning", path, f"has no effect on the compute {compute}", fix)


def _takes_job_settings(kind: str) -> bool:
    try:
        return computes.type_of(kind).takes_job_settings
    except ComputeError:  # none of that name, or one whose package cannot be imported
        return False


def of_settings(kind: str, job: CommandJob) -> Iterator[Finding]:
    """What is wrong in the settings that a job has for a type of compute, in `resources.properties.KIND`."""
    own = (job.resources.properties or {}).get(kind)
    path = ("resources", "properties", kind)
    if own is None:
        return
    if not isinstance(own, Mapping):
        yield Finding("error", path, "must be a mapping of settings")
        return
    for setting, words in computes.type_of(kind).job_mistakes(own):
        yield Finding("error", (*path, str(setting)), words)


def ignored_scaling(compute: str, job: CommandJob, supported: Collection[str] = ()) -> Iterator[Finding]:
    """Warnings for what a job's `scaling` asks of nodes to no effect, except what the compute supports:
    CPU, memory, custom (resources of the site), accelerator_type, label_selector."""
    scaling = job.scaling
    if scaling is None:
        return
    each = ("scaling", "resources_per_worker")
    for name, amount in (scaling.resources_per_worker or {}).items():
        if amount and name != "GPU" and (name if name in ("CPU", "memory") else "custom") not in supported:
            yield Finding("warning", (*each, name), f"has no effect on the compute {compute}")
    for name in ("accelerator_type", "label_selector"):
        if getattr(scaling, name) and name not in supported:
            yield Finding("warning", ("scaling", name), f"has no effect on the compute {compute}")


def ignored_preemptions(compute: str, job: CommandJob) -> Iterator[Finding]:
    """A warning for a budget that nothing uses, on a compute that does not replace the nodes of a run."""
    if job.max_preemptions:
        message = f"has no effect on the compute {compute}: with a node that is taken away the run ends"
        yield Finding("warning", ("max_preemptions",), message, "submit it again; it can go on from its checkpoint")


def ignored_outputs(compute: str, job: CommandJob, plan: Plan) -> Iterator[Finding]:
    """Warnings for outputs that are to be registered, or written to a cloud."""
    for name, output in job.outputs.items():
        here = f"has no effect on the compute {compute}: the output is kept with the run"
        if output.name is not None:
            yield Finding("warning", ("outputs", name, "name"), f"{here}, not registered")
        uri = plan["outputs"][name]["uri"]
        if uri is not None and paths.is_remote(uri) and stores.store_of(uri) is None:
            yield Finding("warning", ("outputs", name, "path"), f"{here}, not at {show(uri)}")
