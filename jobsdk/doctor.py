"""What is right and wrong with this machine, and, by a preflight, with the nodes on which a job would run.

Everything here only looks. What one check runs into is its own finding; no check keeps another from its turn.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jobsdk import compute as computes
from jobsdk.bootstrap import distributions
from jobsdk.bootstrap.preflight import diagnosis, machine
from jobsdk.bootstrap.preflight.finding import OK, PROBLEM, WARNING, Finding
from jobsdk.bootstrap.spec import ranks
from jobsdk.bootstrap.system import network, private
from jobsdk.runs.folder import RunFolder

if TYPE_CHECKING:
    from jobsdk.client.operations import Warn
    from jobsdk.client.run import Run
    from jobsdk.client.submission import Submission
    from jobsdk.job.command import CommandJob

#: Seconds for what other programs are asked, all at once.
_PATIENCE_S = 1.0
#: Seconds for nvidia-smi, which has to wake GPUs that no process uses.
_GPU_PATIENCE_S = 10.0
#: Seconds that the nodes of a preflight wait for one another.
_RENDEZVOUS_TIMEOUT_S = 120.0
#: Programs of engines that tell their version quickly, with what makes them.
_PROGRAMS: dict[str, tuple[str, ...]] = dict.fromkeys(("srun", "sbatch", "kubectl", "docker", "podman"), ("--version",))
_PROGRAMS["kubectl"] = ("version", "--client")
#: Engines that are Python packages: to start their programs would take seconds.
_PACKAGES = {"deepspeed": "deepspeed", "ray": "ray", "spark-submit": "pyspark"}


def this_machine() -> list[Finding]:
    """All findings on this machine, in a fixed order. Takes about a second, and longer only where GPUs are asleep."""
    from jobsdk.home import home

    facts: dict[str, Any] = {}

    def general() -> Iterable[Finding]:
        facts.update(machine.facts(sys.executable, [str(home()), "/tmp", os.getcwd()]))  # nosec B108 # only looked at
        return diagnosis.of_machine(facts)

    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("machine", general),
        ("gpus", lambda: _nvidia(bool(facts.get("gpus")))),
        ("network", lambda: _interfaces(facts.get("interfaces") or [])),
        ("names", _names),
        ("engines", _engines),
        ("home", lambda: _home(home())),
        ("home", lambda: _open_to_others(home())),
        ("runs", _runs),
    ]
    found: list[Finding] = []
    for subject, check in checks:
        try:
            found += check()
        except Exception as error:  # an odd machine is what one asks the doctor about
            text = f"could not be looked at: {type(error).__name__}: {error}"
            found.append(Finding(WARNING, subject, text, "the other checks are not affected"))
    return found


def _nvidia(expected: bool) -> Iterator[Finding]:
    """What only nvidia-smi and the kernel's log tell: memory in use, and errors that were counted."""
    from jobsdk.bootstrap.launchers import base

    program = base.find("nvidia-smi")
    if program is None:
        if expected:
            yield Finding(WARNING, "gpus", "nvidia-smi is not on PATH", "install it to see the GPUs' memory and errors")
        return
    fields = "index,memory.used,memory.total,ecc.errors.uncorrected.volatile.total"
    argv = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    text = _ask({"": argv}, _GPU_PATIENCE_S)[""]
    if text is None:
        yield Finding(PROBLEM, "gpus", "nvidia-smi does not answer", "see `nvidia-smi` and `dmesg | grep NVRM`")
        return
    for line in text.splitlines():
        index, used, total, errors = f"{line}, , , ".split(", ")[:4]
        if not index.isdigit():
            yield Finding(PROBLEM, "gpus", f"nvidia-smi says: {line}", "see `dmesg | grep NVRM`")
            continue
        if errors.isdigit() and int(errors):
            text = f"GPU {index} has counted {errors} memory errors that could not be corrected since it was reset"
            yield Finding(PROBLEM, "gpus", text, f"drain the machine and reset it: nvidia-smi --gpu-reset -i {index}")
        if used.isdigit() and total.isdigit() and int(used) > 0.1 * int(total):
            text = f"GPU {index} has {used} of {total} MiB in use"
            yield Finding(WARNING, "gpus", text, "nvidia-smi shows by which processes")
    yield from _kernel_errors()


def _kernel_errors() -> Iterator[Finding]:
    """NVIDIA's Xid errors in the kernel's log, where this user may read it."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    numbers: Counter[str] = Counter()
    try:
        while record := os.read(log, 8192):
            if (match := re.search(rb"NVRM: Xid \(.*?\): (\d+)", record)) is not None:
                numbers[match[1].decode()] += 1
    except OSError:
        pass  # BlockingIOError is the log's end
    finally:
        os.close(log)
    if numbers:
        said = ", ".join(f"Xid {number} x {count}" for number, count in numbers.items())
        fix = "NVIDIA's list of Xid errors says what each is"
        yield Finding(WARNING, "gpus", f"the kernel's log has GPU errors: {said}", fix)


def _interfaces(interfaces: list[dict[str, Any]]) -> Iterator[Finding]:
    for one in interfaces:
        addresses = [address for address in one["addresses"] if not address.startswith("fe80:")]
        words = [f"{one['name']}: {', '.join(addresses) or 'link-local only'}", f"MTU {one['mtu']}"]
        words += [f"{one['speed'] / 1000:g} Gbit/s"] if one["speed"] else []
        yield Finding(OK, "network", ", ".join(words))
    if all(one["name"] == "lo" for one in interfaces):
        text = "no interface but loopback has an address: jobs can run on this machine alone"
        yield Finding(WARNING, "network", text, "bring the network up, if there is to be one")


def _names() -> Iterator[Finding]:
    host = os.uname().nodename
    addresses, why = _in_time(lambda: machine.resolve(host)) or ([], f"no answer within {_PATIENCE_S:.0f} s")
    own = {address for _, address in network.interface_addresses()}
    if not addresses:
        text = f"this machine's own name {host} is not known: {why}"
        yield Finding(WARNING, "names", text, f"add a line '<address> {host}' to /etc/hosts")
    elif not own.intersection(addresses):
        text = f"this machine's own name {host} leads to {', '.join(addresses)}, which it does not have"
        yield Finding(WARNING, "names", text, f"mend the line of {host} in /etc/hosts, or DNS")
    else:
        yield Finding(OK, "names", f"{host} is {', '.join(addresses)}")


def _in_time(call: Callable[[], Any]) -> Any:
    """The result of `call`, or None if it takes longer: a name server may not answer at all."""
    import threading

    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return answers[0] if answers else None


# -- engines -----------------------------------------------------------------------------------------------------


def _engines() -> Iterator[Finding]:
    from functools import partial
    from importlib import metadata

    from jobsdk.bootstrap.launchers import base, mpirun
    from jobsdk.compute.environ import for_ranks

    path = for_ranks(os.environ)["PATH"]
    found: list[str] = []
    for family, words in ((mpirun.OPENMPI, "Open MPI"), (mpirun.HYDRA, "Hydra (MPICH)")):
        program = _in_time(partial(mpirun.find, family, path))
        if program is not None:
            found.append(f"{words} {_number(program.version)} ({program.program})")
    for name, package in _PACKAGES.items():
        program = base.find(name, path)
        if program is not None:
            try:
                version = " " + metadata.version(package)
            except metadata.PackageNotFoundError:
                version = ""
            found.append(f"{name}{version} ({program})")
    programs = {name: program for name in _PROGRAMS if (program := base.find(name, path))}
    answers = _ask({name: [program, *_PROGRAMS[name]] for name, program in programs.items()}, _PATIENCE_S)
    for name, program in programs.items():
        if answers[name] is None:
            text = f"{name} ({program}) does not answer"
            yield Finding(WARNING, "engines", text, f"see what `{' '.join((name, *_PROGRAMS[name]))}` does")
        else:
            found.append(f"{name} {_number(answers[name] or '')} ({program})")
    for text in found or ["none besides jobsdk's own local compute"]:
        yield Finding(OK, "engines", text)


def _number(text: str) -> str:
    match = re.search(r"\d+(\.\d+)+", text)
    return match[0] if match else "of an unknown version"


def _ask(commands: dict[str, list[str]], patience: float) -> dict[str, str | None]:
    """What programs print, run all at once; None for one that fails or takes longer than `patience` seconds."""
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    def answer(argv: list[str]) -> str | None:
        try:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                errors="replace", start_new_session=True, timeout=patience, check=True,
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None

    with ThreadPoolExecutor(max_workers=len(_PROGRAMS)) as threads:
        return dict(zip(commands, threads.map(answer, commands.values()), strict=True))


# -- jobsdk's own ------------------------------------------------------------------------------------------------


def _home(folder: Path) -> Iterator[Finding]:
    near = folder
    while not near.exists() and near != near.parent:
        near = near.parent
    if near.is_dir() and os.access(near, os.W_OK | os.X_OK):
        yield Finding(OK, "home", f"{folder}{'' if near == folder else ' (made with the first run)'}")
    else:
        why = f"{near} cannot be written" if near.is_dir() else f"{near} is no folder"
        yield Finding(PROBLEM, "home", f"runs cannot be kept in {folder}: {why}", "set JOBSDK_HOME to another folder")


def _open_to_others(folder: Path) -> Iterator[Finding]:
    """Folders of jobsdk that other users may enter although no `folder_mode` says so: older versions made them so."""
    if not folder.is_dir():
        return
    found = [folder / name for name in ("cache", "code", "envs", "functions", "history.db") if _is_open(folder / name)]
    for entry in computes.configuration().computes.values():
        store = os.path.join(os.path.expanduser(str(entry.settings.get("folder", ""))), "code")
        if os.path.isabs(store) and _is_open(Path(store), entry.settings):
            found.append(Path(store))
    shared, wrong = False, []
    for run in RunFolder.all():
        settings = run.read_json("compute.json")
        shared = shared or bool(settings.get("folder_mode"))
        if _is_open(run.path, settings):
            wrong.append(run.path)
    linked = [Path(os.path.realpath(path)) for path in wrong if path.is_symlink()]
    if not shared and (len(linked) < len(wrong) or _is_open(folder / "runs")):
        found += [folder / "runs", *linked]
    else:
        found += [Path(os.path.realpath(path)) for path in wrong]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"{found[0]}{more}, made by an older version, can be read by other users"
        yield Finding(WARNING, "home", text, f"chmod -R go= {shlex.join(map(str, found))}")


def _is_open(path: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether something of this user gives others more rights than the settings of a compute say."""
    from jobsdk.compute.base import mode_of

    try:
        facts = path.stat()
        allowed = mode_of(settings.get("folder_mode", private.FOLDER_MODE))
    except (OSError, ValueError):  # not there; a mistake that is reported where the compute is used
        return False
    return facts.st_uid == os.getuid() and bool(facts.st_mode & 0o077 & ~allowed)


def _runs() -> Iterator[Finding]:
    """Processes of this user that belong to runs: those whose supervisor is dead are left over."""
    from jobsdk.home import runs_folder

    counted: Counter[str] = Counter()
    for pid in filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc/self") else ():
        try:
            variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(b"JOBSDK_RUN_DIR="):
                counted[os.fsdecode(variable.partition(b"=")[2])] += 1
    going = []
    for run_dir, count in sorted(counted.items()):
        run = RunFolder(Path(run_dir))
        if run.owner() is None or run.living_owner() is not None:  # without an owner it is a node of a cluster's job
            going.append(run.name if run.path.parent == runs_folder() else str(run.path))
        else:
            text = f"{count} process{'es' if count > 1 else ''} of run {run.name} outlived their supervisor"
            yield Finding(WARNING, "runs", text, f"jobsdk job show {run.name} ends them ({run_dir})")
    if going:
        yield Finding(OK, "runs", f"going on: {', '.join(going[:10])}{', ...' if len(going) > 10 else ''}")


# -- the nodes of a job ------------------------------------------------------------------------------------------


class Preflight(NamedTuple):
    """What a preflight found: the run that it was, and the result that node 0 wrote (without one, why)."""

    run: str
    findings: tuple[Finding, ...]
    summary: str
    nodes: dict[str, Any]


def plan_preflight(
    job: CommandJob, *, compute: str | None = None, nodes: int | None = None, bandwidth: bool = False
) -> Submission:
    """The preflight of a job: an ordinary run on the job's nodes, with its resources and environment, whose every
    node runs one process of jobsdk's own in place of the job's; with `bandwidth` it measures that, too. Writes nothing.

    Raises ValidationError and ComputeError, as for the job itself.
    """
    from jobsdk.client.submission import Draft
    from jobsdk.job import workers
    from jobsdk.planning.plan import whole_plan
    from jobsdk.runs.names import generate_name

    job = copy.deepcopy(job)
    if nodes is not None and job.scaling is None:
        job.resources.instance_count = nodes
    if compute is not None:
        job.compute = compute
    target = computes.resolve(job.compute)
    draft = Draft(job, name=job.name or "job", resolve=lambda _: target)
    of_workers, layout = job.scaling, draft.layout()
    job = workers.applied(job, layout)
    if nodes is not None:
        job.resources.instance_count = nodes
    real = whole_plan(job, name=job.name or "job")
    nodes_processes = map(distributions.of(real).node_processes, range(min(real["nodes"], 64)))
    gpus = ranks.gpus_of(real, max(map(len, nodes_processes)))

    job.display_name = f"preflight of {job.display_name or job.name or 'a job'}"
    job.command, job.code, job.distribution, job.limits, job.preload = "jobsdk doctor", None, None, None, []
    job.inputs, job.outputs, job.services = {}, {}, {}
    job.resources.gpus_per_process = gpus or None
    if of_workers is not None and layout is not None:
        job.scaling = workers.of_nodes(of_workers, layout, job.resources.instance_count)
    target.use_bootstrap(job)  # an engine's own launcher knows nothing of a preflight
    job.name = generate_name()
    draft = Draft(job, name=job.name, resolve=lambda _: target)
    plan = draft.plan
    plan["preflight"] = {"token": os.urandom(32).hex(), "gpus": gpus, "bandwidth": bandwidth}
    plan["rendezvous_timeout_s"] = _RENDEZVOUS_TIMEOUT_S
    plan["restarts"] = {**plan["restarts"], "max": 0}
    return draft.submission()._replace(findings=())


def run_preflight(compiled: Submission, warn: Warn) -> Preflight:
    """Run what `plan_preflight` made, and wait for it. An interrupt cancels it."""
    from jobsdk.client.operations import JobOperations

    run = JobOperations().submit(compiled, warn)
    try:
        run.target.wait(run.folder, None)
    except BaseException:
        run.cancel()
        raise
    return _result(run.wait())  # which also notes in the history how it ended


def _result(run: Run) -> Preflight:
    """What node 0 left among the run's outputs, else what it printed, which is the same in words."""
    from jobsdk.bootstrap.preflight import run as preflight
    from jobsdk.bootstrap.spec import paths as layout
    from jobsdk.errors import JobsdkError

    with contextlib.suppress(JobsdkError, OSError, ValueError):
        folder = run.target.fetch(run.folder, ["default"])["default"]
        result = json.loads(Path(folder, os.path.basename(preflight.result_path(""))).read_bytes())
        found = tuple(Finding(**finding) for finding in result["findings"])
        return Preflight(run.name, found, result["summary"], result["nodes"])
    with contextlib.suppress(OSError):  # logs come from every compute
        log = Path(layout.rank_log(str(run.folder.path), 0, 0)).read_text(errors="replace")
        if (told := preflight.of_text(log.splitlines())) is not None:
            return Preflight(run.name, tuple(told[0]), told[1], {})
    report = run.report
    why = report.get("message") or "it has no report"
    text = f"the preflight did not come to its end ({report.get('status', 'Lost')}): {why}"
    fix = f"jobsdk job logs {run.name} shows what its nodes said"
    return Preflight(run.name, (Finding(PROBLEM, "answer", text, fix),), "no node was looked at", {})


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether anything keeps jobs from running, warnings not counted."""
    return any(finding.level == PROBLEM for finding in findings)


def job_of(nodes: int) -> CommandJob:
    """A job that wants nothing but so many nodes."""
    from jobsdk.job.command import command

    return command(command="true", instance_count=nodes)
