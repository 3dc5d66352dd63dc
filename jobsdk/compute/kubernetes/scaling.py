"""What the workers of a job with `scaling` need, in the settings of a compute of type kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jobsdk.compute.kubernetes import settings as kubernetes_settings
from jobsdk.findings import Finding, show
from jobsdk.job.scaling import ScalingConfig
from jobsdk.job.workers import Layout

#: The label that NVIDIA's feature discovery gives nodes: as NVIDIA-A100-SXM4-80GB.
LABEL = "nvidia.com/gpu.product"


def settled(
    settings: Mapping[str, Any], own: Collection[str], scaling: ScalingConfig, layout: Layout
) -> dict[str, Any]:
    """The settings with what the workers of each node need; the names in `own` the job has set for Kubernetes."""
    needed: dict[str, Any] = {"gpus_per_node": layout.gpus}
    if layout.cpus:
        needed["cpu"] = layout.cpus
    if layout.memory:
        needed["memory"] = str(layout.memory)
    found = {**settings, **{name: value for name, value in needed.items() if name not in own}}
    devices = {name: count for name, count in layout.custom.items() if "/" in name}
    if devices:
        found["devices"] = {**devices, **settings.get("devices", {})}
    selector = {**_accelerator(settings, scaling), **_labels(scaling)}
    if selector:
        found["node_selector"] = {**selector, **settings.get("node_selector", {})}
    return found


def findings(
    name: str, settings: Mapping[str, Any], scaling: ScalingConfig | None, layout: Layout | None
) -> Iterator[Finding]:
    """What Kubernetes has no words for, or may not find."""
    if scaling is None or layout is None:
        return
    for resource in layout.custom:
        if not kubernetes_settings.is_resource(resource):
            message = "is no resource of Kubernetes: those that are not its own have a / in the name"
            fix = "write it as the nodes have it, as example.com/fpga"
            yield Finding("error", ("scaling", "resources_per_worker", resource), message, fix)
    selector = _accelerator(settings, scaling)
    for label, value in selector.items():
        if not kubernetes_settings.is_label(value):
            message = f"{show(value)} can be no label of a node"
            fix = f"set accelerators: {{{scaling.accelerator_type}: LABEL}} in the compute {name}"
            yield Finding("error", ("scaling", "accelerator_type"), message, fix)
        elif label == LABEL and not value.lower().startswith("nvidia-") and not _is_mapped(settings, scaling):
            message = f"nodes are asked for with the label {LABEL}={value}, which nodes seldom have"
            fix = f"set accelerators: {{{value}: NVIDIA-{value}-SXM4-80GB}}, as its nodes say, or accelerator_label"
            yield Finding("warning", ("scaling", "accelerator_type"), message, f"{fix}, in the compute {name}")
    labels = scaling.label_selector
    if isinstance(labels, list) and any(one != labels[0] for one in labels):
        message = "all nodes of a job on Kubernetes are alike"
        yield Finding("error", ("scaling", "label_selector"), message, "write one mapping for all workers")
    for label, value in _labels(scaling).items():
        if not kubernetes_settings.is_label(value) or not kubernetes_settings.is_label_key(label):
            message = f"{show(value)} is not the value of a label of a node; Ray's operators are Ray's alone"
            yield Finding("error", ("scaling", "label_selector", label), message, "write the value that nodes have")


def _labels(scaling: ScalingConfig) -> dict[str, str]:
    labels = scaling.label_selector
    return dict((labels[0] if labels else {}) if isinstance(labels, list) else labels or {})


def _is_mapped(settings: Mapping[str, Any], scaling: ScalingConfig) -> bool:
    return (scaling.accelerator_type or "").lower() in map(str.lower, settings.get("accelerators", {}))


def _accelerator(settings: Mapping[str, Any], scaling: ScalingConfig) -> dict[str, str]:
    """The label of nodes with the accelerator: as the setting `accelerators` says, else its name itself."""
    name = scaling.accelerator_type
    if name is None:
        return {}
    known = {key.lower(): kubernetes_settings.text(value) for key, value in settings.get("accelerators", {}).items()}
    return {settings.get("accelerator_label", LABEL): known.get(name.lower(), name)}
