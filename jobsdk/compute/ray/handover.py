"""What the driver of a run is given, here or on the cluster, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan
    from jobsdk.compute.engine.hold import Hold


def order(spec: Mapping[str, Any], foreign: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The fields of the driver's `Order` that a spec says, as JSON can have them; `foreign` is as of `HeldNode`."""
    same = {key: spec[key] for key in ("run", "runtime_env", "patience", "grows")}
    return {**same, **spec["group"], "foreign": [list(part) for part in foreign]}


def replan(hold: Hold, plan: Plan) -> None:
    """The plan as Ray's placement has made it."""
    hold.plan = plan
    hold.run.write_json("plan.json", plan)
    hold.run.update_facts({"nodes": plan["nodes"]})
