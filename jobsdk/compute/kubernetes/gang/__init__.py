"""Gang scheduling without Kueue: one module for each scheduler."""

from __future__ import annotations

from jobsdk.compute.kubernetes.gang import coscheduling, kai, volcano, workload
from jobsdk.compute.kubernetes.gang.group import Gang

#: By the value of the setting `gang`.
GANGS = {
    "coscheduling": Gang(coscheduling.group),
    "kai": Gang(kai.group, ("gang_queue",), has_jobsets=False),
    "volcano": Gang(volcano.group, ("gang_queue",)),
    "workload": Gang(workload.group, ("gang_api",)),
}
