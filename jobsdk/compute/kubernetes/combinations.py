"""Settings that exclude or need each other: of the compute and of a job together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jobsdk.compute.kubernetes import kueue
from jobsdk.compute.kubernetes.gang import GANGS
from jobsdk.findings import Finding, one_of

#: setting -> the setting that it needs
_NEEDS = {
    "slice_size": "slice_topology",
    "slice_topology": "slice_size",
    "workload_priority": "queue",
}


def findings(name: str, settings: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
    """What is wrong with the settings of a job of so many nodes on the compute `name`."""
    for setting, words, fix in _mistakes(settings, nodes):
        yield Finding("error", ("compute",), f"{setting} of the compute {name} {words}", fix)


def _mistakes(settings: Mapping[str, Any], nodes: int) -> Iterator[tuple[str, str, str]]:
    """(setting, what is wrong, the fix)."""
    yield from _of_gangs(settings)
    needs = {**_NEEDS, **({"slice_topology": "queue"} if settings.get("slice_size") else {})}
    for setting, other in needs.items():
        if settings.get(setting) and not settings.get(other):
            yield setting, f"has a meaning only with {other}", f"set {other}, or leave out {setting}"
    if settings.get("topology") and settings.get("preferred_topology"):
        yield "preferred_topology", "excludes topology", "leave out one of them"
    if settings.get("slice_size", 1) > nodes:
        fix = f"set slice_size to at most {nodes}"
        yield "slice_size", f"is {settings['slice_size']}, but instance_count of the job is {nodes}", fix
    if kueue.MIN_PARALLELISM in settings.get("annotations", {}):
        words = f"cannot have {kueue.MIN_PARALLELISM}: a job starts with all its nodes, and would wait for the others"
        yield "annotations", words, "leave it out, and set instance_count to the number of nodes that will do"


def _of_gangs(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    gang = settings.get("gang")
    for setting in ("gang_queue", "gang_api"):
        names = [name for name, one in GANGS.items() if setting in one.settings]
        if settings.get(setting) and gang not in names:
            yield setting, f"has a meaning only with gang: {one_of(names)}", f"set gang, or leave out {setting}"
    if gang and settings.get("jobset") and not GANGS[gang].has_jobsets:
        yield "gang", f"{gang} does not start the pods of a JobSet together", "leave out jobset"
