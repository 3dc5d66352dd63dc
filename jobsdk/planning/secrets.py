"""Taking the secrets out of a plan, which is stored and shown, and keeping them for the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jobsdk.bootstrap.spec import paths, secrets
from jobsdk.job import secret_rules

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import DataPlan, Plan, SecretParts
    from jobsdk.job.command import CommandJob


def seal(plan: Plan, job: CommandJob) -> tuple[Plan, SecretParts]:
    """The plan without secrets, and what was taken out of it.

    `secrets` of the plan names the secret variables, `sealed` the parts that are not true in it.
    """
    names, values = secret_rules.names(job), secret_rules.values(job)
    whole: dict[str, Any] = {**plan}
    variables = plan["environment"]
    taken: dict[str, Any] = {"environment": {name: variables[name] for name in names if name in variables}}
    public = {**whole, "environment": {name: value for name, value in variables.items() if name not in names}}
    for part, content in _without(plan, secrets.Redactor(values)).items():
        if content != whole[part]:
            public[part], taken[part] = content, whole[part]
    sealed = sorted(part for part in taken if part != "environment" or names)
    if not sealed:
        return {**plan, "secrets": [], "sealed": []}, {}
    public.update(secrets=names, sealed=sealed)
    return cast("Plan", public), cast("SecretParts", {**taken, "secret_values": values})


def complete(parts: SecretParts, names: list[str], environ: Mapping[str, str]) -> SecretParts:
    """What `seal` took out of a plan, with the secrets `names` that the job leaves to the submitter's environment.

    Raises JobsdkError if one is not set there.
    """
    given = parts.get("environment", {})
    missing = [name for name in names if name not in given and name not in environ]
    if missing:
        from jobsdk.errors import JobsdkError

        raise JobsdkError(
            f"{', '.join(missing)}, secret in the job, {'is' if len(missing) == 1 else 'are'} not set here. "
            f"Fix: export {missing[0]}=..., or add it to environment_variables"
        )
    if not parts:
        return {}
    found = {name: environ[name] for name in names if name not in given}
    secret_values = [*parts["secret_values"], *found.values()]
    return {**parts, "environment": {**given, **found}, "secret_values": secret_values}


def _without(plan: Plan, redactor: secrets.Redactor) -> dict[str, Any]:
    """The parts of a plan that hold text of the user's, redacted; paths of this machine stay, they are opened."""

    def data(given: DataPlan) -> DataPlan:
        if "literal" in given:
            return {"literal": redactor.text(given["literal"])}
        uri = given["uri"]
        return {**given, "uri": redactor.text(uri)} if uri is not None and paths.is_remote(uri) else given

    distribution = plan["distribution"]
    if isinstance(distribution.get("config"), dict):
        distribution = {**distribution, "config": redactor.data(distribution["config"])}
    return {
        "display_name": redactor.data(plan["display_name"]),
        "experiment": redactor.data(plan["experiment"]),
        "command": [redactor.text(piece) if isinstance(piece, str) else piece for piece in plan["command"]],
        "inputs": {name: data(given) for name, given in plan["inputs"].items()},
        "outputs": {name: data(given) for name, given in plan["outputs"].items()},
        "distribution": distribution,
        **({"code": redactor.text(plan["code"])} if "code" in plan else {}),
    }
