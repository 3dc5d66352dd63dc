"""What a package needs that brings a type of compute of its own: the contents of docs/plugin.md.

Names stay as they are within a major version of jobsdk. Everything else below `jobsdk.compute` may change at any time.
"""

from __future__ import annotations

import os

from jobsdk.bootstrap.spec import paths
from jobsdk.bootstrap.spec.plan import Plan
from jobsdk.compute import job_rules
from jobsdk.compute.base import Check, Compute, Spec, Warn
from jobsdk.compute.ends import EngineEnd, finish
from jobsdk.compute.hosts.host import Host
from jobsdk.compute.shipping.parcel import Parcel
from jobsdk.compute.shipping.parcel import make as make_parcel
from jobsdk.compute.shipping.relayed import Mirror
from jobsdk.errors import ComputeError
from jobsdk.findings import Finding
from jobsdk.home import locked
from jobsdk.job.command import CommandJob
from jobsdk.planning.placement import Placement
from jobsdk.runs.folder import RunFolder
from jobsdk.runs.refresh import Pace
from jobsdk.snapshot.copy import take as copy_code

__all__ = [
    "CANCEL_MARK",
    "Check",
    "CommandJob",
    "Compute",
    "ComputeError",
    "EngineEnd",
    "Finding",
    "Host",
    "Mirror",
    "Pace",
    "Parcel",
    "Placement",
    "Plan",
    "RunFolder",
    "Spec",
    "Warn",
    "copy_code",
    "finish",
    "job_rules",
    "locked",
    "make_parcel",
]

#: An empty file of this name in the run's folder tells nodes that get a SIGTERM that the job was canceled.
CANCEL_MARK = os.path.basename(paths.cancel_mark(""))
