"""The API server with a Job controller, and a kubelet that starts each pod as a real container on a private network.

Containers are podman's, on an image without ssh. The network has names: a pod is found at HOSTNAME.SUBDOMAIN.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import queue
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import engines
from tests.compute.kubernetes.server import ApiServer, Failure, Object, now

_INDEX = "batch.kubernetes.io/job-completion-index"
_CONF = """\
[engine]
runtime = "runc"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""


class Podman:
    """podman with a configuration of the tests' own, which suits machines whose cgroups are of the first version."""

    def __init__(self, folder: Path) -> None:
        (folder / "containers.conf").write_text(_CONF)
        self._environ = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        self._environ.pop("JOBSDK_HOME", None)  # conmon would look like something that a test left behind

    def run(self, *argv: str, check: bool = True, timeout: float = 200.0) -> str:
        done = subprocess.run(
            ["podman", *argv], env=self._environ, capture_output=True, text=True, timeout=timeout, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"podman {' '.join(argv[:4])}: {done.stderr.strip()}")
        return done.stdout


class Cluster(ApiServer):
    """`with Cluster(folder) as cluster`: Jobs and JobSets that are created run."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._podman = Podman(folder)
        self._network = f"jobsdk-{os.getpid()}-{folder.name}"
        self._todo: queue.Queue[tuple[str, Object] | None] = queue.Queue()
        self._controller = threading.Thread(target=self._control, daemon=True)
        self._waiters: list[threading.Thread] = []
        self._lost: set[str] = set()  # pods of machines without power, by uid
        self.images = {engines.IMAGE}  # that can be pulled
        self.errors: list[str] = []  # of the kubelet itself
        self.logs = self._read_log
        self.store.changed = lambda what, one: self._todo.put((what, copy.deepcopy(one)))

    def __enter__(self) -> Cluster:
        super().__enter__()
        self._podman.run("network", "create", self._network)
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.store.list("Pod", "jobs"):
            self._podman.run("rm", "-f", "-t", "0", one["metadata"]["uid"], check=False)
        self._todo.put(None)
        self._controller.join()
        for waiter in self._waiters:
            waiter.join(60)
        self._podman.run("network", "rm", "-f", self._network, check=False)
        super().__exit__()

    @contextlib.contextmanager
    def image_with(self, package: Path) -> Iterator[str]:
        """An image whose Python has a package, too."""
        name = f"{self._network}:with-{package.name.lower()}"
        file = self._folder / "Containerfile"
        file.write_text(f"FROM {engines.IMAGE}\nCOPY {package.name} /usr/lib/python3/dist-packages/{package.name}\n")
        self._podman.run("build", "--tag", f"localhost/{name}", "--file", str(file), str(package.parent))
        self.images.add(f"localhost/{name}")
        try:
            yield f"localhost/{name}"
        finally:
            self.images.discard(f"localhost/{name}")
            self._podman.run("rmi", "-f", f"localhost/{name}", check=False)

    def gateway(self) -> str:
        """The address at which pods reach this machine, on their private network."""
        address: str = self._inspect()["subnets"][0]["gateway"]
        return address

    def _inspect(self) -> Object:
        """The private network."""
        (found,) = json.loads(self._podman.run("network", "inspect", self._network))
        return dict(found)

    def _keep_gateway_address(self) -> None:
        """A bridge has the lowest hardware address of its ports, unless it is given one: when a container comes or goes
        it may get another, and for up to a minute no container reaches it, and with it the names."""
        bridge = self._inspect()["network_interface"]
        address = Path(f"/sys/class/net/{bridge}/address").read_text().strip()
        subprocess.run(["ip", "link", "set", "dev", bridge, "address", address], check=True)

    def claim(self, name: str) -> Path:
        """The folder behind a volume claim."""
        return self._folder / name

    def kill(self, pod: str) -> None:
        """SIGKILL for the container."""
        self._podman.run("kill", "-s", "KILL", self.store.get("Pod", "jobs", pod)["metadata"]["uid"])

    def lose(self, pod: str) -> None:
        """The machine of a pod loses power: nothing is sent any more, no connection is closed, no kubelet reports.

        The node controller says so after its grace period (`notice`).
        """
        uid = self.store.get("Pod", "jobs", pod)["metadata"]["uid"]
        self._lost.add(uid)
        self._podman.run("pause", uid)

    def notice(self, pod: str) -> None:
        """The node controller finds that the machine of a lost pod does not answer; see recordings/lost.watch.jsonl."""
        self._condition(pod, "Ready", "", "", "False")

    def disrupt(self, pod: str) -> None:
        """Take a pod away, as for another one of higher priority."""
        self._condition(pod, "DisruptionTarget", "PreemptionByScheduler", "preempting to accommodate another pod")
        self._podman.run("stop", "-t", "30", self.store.get("Pod", "jobs", pod)["metadata"]["uid"])

    def delete(self, kind: str, namespace: str, name: str) -> Object:
        """An object that owns pods goes when they have gone; these have their grace period."""
        one = self.store.get(kind, namespace, name)
        owned = self.store.owned(one["metadata"]["uid"])
        if kind == "JobSet":
            owned += [pod for job in owned for pod in self.store.owned(job["metadata"]["uid"])]
        pods = [other for other in owned if other["kind"] == "Pod"]
        if not pods:
            return super().delete(kind, namespace, name)
        self.store.update(kind, namespace, name, lambda one: one["metadata"].update(deletionTimestamp=now()))
        thread = threading.Thread(target=self._delete_slowly, args=(pods, (kind, namespace, name)), daemon=True)
        self._waiters.append(thread)
        thread.start()
        return one

    def _delete_slowly(self, pods: list[Object], owner: tuple[str, str, str]) -> None:
        stopping = [threading.Thread(target=self._stop, args=(pod,)) for pod in pods]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self.store.delete(*owner)

    def _condition(self, pod: str, kind: str, reason: str, message: str, status: str = "True") -> None:
        new = {"type": kind, "status": status, "reason": reason, "message": message}
        self.store.update("Pod", "jobs", pod, lambda one: one["status"].setdefault("conditions", []).append(new))

    # -- the controller: one thread ------------------------------------------------------------------------------------

    def _control(self) -> None:
        while (task := self._todo.get()) is not None:
            what, one = task
            try:
                if one["kind"] == "Job" and what != "DELETED":
                    self._sync(one)
                elif one["kind"] == "Pod" and what == "MODIFIED" and one["metadata"]["uid"] in self._lost:
                    owner = one["metadata"]["ownerReferences"][0]["name"]
                    self._sync(self.store.get("Job", "jobs", owner))
                elif one["kind"] == "JobSet" and what != "DELETED":
                    self._sync_jobset(one)
            except Failure:
                pass  # it has gone meanwhile
            except Exception as error:
                self.errors.append(repr(error))

    def _sync_jobset(self, jobset: Object) -> None:
        if jobset["spec"].get("suspend"):
            return
        name = jobset["metadata"]["name"]
        for replicated in jobset["spec"]["replicatedJobs"]:
            spec = copy.deepcopy(replicated["template"]["spec"])
            spec["template"]["spec"]["subdomain"] = name
            metadata = {"name": f"{name}-{replicated['name']}-0", "labels": {}, "ownerReferences": [_owner(jobset)]}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
            if ("Job", "jobs", job["metadata"]["name"]) not in self.store.objects:
                self.store.create("jobs", job)

    def _sync(self, job: Object) -> None:
        spec, name = job["spec"], job["metadata"]["name"]
        if spec.get("suspend") or _is_finished(job) or "deletionTimestamp" in job["metadata"]:
            return
        mine = [one for one in self.store.list("Pod", "jobs") if one["metadata"]["labels"].get("job-name") == name]
        for index in range(spec["completions"]):
            pods = [one for one in mine if one["metadata"]["annotations"][_INDEX] == str(index)]
            if all(_is_ignored(job, one) for one in pods):
                self.store.create("jobs", _pod_of(job, index, len(pods)))
                created = self.store.get("Pod", "jobs", f"{name}-{index}-{len(pods):05d}")
                waiter = threading.Thread(target=self._live, args=(created,), daemon=True)
                self._waiters.append(waiter)
                waiter.start()
        ends = {
            one["metadata"]["annotations"][_INDEX]: one["status"]["phase"]
            for one in mine
            if one.get("status", {}).get("phase") in ("Succeeded", "Failed") and not _is_ignored(job, one)
        }
        if len(ends) == spec["completions"]:
            failed = sorted(int(index) for index, phase in ends.items() if phase == "Failed")
            kind, reason = ("Failed", "FailedIndexes") if failed else ("Complete", "CompletionsReached")
            condition = {"type": kind, "status": "True", "reason": reason, "message": f"failed indexes: {failed}"}
            self.store.update(
                "Job", "jobs", name, lambda one: one.setdefault("status", {}).update(conditions=[condition])
            )

    # -- the kubelet: a thread for each pod ----------------------------------------------------------------------------

    def _live(self, pod: Object) -> None:
        try:
            self._run(pod)
        except Failure:
            pass  # it was deleted
        except Exception as error:
            self.errors.append(f"{pod['metadata']['name']}: {error!r}")

    def _run(self, pod: Object) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        folder = self._folder / uid
        folder.mkdir()
        spec = pod["spec"]
        (container,) = spec["containers"]
        if container["image"] not in self.images:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
            self._state(name, "Pending", {"waiting": waiting})
            return
        argv = [
            "run", "--detach", "--name", uid, "--network", self._network, "--hostname", spec["hostname"],
            "--network-alias", f"{spec['hostname']}.{spec['subdomain']}", "--log-driver", "k8s-file",
            "--log-opt", f"path={folder}/log", "--stop-timeout", "30",
        ]  # fmt: skip
        others = spec.get("initContainers", ())
        if not all(self._start_beside(pod, one, folder) for one in others):
            return
        self._podman.run(*argv, *self._options(pod, container, folder))
        self._keep_gateway_address()
        self._state(name, "Running", {"running": {"startedAt": now()}})
        code = int(self._podman.run("wait", uid, timeout=280))
        if uid in self._lost:
            return
        is_oom = self._podman.run("inspect", "--format", "{{.State.OOMKilled}}", uid, check=False).strip() == "true"
        reason = "OOMKilled" if is_oom else "Error" if code else "Completed"
        ended = {"exitCode": code, "reason": reason, "finishedAt": now()}
        try:
            self._state(name, "Failed" if code else "Succeeded", {"terminated": ended})
            owner = pod["metadata"]["ownerReferences"][0]["name"]
            self.store.changed("MODIFIED", self.store.get("Job", "jobs", owner))
        finally:
            for one in others:
                self._podman.run("rm", "-f", "-t", "0", f"{uid}-{one['name']}", check=False)
            self._podman.run("rm", "-f", "-t", "0", uid, check=False)

    def _start_beside(self, pod: Object, container: Object, folder: Path) -> bool:
        """Start a sidecar, or run an init container to its end; whether the next container may start."""
        name, uid = container["name"], pod["metadata"]["uid"]
        argv = ["run", "--detach", "--name", f"{uid}-{name}", "--network", self._network]
        self._podman.run(*argv, *self._options(pod, container, folder))
        if container.get("restartPolicy") == "Always":
            return True
        code = int(self._podman.run("wait", f"{uid}-{name}", timeout=200))
        if code:
            ended = {"name": name, "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
            self._state(pod["metadata"]["name"], "Failed", {"waiting": {"reason": "PodInitializing"}}, [ended])
            owner = pod["metadata"]["ownerReferences"][0]["name"]
            self.store.changed("MODIFIED", self.store.get("Job", "jobs", owner))
        return not code

    def _options(self, pod: Object, container: Object, folder: Path) -> list[str]:
        """What `podman run` needs to know of a container, its image last."""
        argv = [*_security(pod["spec"], container), *self._mounts(pod, container, folder)]
        variables = {one["name"]: self._value(pod, one) for one in container.get("env", ())}
        for source in container.get("envFrom", ()):
            (kind, reference), *_ = [(key, value) for key, value in source.items() if key.endswith("Ref")]
            one = self.store.get({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind], "jobs", reference["name"])
            for key, value in one["data"].items():
                plain = value if kind == "configMapRef" else base64.b64decode(value).decode()
                variables.setdefault(source.get("prefix", "") + key, plain)
        for key, value in variables.items():
            argv += ["--env", f"{key}={value}"]
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        if limit:
            argv += ["--memory", limit.replace("Mi", "m").replace("Gi", "g")]
        return [*argv, "--entrypoint", json.dumps(container["command"]), container["image"]]

    def _state(self, pod: str, phase: str, state: Object, initial: Sequence[Object] = ()) -> None:
        def change(one: Object) -> None:
            one["spec"]["nodeName"] = "machine-1"
            main = {"name": "main", "state": state, "ready": "running" in state}
            one.setdefault("status", {}).update(phase=phase, containerStatuses=[main])
            if initial:
                one["status"]["initContainerStatuses"] = list(initial)

        self.store.update("Pod", "jobs", pod, change)

    def _stop(self, pod: Object) -> None:
        """SIGTERM, the pod's grace period, SIGKILL."""
        grace = str(pod["spec"]["terminationGracePeriodSeconds"])
        uid = pod["metadata"]["uid"]
        if uid in self._lost:
            self._podman.run("rm", "-f", "-t", "0", uid, check=False)
        else:
            self._podman.run("stop", "-t", grace, uid, check=False)

    def _value(self, pod: Object, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]
        if "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            name = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)
            return str(pod["metadata"]["annotations"].get(name[1], "") if name else pod["metadata"]["name"])
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            found = self.store.get("Secret", "jobs", reference["name"])["data"][reference["key"]]
            return base64.b64decode(found).decode()
        reference = source["configMapKeyRef"]
        return str(self.store.get("ConfigMap", "jobs", reference["name"])["data"][reference["key"]])

    def _mounts(self, pod: Object, container: Object, folder: Path) -> list[str]:
        argv = []
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        for mount in container.get("volumeMounts", ()):
            volume, place = volumes[mount["name"]], mount["mountPath"]
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                size = volume["emptyDir"]["sizeLimit"].replace("Mi", "m").replace("Gi", "g")
                argv += ["--shm-size", size] if place == "/dev/shm" else ["--tmpfs", f"{place}:size={size}"]
                continue
            source = Path(volume["hostPath"]["path"]) if "hostPath" in volume else folder / mount["name"]
            if "persistentVolumeClaim" in volume:
                source = self.claim(volume["persistentVolumeClaim"]["claimName"])
            if "projected" in volume:
                self._project(volume["projected"]["sources"], source)
            source = source / mount.get("subPath", "")
            source.mkdir(parents=True, exist_ok=True)
            if "emptyDir" in volume or "persistentVolumeClaim" in volume:
                source.chmod(0o777)  # as a kubelet does
            argv += ["--volume", f"{source}:{place}{':ro' if mount.get('readOnly') else ''}"]
        return argv

    def _project(self, sources: list[Object], folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for source in sources:
            (kind, reference), *_ = source.items()
            one = self.store.get({"configMap": "ConfigMap", "secret": "Secret"}[kind], "jobs", reference["name"])
            texts = {} if kind == "secret" else one.get("data", {})
            encoded = one.get("data", {}) if kind == "secret" else one.get("binaryData", {})
            for key, text in texts.items():
                (folder / key).write_text(text)
            for key, text in encoded.items():
                (folder / key).write_bytes(base64.b64decode(text))

    def _read_log(self, pod: str) -> bytes | None:
        one = self.store.get("Pod", "jobs", pod)
        if "containerStatuses" not in one.get("status", {}):
            return None
        path = self._folder / one["metadata"]["uid"] / "log"
        return path.read_bytes() if path.exists() else None


def _pod_of(job: Object, index: int, life: int) -> Object:
    """What the Job controller makes of the template for an index."""
    name = job["metadata"]["name"]
    template = copy.deepcopy(job["spec"]["template"])
    spec, metadata = template["spec"], template["metadata"]
    spec["hostname"] = f"{name}-{index}"
    (container,) = spec["containers"]
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}
    container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": field})
    metadata["name"] = f"{name}-{index}-{life:05d}"
    metadata.setdefault("annotations", {})[_INDEX] = str(index)
    if life:
        metadata["annotations"]["batch.kubernetes.io/job-index-ignored-failure-count"] = str(life)
    metadata["labels"] = {**metadata.get("labels", {}), "job-name": name, _INDEX: str(index)}
    metadata["ownerReferences"] = [_owner(job)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def _security(spec: Object, container: Object) -> list[str]:
    """The options by which podman holds a container to its security context."""
    own, of_pod = container["securityContext"], spec["securityContext"]
    argv = [f"--cap-drop={one}" for one in own["capabilities"]["drop"]]
    argv += [f"--cap-add={one}" for one in own["capabilities"].get("add", ())]
    if own["allowPrivilegeEscalation"] is False:
        argv += ["--security-opt", "no-new-privileges"]
    if own.get("readOnlyRootFilesystem"):
        argv += ["--read-only", "--read-only-tmpfs=false"]
    if "runAsUser" in of_pod:
        argv += ["--user", f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}"]
    return argv


def _owner(one: Object) -> Object:
    metadata = one["metadata"]
    return {"apiVersion": one["apiVersion"], "kind": one["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def _is_finished(job: Object) -> bool:
    return bool(job.get("status", {}).get("conditions"))


def _is_ignored(job: Object, pod: Object) -> bool:
    """Whether the Job's pod failure policy replaces a pod that has ended."""
    status = pod.get("status", {})
    is_disrupted = any(one["type"] == "DisruptionTarget" for one in status.get("conditions", ()))
    rules = job["spec"].get("podFailurePolicy", {}).get("rules", ())
    return status.get("phase") == "Failed" and is_disrupted and any(rule["action"] == "Ignore" for rule in rules)
