"""Putting inputs and outputs where the command expects them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Optional

from .. import distributions
from ..spec import events, paths, stores
from ..system import private

if TYPE_CHECKING:
    from ..spec.plan import DataPlan, Plan

Tell = Callable[..., None]


class StagingError(Exception):
    """An input could not be brought here; the message names it."""


def io_dir(run_dir: str) -> str:
    """A name of the run's folder that is one word for a shell: itself, or a link to it in a private folder."""
    if paths.is_one_word(run_dir):
        return run_dir
    import tempfile  # rarely needed, and dear to import

    link = os.path.join(tempfile.mkdtemp(prefix="jobsdk-"), "run")
    os.symlink(run_dir, link)
    return link


def remove_io_dir(io_dir: str, run_dir: str) -> None:
    """Take away what `io_dir` made."""
    if io_dir != run_dir:
        try:
            os.unlink(io_dir)
            os.rmdir(os.path.dirname(io_dir))
        except OSError:
            pass


def stage(plan: Plan, run_dir: str, cache: str, tell: Tell) -> None:
    """Link local inputs, download `http(s)` ones (kept in `cache`), make the outputs' folders.

    `tell(event, **facts)` hears of each input and of what is worth a warning. Raises StagingError.
    """
    fetch(plan, run_dir, tell)
    for name, given in plan["inputs"].items():
        uri = str(given.get("uri"))
        if "literal" not in given and stores.store_of(uri) is None:
            _stage_input(name, given, uri, paths.input_value(plan, name, run_dir), run_dir, cache, tell)
            tell("input_staged", name=name, uri=_shown(uri))
    for name, output in plan["outputs"].items():
        if "at" in output:
            continue  # the engine sees to it
        _prepare_output(name, output, paths.output_path(plan, name, run_dir), run_dir)
    os.makedirs(run_dir + "/outputs/default", exist_ok=True)
    for path, content in distributions.of(plan).files(run_dir).items():
        mask = os.umask(0o077)  # trackers' keys may stand in it
        try:
            events.write_json(path, content)
        finally:
            os.umask(mask)


def fetch(plan: Plan, run_dir: str, tell: Tell) -> None:
    """Copy the code and the inputs that are in object stores to this node. Raises StagingError."""
    if plan.get("code"):
        from . import code

        try:
            code.bring(plan, plan["code"], "", run_dir, tell)
        except code.CodeError as error:
            raise StagingError(str(error)) from error
    os.makedirs(run_dir + "/inputs", exist_ok=True)
    for name in [name for name, given in plan["inputs"].items() if stores.is_moved(given)]:
        from . import fetching

        try:
            moved = fetching.bring(plan, name, run_dir)
        except fetching.FetchError as error:
            raise StagingError(str(error)) from error
        tell("input_staged", name=name, uri=_shown(str(plan["inputs"][name]["uri"])), **moved)


def _stage_input(name: str, given: DataPlan, uri: str, value: str, run_dir: str, cache: str, tell: Tell) -> None:
    folder = paths.input_folder(name, run_dir)
    if uri.startswith(("http://", "https://")):
        from . import download

        try:
            uri, warning = download.fetch(uri, cache)
        except download.DownloadError as error:
            raise StagingError("input %s: cannot download %s: %s" % (name, _shown(str(given["uri"])), error)) from error
        if warning:
            tell("warning", message="input %s: %s" % (name, _shown(warning)))
        if value == folder:  # not declared a file: a folder that holds what the URL gave
            value = "%s/%s" % (folder, os.path.basename(uri))
    elif paths.is_remote(uri):
        raise StagingError(
            "input %s: %s can be read only where its cloud is; give a local path or an https URL" % (name, _shown(uri))
        )
    elif not os.path.exists(uri):
        raise StagingError("input %s: there is no %s" % (name, uri))
    os.makedirs(os.path.dirname(value), exist_ok=True)
    _link(uri, value)


def _shown(text: str) -> str:
    """`text` that may hold the URI of an input, without its passwords and signatures."""
    if "://" not in text:
        return text
    from ..spec import secrets

    return secrets.redacted(text)


def _prepare_output(name: str, given: DataPlan, path: str, run_dir: str) -> None:
    target: Optional[str] = given["uri"]
    if target is not None and paths.is_remote(target):
        target = None  # stays in the run's folder; the compute has said so
    is_file = given["type"] == "uri_file"
    if target is None:
        os.makedirs(paths.output_folder(name, run_dir) if is_file else path, exist_ok=True)
        return
    with private.users_umask():
        os.makedirs(os.path.dirname(target) if is_file else target, exist_ok=True)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    _link(target, path)


def link_outputs(working_dir: str, run_dir: str) -> None:
    """What a script leaves in ./outputs is an output of the job, as on Azure ML."""
    link = os.path.join(working_dir, "outputs")
    if not os.path.lexists(link):
        _link(run_dir + "/outputs/default", link)


def _link(target: str, link: str) -> None:
    """Of several nodes with one folder the first makes the link; so does an earlier start of the job."""
    try:
        os.symlink(target, link)
    except FileExistsError:
        pass
