"""What the workers of a job with `scaling` need, in the settings of a compute of type slurm. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jobsdk.compute.slurm import settings as slurm_settings
from jobsdk.findings import Finding
from jobsdk.job.scaling import ScalingConfig
from jobsdk.job.workers import Layout

#: The parts of `scaling` that Slurm supports; a custom resource is a gres of the site.
SUPPORTED = ("CPU", "memory", "custom", "accelerator_type")
_GRES_NAME = re.compile(r"[A-Za-z_][\w.-]*")


def settled(
    settings: Mapping[str, Any], own: Collection[str], scaling: ScalingConfig, layout: Layout
) -> dict[str, Any]:
    """The settings with what the workers of each node need; the names in `own` the job has set for Slurm itself."""
    found = dict(settings)
    if layout.cpus and "cpus_per_task" not in own:
        found["cpus_per_task"] = layout.cpus
    if layout.memory and "mem" not in own:
        found["mem"] = f"{math.ceil(layout.memory / 2**20)}M"
    wanted = _accelerator(settings, scaling)
    if "constraint" in wanted and "constraint" not in own:
        both = [f"({one})" if "|" in one else one for one in (found.get("constraint"), wanted["constraint"]) if one]
        found["constraint"] = "&".join(both) if len(both) > 1 else wanted["constraint"]
    if not {"gres", "gpus_per_node"} & set(own):
        found.pop("gpus_per_node", None)
        kind = wanted.get("type") or slurm_settings.gpu_kind(settings)
        gpus = f"{kind}:{layout.gpus}" if kind else f"{layout.gpus}"
        others = [one for one in str(settings.get("gres", "")).split(",") if one and one.partition(":")[0] != "gpu"]
        entries = others + [f"{name}:{count}" for name, count in layout.custom.items()]
        if entries or "gres" in settings:
            found["gres"] = ",".join([*([f"gpu:{gpus}"] if layout.gpus else []), *entries])
        elif layout.gpus:
            found["gpus_per_node"] = gpus
        if not found.get("gres"):
            found.pop("gres", None)
    return found


def findings(name: str, settings: Mapping[str, Any], scaling: ScalingConfig, layout: Layout) -> Iterator[Finding]:
    """What Slurm has no words for."""
    each = ("scaling", "resources_per_worker")
    for resource in layout.custom:
        if not _GRES_NAME.fullmatch(resource):
            message = "is no name of a generic resource (gres) of Slurm"
            yield Finding("error", (*each, resource), message, "write a word, as GresTypes in slurm.conf has it")
    wanted = _accelerator(settings, scaling)
    if scaling.accelerator_type and not layout.gpus and "constraint" not in wanted:
        message = f"has no effect on the compute {name}: the workers ask for no GPU"
        fix = f"set use_gpu, or accelerators: {{{scaling.accelerator_type}: {{constraint: FEATURE}}}} in the compute"
        yield Finding("warning", ("scaling", "accelerator_type"), message, fix)
    elif scaling.accelerator_type and not slurm_settings.is_gpu_kind(wanted.get("type", "x")):
        message = f"{wanted['type']!r} can be no type of a GPU of Slurm"
        fix = f"set accelerators: {{{scaling.accelerator_type}: TYPE}} in the compute {name}"
        yield Finding("error", ("scaling", "accelerator_type"), message, fix)


def _accelerator(settings: Mapping[str, Any], scaling: ScalingConfig) -> dict[str, str]:
    """`type` of the GPUs, `constraint` on the nodes: as the setting `accelerators` has them, else the name itself."""
    name = scaling.accelerator_type
    if name is None:
        return {}
    known = {key.lower(): value for key, value in settings.get("accelerators", {}).items()}
    given = known.get(name.lower(), name.lower())
    return dict(given) if isinstance(given, Mapping) else {"type": given}
