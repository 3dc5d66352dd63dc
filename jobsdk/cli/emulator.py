"""`jobsdk azure-emulator`: a local Azure ML, to test against without the cloud."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobsdk.errors import JobsdkError
from jobsdk.installation import install_command

if TYPE_CHECKING:
    from jobsdk.emulator.process import Running

_WORKSPACE = ("--subscription-id", "--resource-group", "--workspace-name")
_FAULT = {"method": "PUT", "path": "/jobs/", "status": 429}


def _fault(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    found = []
    for text in given:
        try:
            found.append(json.loads(text))
        except ValueError:
            raise click.BadParameter(f"{text!r} is no JSON") from None
    return tuple(found)


def _mapping(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Path]:
    found = {}
    for text in given:
        uri, _equals, path = text.partition("=")
        if "://" not in uri or not path:
            raise click.BadParameter(f"write {text!r} as URI=PATH")
        if not Path(path).exists():
            raise click.BadParameter(f"there is no {path}")
        found[uri] = Path(path).absolute()
    return found


_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps all data for the next start.  [default: a temporary folder]",
)
_OPTIONS = (
    click.option(
        "--latency",
        type=click.FloatRange(0),
        default=0.0,
        metavar="MS",
        help="Delay added to each round trip, in milliseconds.",
    ),
    click.option("--azurite", metavar="PATH", help="Path of azurite-blob.  [default: the one on PATH]"),
    click.option(
        "--fault",
        "faults",
        multiple=True,
        callback=_fault,
        metavar="JSON",
        help=f"A fault that requests meet, as in '{json.dumps(_FAULT)}'.",
    ),
    click.option(
        "--map",
        "mapped",
        multiple=True,
        callback=_mapping,
        metavar="URI=PATH",
        help="Read inputs under a wasbs:// or https:// address from a local folder or file.",
    ),
    click.option(
        "--jobs",
        "at_once",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Maximum number of jobs that run at once.",
    ),
    click.option(
        "--python",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="PATH",
        help="Python that runs the jobs; its environment must have what they import.  [default: the emulator's own]",
    ),
    click.option(_WORKSPACE[0], metavar="ID", help="Names of the workspace: give all three, or none."),
    click.option(_WORKSPACE[1], metavar="NAME"),
    click.option(_WORKSPACE[2], metavar="NAME"),
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """What `start` and `run` have in common."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.group(name="azure-emulator")
def emulator() -> None:
    """Run a local Azure ML. azure-ai-ml submits command jobs to it unchanged, and they run on this machine.

    It is made for tests, and needs Azurite (npm install -g azurite). Point clients at it with

        eval "$(jobsdk azure-emulator env)"

    or have one for a single command: jobsdk azure-emulator run -- pytest
    """


@emulator.command()
@_folder
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The proxy's port.  [default: a free one]")
@_options
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when stdin ends.")
def start(
    folder: Path | None,
    port: int,
    latency: float,
    azurite: str | None,
    faults: tuple[dict[str, Any], ...],
    mapped: dict[str, Path],
    at_once: int,
    python: Path | None,
    subscription_id: str | None,
    resource_group: str | None,
    workspace_name: str | None,
    until_eof: bool,
) -> None:
    """Start an emulator and serve until Ctrl-C."""
    import contextlib
    import tempfile

    from jobsdk.compute.azureml.workspace import Workspace
    from jobsdk.emulator import azurite as blobs

    _check_extra()
    names = _named(subscription_id, resource_group, workspace_name)
    program = blobs.find(azurite)
    from jobsdk.emulator.emulator import Emulator
    from jobsdk.emulator.process import read

    pointer = _pointer()
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jobsdk-azure-emulator-")))
        folder = folder.absolute()
        if read(folder) is not None:
            raise JobsdkError(f"an emulator runs in {folder} already. Fix: give another --folder")

        def ready(variables: dict[str, str]) -> None:
            if until_eof:  # somebody's own, and not to be found by others
                return
            pointer.parent.mkdir(parents=True, exist_ok=True)
            # Nobody starts so many at once that two would write here at the same moment.
            others = [str(one.folder) for one in _running() if one.folder != folder]
            pointer.write_text("\n".join([*others, str(folder)]))
            proxy = variables["HTTPS_PROXY"]
            click.echo(f"A local Azure ML serves through the proxy {proxy}; its workspace is in {folder}/config.json.")
            click.echo('In another shell: eval "$(jobsdk azure-emulator env)"; Ctrl-C here stops it.')

        Emulator(
            folder,
            azurite=program,
            workspace=Workspace(*names) if names else None,
            port=port,
            latency=latency / 1000,
            faults=faults,
            at_once=at_once,
            mapped=mapped,
            python=python,
        ).run(ready, until_eof=until_eof)


@emulator.command()
@_folder
def env(folder: Path | None) -> None:
    """Print the variables that connect a shell to the emulator.

    It is that of the emulator in the folder, else of the one that was started last of those that run.
    """
    import shlex

    from jobsdk.emulator.process import read

    _check_extra()
    running = read(folder) if folder is not None else next(reversed(_running()), None)
    if running is None:
        raise JobsdkError("no emulator runs. Fix: jobsdk azure-emulator start")
    for name, value in running.environ.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@emulator.command(context_settings={"allow_interspersed_args": False})
@_folder
@_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    folder: Path | None,
    latency: float,
    azurite: str | None,
    faults: tuple[dict[str, Any], ...],
    mapped: dict[str, Path],
    at_once: int,
    python: Path | None,
    subscription_id: str | None,
    resource_group: str | None,
    workspace_name: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND with an emulator of its own.

    The emulator is stopped afterwards, and the exit code is the command's.

        jobsdk azure-emulator run -- pytest tests/
    """
    import os
    import signal
    import subprocess

    from jobsdk.emulator import azurite as blobs

    _check_extra()
    from jobsdk.emulator.process import started

    names = _named(subscription_id, resource_group, workspace_name)
    options = ["--azurite", os.path.abspath(blobs.find(azurite)), "--latency", str(latency), "--jobs", str(at_once)]
    for fault in faults:
        options += ["--fault", json.dumps(fault)]
    if python is not None:
        options += ["--python", os.path.abspath(python)]
    for uri, path in mapped.items():
        options += ["--map", f"{uri}={path}"]
    for option, name in zip(_WORKSPACE, names, strict=False):
        options += [option, name]
    with started(folder, options) as running:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears it, and says what comes of it
        try:
            process = subprocess.Popen(command, env={**os.environ, **running.environ}, preexec_fn=_handling(before))
        except OSError as error:
            raise JobsdkError(f"{command[0]} cannot be started: {error.strerror}") from None
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
    context.exit(code if code >= 0 else 128 - code)


def _named(*names: str | None) -> list[str]:
    """The three names of the workspace if they were given."""
    given = [name for name in names if name]
    if given and len(given) < len(names):
        raise click.UsageError(f"Give {', '.join(_WORKSPACE)} together.")
    return given


def _handling(handler: Any) -> Callable[[], Any]:
    """In the child: SIGINT as it was for us."""
    import signal

    return lambda: signal.signal(signal.SIGINT, signal.SIG_DFL if callable(handler) else handler)


def _running() -> list[Running]:
    """The emulators that run and were started with `start`, the last one last."""
    from jobsdk.emulator.process import read

    try:
        folders = _pointer().read_text().split("\n")
    except OSError:
        return []
    return [one for one in map(read, map(Path, filter(None, folders))) if one is not None]


def _pointer() -> Path:
    """The file that says, a line each, where emulators were started."""
    from jobsdk.home import home

    return home() / "azure-emulator"


def _check_extra() -> None:
    """Raises JobsdkError if the extra is not installed."""
    from importlib.util import find_spec

    for module in ("azure.storage.blob", "certifi", "starlette", "trustme", "uvicorn"):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            fix = install_command("emulator")
            raise JobsdkError(f"azure-emulator needs {module}, which is not installed. Fix: {fix}")
