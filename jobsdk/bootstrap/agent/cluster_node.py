"""A node of a cluster: finds out which one it is, makes its folder ready, then lives as `node` says.

The run's folder may be one for all nodes, or each node's own. The plan lies in it, or is brought by the compute in
JOBSDK_PARCEL, a folder that need not be writable; so do its secrets, and the token if JOBSDK_TOKEN is not set.
JOBSDK_CODE says where the code is, with the sha256 of an archive in JOBSDK_CODE_HASH; without it the working directory
is that of this process. With JOBSDK_RELAY=1 all that the node writes comes out at stdout: see `relay`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Optional, Tuple

from ..detect import place as place_
from ..detect import registry
from ..spec import events, exit_codes, plan_file, variables
from ..system import private, processes
from . import agent, code, resume, staging
from .node import Node

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..spec.event import Facts
    from ..spec.plan import Plan

_WRONG_PLACE = 78  # as sysexits.h has it: wrong configuration


def run(run_dir: str) -> int:
    """Run the node that the environment describes; the job's exit code, or 78 where the place is not known."""
    _end_on_sigterm()
    run_dir = os.path.abspath(run_dir)
    private.follow(run_dir)
    if os.environ.get(variables.RELAY):
        from ..transport import stdout_relay

        return stdout_relay.run(run_dir, _rank(), lambda: _run(run_dir))
    return _run(run_dir)


def fetch(run_dir: str) -> int:
    """Fetch the node's inputs from object stores, in a container that runs before the node's own; 0.

    The node's own container may have another user. What goes wrong is noted, and the node says it.
    """
    _end_on_sigterm()
    run_dir = os.path.abspath(run_dir)
    plan = plan_file.read(os.environ.get(variables.PARCEL) or run_dir)
    os.makedirs(run_dir + "/inputs", exist_ok=True)
    os.chmod(run_dir + "/inputs", 0o777)  # nosec B103 # a folder of the pod

    def tell(event: str, **facts: Unpack[Facts]) -> None:
        sys.stderr.write("bootstrap: %s %s\n" % (event, facts.get("name", "")))

    try:
        staging.fetch(plan, run_dir, tell)
        if plan.get("code"):
            os.chmod(run_dir + "/code", 0o777)  # nosec B103 # likewise
    except staging.StagingError as error:
        sys.stderr.write("bootstrap: %s\n" % error)
    return 0


def _end_on_sigterm() -> None:
    """Until the agent takes over: the kernel gives the first process of a container no signal without a handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exit_codes.PREEMPTED))


def _rank() -> Optional[int]:
    try:
        return registry.detect().rank
    except place_.NotDetected:
        return None


def _run(run_dir: str) -> int:
    try:
        place = registry.detect()
        _unpack_parcel(run_dir)
        token = _token(run_dir)
    except (place_.NotDetected, ValueError, OSError) as error:
        sys.stderr.write("bootstrap: %s\n" % error)
        return _WRONG_PLACE
    plan = plan_file.read(run_dir)
    if place.rank >= plan["nodes"]:
        from . import spare

        taken = spare.wait(plan, place, token)
        if taken is None:
            return 0
        place = place._replace(rank=taken)
    standing: Optional[resume.Standing] = resume.Standing(0, None)
    if place.starts and place.rank == 0:
        standing = resume.standing(run_dir, plan, place.starts)
        if standing is None:
            sys.stderr.write("bootstrap: the job has ended already\n")
            return int(events.of(run_dir, "ended")[-1]["exit_code"])
    assert standing is not None
    io_dir = staging.io_dir(run_dir)
    try:
        working_dir, broken = _prepare(plan, run_dir, place.rank)
        return agent.run(
            plan,
            Node(
                rank=place.rank, control_addresses=place.addresses, control_ports=place.ports, token=token,
                hosts=place.hosts, run_dir=run_dir, io_dir=io_dir, working_dir=working_dir,
                gpus=processes.visible_gpus(os.environ), broken=broken, restart=standing.restart, used=standing.used,
                returns=place.returns, judged=place.judges, replaced=bool(os.environ.get(variables.REPLACES)),
                pod=os.environ.get(variables.POD), standing=resume.replaced(plan, os.environ.get(variables.REPLACED)),
            ),
        )  # fmt: skip
    finally:
        staging.remove_io_dir(io_dir, run_dir)


def _prepare(plan: Plan, run_dir: str, rank: int) -> Tuple[str, Optional[str]]:
    """The working directory, and why nothing can be started here."""

    def tell(event: str, **facts: Unpack[Facts]) -> None:
        facts["node"] = rank
        events.append(run_dir, event, **facts)

    working_dir, source = os.getcwd(), plan.get("code") or os.environ.get(variables.CODE)
    tell("bootstrap_up", pid=os.getpid(), host=os.uname().nodename)
    try:
        if source:
            digest = "" if plan.get("code") else os.environ.get(variables.CODE_HASH, "")
            working_dir = code.bring(plan, source, digest, run_dir, tell)
            os.chdir(working_dir)
        staging.stage(plan, run_dir, run_dir + "/cache", tell)
        if source:
            staging.link_outputs(working_dir, run_dir)
    except (code.CodeError, staging.StagingError) as error:
        sys.stderr.write("bootstrap: %s\n" % error)
        return working_dir, "node %d: %s" % (rank, error)
    return working_dir, None


def _unpack_parcel(run_dir: str) -> None:
    """Put what the compute has brought where all other parts look for it."""
    parcel = os.environ.get(variables.PARCEL)
    os.makedirs(run_dir + "/logs", exist_ok=True)
    for name in ("plan.json", plan_file.SECRETS, plan_file.TOKEN) if parcel else ():
        source, target = "%s/%s" % (parcel, name), "%s/%s" % (run_dir, name)
        if os.path.exists(source) and not os.path.exists(target):
            partly = "%s.%s.%d.tmp" % (target, os.uname().nodename, os.getpid())  # others may be reading the target
            if name == "plan.json":
                shutil.copyfile(source, partly)
            else:
                with open(source) as file:
                    plan_file.write_private(partly, file.read())
            os.replace(partly, target)


def _token(run_dir: str) -> bytes:
    """The run's token. Raises ValueError where there is none."""
    given = os.environ.get(variables.TOKEN) or plan_file.token(run_dir)
    if not given:
        raise ValueError("no JOBSDK_TOKEN, and no token in the run's folder")
    try:
        return bytes.fromhex(given)
    except ValueError:
        raise ValueError("JOBSDK_TOKEN is not hexadecimal") from None
