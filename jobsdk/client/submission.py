"""The way of a job to its compute, gone once: placement, plan and secrets, findings, native spec. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from jobsdk import compute as computes
from jobsdk.errors import ComputeError, ValidationError
from jobsdk.findings import Finding, in_order
from jobsdk.planning import placement

if TYPE_CHECKING:
    from jobsdk.bootstrap.spec.plan import Plan, SecretParts
    from jobsdk.compute.base import Compute, Spec
    from jobsdk.job.command import CommandJob
    from jobsdk.job.workers import Layout
    from jobsdk.snapshot.listing import Listing

Resolve = Callable[[str | None], "Compute"]


@runtime_checkable
class JobSource(Protocol):
    """What makes its job when it is submitted: a call of a decorated function."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of `create_or_update` that it brings."""

    def job(self, *, in_place: bool = False) -> CommandJob:
        """The job; with `in_place` it runs in the code folder itself."""


class Submission(NamedTuple):
    """A job ready to be sent, before anything is written. `secrets` are the parts that `plan` leaves out for being
    secret, `spec` is what the compute's engine takes, and `findings` has no errors."""

    job: CommandJob
    name: str
    plan: Plan
    secrets: SecretParts
    compute: Compute
    spec: Spec
    findings: tuple[Finding, ...]
    code: Listing | None = None  # what of the code is copied, and what is not

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What was found: errors are raised before."""
        return self.findings

    @property
    def native(self) -> Spec:
        """`spec` as it is stored and shown, without what looks like a secret: a password in a package index's URL."""
        from jobsdk.bootstrap.spec.secrets import Redactor

        spec: Spec = Redactor().data(self.spec)
        return spec

    def __repr__(self) -> str:
        return f"Submission(name={self.name!r}, compute={self.compute.name!r}, spec={self.native!r})"


class Draft:
    """A job at its compute. Each part is worked out once, when it is first asked for; making it validates the job.

    A compute that is not configured here is a warning: the job may be right, and only submitting it needs the compute.
    Raises ValidationError for a job that is not valid by itself.
    """

    def __init__(
        self,
        job: CommandJob,
        *,
        name: str,
        resolve: Resolve = computes.resolve,
        strict: bool = False,
        build_env: bool = False,
    ) -> None:
        self.job, self.name, self.build_env = job, name, build_env
        self._resolve = resolve
        is_known = isinstance(job.compute, str | None) and self.compute is not None
        self.of_job = job.findings(strict=strict, lay_out=(lambda: self.at.layout) if is_known else None)
        if any(one.is_error for one in self.of_job):
            raise ValidationError(in_order((*self.of_job, *(self._wrong_layout if is_known else ()))))

    @cached_property
    def _target(self) -> Compute | ComputeError:
        try:
            return self._resolve(self.job.compute)
        except ComputeError as error:
            return error

    @property
    def compute(self) -> Compute | None:
        """None where it is not configured here."""
        return None if isinstance(self._target, ComputeError) else self._target

    @cached_property
    def at(self) -> placement.Placement:
        """Where the job goes."""
        return placement.unknown(self.job) if self.compute is None else self.compute.place(self.job)

    def layout(self) -> Layout | None:
        """How the workers of a job with `scaling` are laid out. Raises ValidationError where that cannot be."""
        if self._wrong_layout:
            raise ValidationError(self._wrong_layout)
        return self.at.layout

    @property
    def _wrong_layout(self) -> list[Finding]:
        layout = self.at.layout
        return [] if layout is None else self.job.located(one for one in layout.findings if one.is_error)

    @cached_property
    def _sealed(self) -> tuple[Plan, SecretParts]:
        from jobsdk.planning.plan import whole_plan
        from jobsdk.planning.secrets import seal

        if self.compute is None:
            return seal(whole_plan(self.job, name=self.name, layout=self.at.layout), self.job)
        return seal(self.compute.plan(self.job, self.at, name=self.name), self.job)

    @property
    def plan(self) -> Plan:
        """The plan, without its secrets."""
        return self._sealed[0]

    @cached_property
    def _found(self) -> tuple[Finding, ...]:
        found = self.at.findings(self.job, self.plan)
        if not isinstance(self._target, ComputeError):
            return (*self._target.findings(self.job, self.plan, self.at, build_env=self.build_env), *found)
        message, _, fix = str(self._target).partition(" Fix: ")
        found = found if self.at.machine is not None else []
        found = [one._replace(severity="warning") for one in found]  # it may be another machine that is meant
        return (Finding("warning", ("compute",), message, fix), *found)

    @property
    def of_compute(self) -> tuple[Finding, ...]:
        """What the compute cannot do with the job (errors) or ignores of it (warnings), with places in its file."""
        return tuple(self.job.located(self._found))

    def submission(self, *, in_place: bool = False) -> Submission:
        """Raises ValidationError for what the compute cannot do, ComputeError where there is none."""
        if isinstance(self._target, ComputeError):
            raise self._target
        found, target = self._found, self._target
        if in_place and not target.can_run_in_place:
            message = f"the compute {target.name} cannot run in this machine's folder"
            found = (*found, Finding("error", (), message, "leave out in_place=True"))
        if any(one.is_error for one in found):
            raise ValidationError(self.job.located(found))
        spec = target.compile(self.job, self.plan, self.at, in_place=in_place, build_env=self.build_env)
        return Submission(self.job, self.name, *self._sealed, target, spec, (*self.of_job, *found))
