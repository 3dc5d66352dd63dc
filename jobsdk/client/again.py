"""The job of a run, for another run of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from jobsdk.client.run import Run
from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.job.command import CommandJob
from jobsdk.job.yaml_file import Overrides, load_job


def job_of(run: Run, params_override: Overrides, warn: Callable[[str], None]) -> CommandJob:
    """The job with `params_override` as load_job's; `warn` receives what it does differently besides.

    Raises JobsdkError for a run whose job was not submitted from here.
    """
    file = run.folder.path / "job.yml"
    if not file.exists():
        raise JobsdkError(f"run {run.name} has no job.yml: it was not submitted from here")
    given = [params_override] if isinstance(params_override, Mapping) else [*(params_override or ())]
    own: Mapping[str, object] = {}
    if not any("compute" in one for one in given):
        with contextlib.suppress(ComputeError):  # the submission says what is wrong with its compute
            own, why = run.target.for_rerun(run.folder)
            if why:
                warn(why)
    return load_job(file, [{"name": None}, own, *given])
