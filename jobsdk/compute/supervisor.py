"""Starting the supervisor of a local run: the process that goes on without the terminal.

An interpreter takes as long to start as a job takes to be judged. So `jobsdk run` starts it first, and lets it go on
once the run has its folder; one that is not let go ends by itself when the pipe to it is closed.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from jobsdk.bootstrap import archive
from jobsdk.bootstrap.system import private
from jobsdk.errors import ComputeError
from jobsdk.runs.children import adopt, reap
from jobsdk.runs.folder import RunFolder


class _Waiting(NamedTuple):
    pid: int
    environment: dict[str, str]
    go: int  # the pipe to it


#: Supervisors that have been started ahead, by the folders of their runs.
_waiting: dict[str, _Waiting] = {}


def start_ahead(run_path: str, environment: dict[str, str]) -> None:
    """Start the supervisor of a run that is still to be made; `start` lets it go on."""
    environment = {**environment, "JOBSDK_RUN_DIR": run_path}
    theirs, go = os.pipe()
    os.set_inheritable(theirs, True)
    try:
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs, 0),
            (os.POSIX_SPAWN_CLOSE, theirs),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        argv = archive.command("local", "--wait", run_path)
        pid = os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=())
    except (OSError, NotImplementedError):
        os.close(go)  # it is started, or found to be impossible, when its time has come
        return
    finally:
        os.close(theirs)
    adopt(pid)
    _waiting[run_path] = _Waiting(pid, environment, go)


def start(run: RunFolder, environment: dict[str, str]) -> int:
    """Start a run's supervisor, with `environment` for the ranks; its pid. Raises ComputeError."""
    # By this all processes of the run can be told, even when their supervisor has been killed.
    environment["JOBSDK_RUN_DIR"] = str(run.path)
    reap()
    waiting = _waiting.pop(str(run.path), None)
    if waiting is not None:
        try:
            if waiting.environment == environment and os.write(waiting.go, b".") == 1:
                return waiting.pid
        except BrokenPipeError:
            pass  # somebody has killed it
        finally:
            os.close(waiting.go)
    pid = _spawn(run, environment)
    adopt(pid)
    return pid


def _spawn(run: RunFolder, environment: dict[str, str]) -> int:
    """In a session of its own, so that it does not end with the terminal."""
    argv = archive.command("local", str(run.path))
    log = str(run.logs / "supervisor.log")
    os.close(private.open_file(log, os.O_WRONLY | os.O_CREAT))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    try:
        try:
            return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=())
        except NotImplementedError:  # macOS before 10.15 and old C libraries cannot make the session
            import subprocess

            with open(log, "ab") as out:
                return subprocess.Popen(
                    argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                ).pid
    except OSError as error:
        raise ComputeError(f"cannot start the run's supervisor {argv[0]}: {error.strerror}") from error
