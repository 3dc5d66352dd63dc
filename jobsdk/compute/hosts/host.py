"""A machine on which a compute runs commands and keeps files: this one, or one that the system's ssh reaches.

Everything goes through argv and files, with the user's own ssh configuration, keys and agent; nothing has to be
installed at the other end but Python 3.8.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobsdk.bootstrap.system.private import FOLDER_MODE, make_folder, make_within, open_file
from jobsdk.errors import ComputeError

if TYPE_CHECKING:
    from jobsdk.bootstrap.transport.extraction import LeftOut
    from jobsdk.runs.folder import RunFolder


class Answer(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line of its stderr, or of its stdout."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit code {self.code}"


class Host:
    """This machine. `RemoteHost` (`jobsdk.compute.hosts.remote`) has the same methods."""

    name = "this machine"
    is_here = True

    def __init__(self, folder_mode: int = FOLDER_MODE) -> None:
        """`folder_mode` is for new folders."""
        self._folder_mode = folder_mode

    def run(
        self,
        argv: Sequence[str],
        *,
        data: bytes | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """Run a command to its end; `data` is its stdin. Raises ComputeError where it cannot be run or takes longer
        than `timeout` seconds, not for its exit code."""
        try:
            done = subprocess.run(
                list(argv), input=data, stdin=subprocess.DEVNULL if data is None else None, capture_output=True,
                env=dict(environ) if environ is not None else None, cwd=cwd, timeout=timeout, check=False,
            )  # fmt: skip
        except FileNotFoundError:
            fix = "set login of the compute to a host that has it, or run jobsdk there"
            raise ComputeError(f"there is no {argv[0]} on {self.name}. Fix: {fix}") from None
        except OSError as error:
            raise ComputeError(f"{argv[0]} cannot be run on {self.name}: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise ComputeError(f"{argv[0]} on {self.name} has not answered for {timeout:g} s") from None
        return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def write(self, folder: str, files: Mapping[str, bytes], *, private: Sequence[str] = ()) -> None:
        """Write files into a folder, which is made where it is missing; they get its rights. The `private` ones only
        this user can read.

        Raises ComputeError.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            make_folder(folder, self._folder_mode)
            for name, content in files.items():
                path = os.path.join(folder, name)
                make_within(os.path.dirname(path))
                number = os.open(path, flags | os.O_CLOEXEC, 0o600) if name in private else open_file(path, flags)
                with open(number, "wb") as file:
                    file.write(content)
        except OSError as error:
            raise ComputeError(f"cannot write {error.filename or folder} on {self.name}: {error.strerror}") from error

    def send_code(self, source: Path, digest: str, store: str) -> str:
        """The folder in `store` that holds the code of `source`, whose `snapshot.fingerprint` is `digest`.

        It is copied there unless code of the same content is there already. Raises JobsdkError.
        """
        from jobsdk.snapshot import copy

        target = Path(store) / digest.replace(":", "-")
        if target.is_dir():
            return str(target)
        make_folder(store, self._folder_mode)
        partly = target.with_name(f"{target.name}.{os.getpid()}.part")
        shutil.rmtree(partly, ignore_errors=True)
        taken = copy.take(source, partly)
        target = target.with_name(taken.hash.replace(":", "-"))  # it may have changed since
        try:
            partly.rename(target)
        except OSError:  # another submission was faster
            shutil.rmtree(partly, ignore_errors=True)
            if not target.is_dir():
                raise
        return str(target)

    def pull(self, run: RunFolder, run_dir: str) -> None:
        """Bring what is new in the events, logs and report of `run_dir` to the run's folder here. Raises ComputeError.

        Nothing to do where they are the same folder.
        """
        if os.path.realpath(run_dir) != os.path.realpath(run.path):
            raise ComputeError(f"run {run.name} lies in {run_dir}, not in {run.path}")

    def fetch(self, paths: Mapping[str, Path]) -> dict[str, list[LeftOut]]:
        """Copy files or folders of this host to new places here; what was left out of each. Raises ComputeError."""
        try:
            for source, target in paths.items():
                target.parent.mkdir(parents=True, exist_ok=True)
                if os.path.isdir(source):
                    shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy2(source, target)
        except (OSError, shutil.Error) as error:
            raise ComputeError(f"cannot copy {source}: {error}") from error
        return {path: [] for path in paths}
