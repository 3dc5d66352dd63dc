"""The Kubernetes compute: a job is an Indexed Job, or a JobSet, with one pod for each node."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from jobsdk.bootstrap.spec import paths as layout
from jobsdk.bootstrap.spec import plan_file
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Compute, Spec, Warn
from jobsdk.compute.kubernetes import combinations, placing
from jobsdk.compute.kubernetes import objects as made
from jobsdk.compute.kubernetes import scaling as kubernetes_scaling
from jobsdk.compute.kubernetes import settings as kubernetes_settings
from jobsdk.compute.settings import meanings
from jobsdk.compute.shipping import parcel
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding, show
from jobsdk.home import locked
from jobsdk.job import workers
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.kubernetes.api import Api
    from jobsdk.compute.kubernetes.code import Brought
    from jobsdk.job.command import CommandJob
    from jobsdk.job.machines import Machine
    from jobsdk.job.workers import Layout, NodeCapacity
    from jobsdk.planning.placement import Placement
    from jobsdk.runs.logs import View

_SUPPORTED = (("resources", "shm_size"), ("resources", "properties", "kubernetes"))


class KubernetesCompute(Compute):
    """Submits with the kubeconfig's credentials, or a pod's own; reads the ranks' logs from those of the pods."""

    type: ClassVar[str] = "kubernetes"
    takes_job_settings: ClassVar[bool] = True
    pace: ClassVar[Pace] = Pace(1.0, 10.0)
    settings_known: ClassVar[Mapping[str, str]] = meanings(kubernetes_settings.SETTINGS)

    def mistakes(self, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return kubernetes_settings.mistakes(own)

    @classmethod
    def job_mistakes(cls, own: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        return kubernetes_settings.mistakes(own, of_job=True)

    # -- compiling -------------------------------------------------------------------------------------------------

    def findings(self, job: CommandJob, plan: Plan, at: Placement, *, build_env: bool = False) -> list[Finding]:
        own = list(job_rules.of_settings(self.type, job))
        return [
            *(own or combinations.findings(self.name, at.settings, plan["nodes"])),
            *self._judge_image(job, at.settings, build_env),
            *job_rules.what_none_can(self.name, job, plan, "give a path on a volume, or an https URL"),
            *self._judge_data(plan),
            *job_rules.ignored_fields(self.name, job, _SUPPORTED),
            *kubernetes_scaling.findings(self.name, self.settings, job.scaling, at.layout),
            *placing.findings(self.name, at.settings, plan["nodes"]),
        ]

    def compile(
        self, job: CommandJob, plan: Plan, at: Placement, *, in_place: bool = False, build_env: bool = False
    ) -> Spec:
        settings = at.settings
        source = job_rules.code_here(job)
        how = None
        if source is not None:
            from jobsdk.compute.kubernetes import code as kubernetes_code

            how = kubernetes_code.way(Path(source), settings)
        return {
            "compute": self.name,
            "type": self.type,
            "context": self.settings.get("context"),
            "namespace": self.settings.get("namespace"),
            "code": source,
            "code_by": how,
            "own_settings": self.job_settings(job),
            "objects": made.objects(plan, settings, image=_image(job, settings) or "", code=how),
        }

    def native(self, spec: Spec) -> str:
        """The objects as YAML, in the order in which kubectl can apply them.

        What submitting adds, secret values and packed files, is not there: the annotation `jobsdk/added-at-submission`
        names it.
        """
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return yaml.dump_all(spec["objects"], Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)

    def settings_for(self, job: CommandJob, layout: Layout | None) -> dict[str, Any]:
        own = self.job_settings(job)
        settings = {**self.settings, **own}
        if job.resources.shm_size is not None:
            settings["shm_size"] = job.resources.shm_size
        if job.resources.instance_type is not None:
            selector = {"node.kubernetes.io/instance-type": job.resources.instance_type}
            settings["node_selector"] = {**settings.get("node_selector", {}), **selector}
        if job.scaling is None or layout is None:
            return settings
        return kubernetes_scaling.settled(settings, own, job.scaling, layout)

    def room(self, job: CommandJob, machine: Machine | None) -> NodeCapacity | None:
        gpus = {**self.settings, **self.job_settings(job)}.get("gpus_per_node")
        return workers.room_with(self.name, gpus, super().room(job, machine))

    # -- running ---------------------------------------------------------------------------------------------------

    def prepare(self, spec: Spec, warn: Warn) -> None:
        from jobsdk.compute.kubernetes import admission

        api = self._api(spec)
        api.version()
        admission.check(api, spec["objects"])

    def submit(self, spec: Spec, run: RunFolder, warn: Warn) -> None:
        """Create the Job suspended, then what it needs, owned by it, then let it start: if anything goes wrong on the
        way, deleting the Job takes all with it."""
        from jobsdk.compute.kubernetes import code as kubernetes_code

        api = self._api(spec)
        *others, job = spec["objects"]
        settings = {**self.settings, **spec["own_settings"]}
        code = kubernetes_code.Brought({}, {}, {}, {})
        if spec["code"] is not None:
            mode = self.folder_mode if "folder_mode" in self.settings else kubernetes_code.MODE_ON_VOLUME
            code = kubernetes_code.bring(Path(spec["code"]), spec["code_by"], settings, mode)
            run.write_json("snapshot.json", code.facts)
        owner = api.create(_suspended(job))
        run.write_json(
            "kubernetes.json",
            {
                "context": api.place.context, "namespace": api.place.namespace, "server": api.server,
                "kind": job["kind"], "name": job["metadata"]["name"],
            },
        )  # fmt: skip
        try:
            for one in others:
                if one["metadata"]["name"] == made.bootstrap_name():
                    _bring_bootstrap(api, one)
                else:
                    api.create(_filled(_owned(one, owner), run, code))
            if not job["spec"].get("suspend"):
                api.merge(job["kind"], job["metadata"]["name"], {"spec": {"suspend": False}})
        except BaseException:
            api.delete(job["kind"], job["metadata"]["name"])
            raise
        plan_file.forget_secrets(str(run.path))  # nothing here needs them any more

    def cancel(self, run: RunFolder, by: str) -> None:
        if run.recorded_state().is_terminal:
            return
        where = _where(run)
        if not where:
            raise ComputeError(f"run {run.name} was not submitted to the end")
        with contextlib.suppress(ComputeError):
            self._look(run, None)  # the pods' logs go with them
        run.append_event("cancel_requested", by=by)
        self._api(where).delete(where["kind"], where["name"])

    def refresh(self, run: RunFolder) -> None:
        self._look(run, ())

    def read(self, run: RunFolder, view: View | None) -> None:
        from jobsdk.compute.kubernetes.logs import nodes_of

        self._look(run, nodes_of(run, view))

    @contextlib.contextmanager
    def following(self, run: RunFolder, view: View | None) -> Iterator[Callable[[], None]]:
        from jobsdk.compute.kubernetes.following import Followed, Following
        from jobsdk.compute.kubernetes.logs import nodes_of

        where = _where(run)
        if not where or run.recorded_state().is_terminal:
            yield lambda: None
            return
        followed = Followed(lambda: self._api(where), run, where, nodes_of(run, view), self.pace)
        with Following(followed) as following:
            yield following.check

    def _look(self, run: RunFolder, nodes: Collection[int] | None) -> None:
        """Bring the run's folder up to date, with the logs of nodes: see `Look`."""
        where = _where(run)
        if not where or run.recorded_state().is_terminal:
            return
        from jobsdk.compute.kubernetes.run import Look

        with locked(run.path / "refresh.lock"):
            if not run.recorded_state().is_terminal:
                Look(self._api(where), run, where, nodes).take()

    def _api(self, place: Mapping[str, Any]) -> Api:
        """The connection to the context and namespace of a spec, or of a run."""
        from jobsdk.compute.kubernetes.api import connect

        return connect(place.get("context"), place.get("namespace"))

    def for_rerun(self, run: RunFolder) -> tuple[Mapping[str, Any], str]:
        from jobsdk.compute.kubernetes import lost

        return lost.for_rerun(run, {**self.settings, **_own_settings(run)}.get("avoid_machines", ()))

    # -- outputs ---------------------------------------------------------------------------------------------------

    def outputs(self, run: RunFolder) -> dict[str, str]:
        """Where outputs are: here, where `outputs_volume.here` says that the volume is; else their path in the pods."""
        plan = run.plan()
        folder = self._outputs_here(run)
        paths = {}
        for name, given in plan.get("outputs", {}).items():
            inside = given["uri"] or layout.output_path(plan, name, made.RUN_DIR)
            below = inside.removeprefix(f"{made.RUN_DIR}/outputs/")
            paths[name] = str(folder / below) if folder is not None and below != inside else inside
        return paths

    def fetch(self, run: RunFolder, names: Sequence[str]) -> dict[str, str]:
        folder = self._outputs_here(run)
        if folder is None:
            raise ComputeError(
                f"the outputs of run {run.name} are in its pods, not here. Fix: set outputs_volume of the compute "
                f"{self.name}, with `here`: the folder of this machine where that volume is mounted"
            )
        return {name: str(folder / name) for name in names}

    def _outputs_here(self, run: RunFolder) -> Path | None:
        volume = {**self.settings, **_own_settings(run)}.get("outputs_volume", {})
        return (
            Path(volume["here"]) / made.outputs_path({"outputs_volume": volume}, run.name) if "here" in volume else None
        )

    # -- checking --------------------------------------------------------------------------------------------------

    def check(self) -> list[Check]:
        from jobsdk.compute.kubernetes import check

        return check.run(self.settings)

    # -- what it cannot do -----------------------------------------------------------------------------------------

    def _judge_image(self, job: CommandJob, settings: Mapping[str, Any], build_env: bool) -> list[Finding]:
        found = []
        if build_env:
            message = f"the compute {self.name} runs images, and builds no environment"
            found.append(Finding("error", ("environment",), message, "leave out --build-env, and give an image"))
        if _image(job, settings) is None:
            message = f"the compute {self.name} needs a container image"
            fix = f"set environment: {{image: ...}} in the job, or image in the compute {self.name}"
            found.append(Finding("error", ("environment",), message, fix))
        elif job.environment is not None and getattr(job.environment, "image", None) is None:
            message = f"is not used on the compute {self.name}: its own image is"
            found.append(Finding("warning", ("environment",), message, "give environment.image"))
        elif getattr(job.environment, "conda_file", None) or getattr(job.environment, "requirements", None):
            message = f"packages are not installed on the compute {self.name}: its image must have them"
            found.append(Finding("warning", ("environment",), message))
        return found

    def _judge_data(self, plan: Plan) -> list[Finding]:
        found = []
        for name, given in plan["inputs"].items():
            uri = given.get("uri")
            if uri is not None and not layout.is_remote(uri) and not self._is_mounted(uri):
                message = f"{show(uri)} is not on a volume of the compute {self.name}, so pods will not find it"
                fix = f"mount it: volumes in the compute {self.name}; it may be in the image, too"
                found.append(Finding("warning", ("inputs", name, "path"), message, fix))
        if "outputs_volume" not in self.settings:
            for name, output in plan["outputs"].items():
                if layout.stays_with_run(output["uri"]):
                    message = "the output stays in the pods, and goes with them"
                    fix = f"set outputs_volume of the compute {self.name}, or the output's path to one on a volume"
                    found.append(Finding("warning", ("outputs", name), message, fix))
        return found

    def _is_mounted(self, path: str) -> bool:
        return any(f"{path}/".startswith(f"{one['mount'].rstrip('/')}/") for one in self.settings.get("volumes", []))


def _where(run: RunFolder) -> dict[str, Any]:
    """Which object the run is; empty where it was not submitted."""
    return run.read_json("kubernetes.json")


def _image(job: CommandJob, settings: Mapping[str, Any]) -> str | None:
    image: str | None = getattr(job.environment, "image", None) or settings.get("image")
    return image


def _own_settings(run: RunFolder) -> dict[str, Any]:
    """What the job itself said of the compute's settings."""
    own: dict[str, Any] = run.read_json("native.json").get("own_settings") or {}
    return own


def _suspended(job: Mapping[str, Any]) -> dict[str, Any]:
    return {**job, "spec": {**job["spec"], "suspend": True}}


def _bring_bootstrap(api: Api, one: Mapping[str, Any]) -> None:
    """Create the ConfigMap of the bootstrap, unless an earlier run has brought it."""
    from jobsdk.compute.kubernetes.api import Refused

    name, content = one["metadata"]["name"], {parcel.BOOTSTRAP: _base64(parcel.bootstrap())}
    try:
        api.create({**one, "binaryData": content})
        return
    except Refused as error:
        if error.code != 409:
            raise
    try:
        is_ours = api.get("ConfigMap", name).get("binaryData") == content
    except Refused:  # not everybody may read it
        return
    if not is_ours:  # such as one that `kubectl apply` has made of what `job compile -o native` printed
        fix = f"kubectl delete configmap {name} --namespace {api.place.namespace}"
        raise ComputeError(f"the ConfigMap {name} does not hold jobsdk's bootstrap. Fix: {fix}")


def _owned(one: Mapping[str, Any], owner: Mapping[str, Any]) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**one, "metadata": {**one["metadata"], "ownerReferences": [reference]}}


def _filled(one: Mapping[str, Any], run: RunFolder, code: Brought) -> dict[str, Any]:
    """An object with what is not written down before."""
    if one["metadata"]["name"] != made.dns_name(run.name):  # the user's own
        return dict(one)
    if one["kind"] == "Secret":
        values = {**parcel.secret_values(parcel.make(run)), **code.secret}
        return {**one, "data": {name: _base64(value.encode()) for name, value in values.items()}}
    if one["kind"] == "ConfigMap":
        return {**one, "data": {**one["data"], **code.data}, **({"binaryData": code.binary} if code.binary else {})}
    return dict(one)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
