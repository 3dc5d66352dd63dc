"""A machine that the system's ssh reaches, with the methods of `Host`.

The user's ssh configuration, keys, agent and known hosts count. Calls after the first go over the same connection, and
take milliseconds. At the other end there has to be Python 3.8, and a shell that takes words in single quotes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobsdk.bootstrap.system.private import FOLDER_MODE
from jobsdk.bootstrap.transport import extraction, ssh_files
from jobsdk.compute.hosts.host import Answer, Host
from jobsdk.compute.ssh import errors as ssh_errors
from jobsdk.compute.ssh.session import Session
from jobsdk.errors import ComputeError, JobsdkError

if TYPE_CHECKING:
    from jobsdk.bootstrap.transport.extraction import LeftOut
    from jobsdk.compute.hosts.receiving import Received
    from jobsdk.runs.folder import RunFolder
    from jobsdk.snapshot.listing import Listing

_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:@\[\]-][^\s:@\[\]]*)(?::(?P<port>\d+))?"
)
#: Seconds: to connect; of silence before a connection counts as lost; that one is kept after its last use.
CONNECT_TIMEOUT, _SILENCE, _PERSIST = 10, 15, 60
#: Seconds that one pull may take; what has come by then counts, and the next goes on from there.
PULL_TIMEOUT_S = 120.0
_LONGEST_SOCKET = 85  # bytes: 104 on macOS, less what ssh puts behind the name while it makes it
#: Runs what it is given with the module's arguments. One line and few signs, so that every shell passes it on; Python 2
#: and 3.7 understand it well enough to say what they are.
_RUN = (
    "import sys,zlib,base64;sys.version_info<(3,8) and sys.exit(%r+sys.version.split()[0]);"
    "exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
)

_SENT = "jobsdk_sent"  # the package that a program there sees itself in


class RemoteHost(Host):
    """The machine at `address`: a name, a Host of the ssh configuration, `user@host:port`, `[::1]:22`.

    `options` are put before ssh's other ones, and win: ("-F", FILE), ("-o", "ProxyJump=gate"). `python` is the
    interpreter there. Raises ComputeError for what can be no address.
    """

    is_here = False

    def __init__(
        self, address: str, options: Sequence[str] = (), python: str = "python3", folder_mode: int = FOLDER_MODE
    ) -> None:
        super().__init__(folder_mode)
        parts = _ADDRESS.fullmatch(address)
        if parts is None:
            raise ComputeError(f"{address!r} is no address for ssh. Fix: write it as host, user@host or user@host:port")
        self.name = address
        self.python = python
        self._options = tuple(options)
        host = parts["host"].strip("[]")
        self._target = f"{parts['user']}@{host}" if parts["user"] else host
        self._port = ("-p", parts["port"]) if parts["port"] else ()

    # -- commands ------------------------------------------------------------------------------------------------

    def run(
        self,
        argv: Sequence[str],
        *,
        data: bytes | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """As `Host.run`. `environ` is set beside what a login there has; anybody there can read it, so no secrets."""
        answer, out = self._run(_placed(argv, environ, cwd), data, timeout)
        if answer.code == 127 and "not found" in answer.err:
            raise ComputeError(f"there is no {argv[0]} on {self.name}")
        return answer._replace(out=out.decode("utf-8", "replace"))

    def _run(self, argv: Sequence[str], data: bytes | None, timeout: float) -> tuple[Answer, bytes]:
        with self.start(argv) as session:
            out = session.communicate(data or b"", timeout)
            return session.answer(), out

    def start(self, argv: Sequence[str]) -> Session:
        """Start a command there whose stdin and stdout are pipes. Raises ComputeError where there is no ssh here."""
        try:
            return Session(self.name, [*self.ssh(), shlex.join(argv)])
        except FileNotFoundError:
            raise ComputeError("there is no ssh on this machine. Fix: install OpenSSH's client") from None

    def ssh(self) -> list[str]:
        """ssh's argv up to the command."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_TIMEOUT),
            "ServerAliveInterval": str(_SILENCE // 3),
            "ServerAliveCountMax": "3",
            "RemoteCommand": "none",
            "ControlMaster": "auto",
            "ControlPath": '"{}"'.format(str(self.socket).replace("%", "%%")),  # a space in it would end it
            "ControlPersist": str(_PERSIST),
        }
        ours = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", *self._options, *ours, "-T", *self._port, "--", self._target]

    @functools.cached_property
    def socket(self) -> Path:
        """Where the connection that calls share is found: in a folder that only this user can read."""
        name = hashlib.sha256("\0".join((*self._options, *self._port, self._target)).encode()).hexdigest()[:16]
        return _sockets() / name

    def close(self) -> None:
        """End the connection that calls share; the next call makes a new one."""
        subprocess.run([*self.ssh()[:-2], "-O", "exit", "--", self._target], capture_output=True, check=False)

    def hostname(self) -> str:
        """The name or address behind `address` by the user's configuration; nothing is asked over the network."""
        done = subprocess.run(
            ["ssh", "-G", *self._options, *self._port, "--", self._target], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ssh_errors.told(self.name, done.stderr)
        return next(line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("hostname "))

    # -- Python there --------------------------------------------------------------------------------------------

    def python_argv(self, module: Any, *arguments: str) -> list[str]:
        """The command that runs a module's source as a program there. The module imports `extraction` at most."""
        code = base64.b64encode(zlib.compress(_program(module).encode(), 9)).decode()
        return [self.python, "-S", "-E", "-c", _RUN % ssh_errors.OLD_PYTHON, code, *arguments]

    def call(
        self, module: Any, operation: str, *arguments: Any, data: bytes | None = None, timeout: float = 60.0
    ) -> Any:
        """What an operation of such a module answers (see `far_end`). Raises ComputeError."""
        answer, out = self._run(self.python_argv(module, operation, json.dumps(arguments)), data, timeout)
        return self._answered(answer, out)

    def _answered(self, answer: Answer, out: bytes) -> Any:
        _, found, line = out.partition(ssh_files.MARK)
        if not found:
            raise ssh_errors.of_python(self.name, self.python, answer)
        content = json.loads(line.partition(b"\n")[0])
        if isinstance(content, dict) and "error" in content:
            raise ssh_errors.of_system(self.name, content)
        return content

    # -- files ---------------------------------------------------------------------------------------------------

    def write(self, folder: str, files: Mapping[str, bytes], *, private: Sequence[str] = ()) -> None:
        """As `Host.write`, in one call; `~` stands for the home there."""
        import io

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        self.call(ssh_files, "write", folder, list(private), self._folder_mode, data=packed.getvalue(), timeout=300.0)

    def send_code(self, source: Path, digest: str, store: str) -> str:
        """As `Host.send_code`. Sent are the files that a snapshot takes, with rsync where both ends have it."""
        place = self.call(ssh_files, "code_place", store, digest.replace(":", "-"), self._folder_mode)
        if place["there"] is not None:
            return str(place["there"])
        from jobsdk.snapshot.listing import scan

        partly = str(place["partly"])
        try:
            listing = scan(source)
            if place["rsync"] and self._rsync(listing, partly, place["last"]):
                return str(self.call(ssh_files, "adopt_code", partly, timeout=600.0)["there"])
            return self._send_tar(listing, partly)
        except BaseException:
            try:
                self.call(ssh_files, "forget", partly)
            except ComputeError:
                pass  # the first error is the one to tell
            raise

    def _rsync(self, listing: Listing, partly: str, last: str | None) -> bool:
        """Send by rsync, without what the code `last` beside it has already; False where it cannot be used."""
        import shutil

        root = os.path.realpath(listing.source if listing.source.is_dir() else listing.source.parent)
        if shutil.which("rsync") is None or not all(_is_as_it_lies(file, root) for file in listing.files):
            return False
        shell = shlex.join(self.ssh()[:-2])
        host = self._target if ":" not in self._target else "[{1}]".join(self._target.rpartition("@")[:2])
        argv = ["rsync", "-lpts", "--checksum", "--from0", "--files-from=-", "-e", shell]
        if last is not None:
            argv.append(f"--copy-dest=../{last}")
        names = b"\0".join(os.fsencode(file.path) for file in listing.files)
        done = subprocess.run(
            [*argv, "--", f"{root}/", f"{host}:{partly}/"], input=names, capture_output=True, check=False
        )
        if done.returncode == 255:
            raise ssh_errors.told(self.name, done.stderr.decode("utf-8", "replace"))
        return done.returncode == 0  # else tar does it, or says in plain words why it cannot be done

    def _send_tar(self, listing: Listing, partly: str) -> str:
        argv = self.python_argv(ssh_files, "take_code", json.dumps([partly]))
        with self.start(argv) as session:
            assert session.process.stdin is not None
            try:
                with tarfile.open(fileobj=session.process.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                    for file in listing.files:
                        _add(archive, file)
            except BrokenPipeError:
                pass  # the other end has ended, and says why
            except OSError as error:
                raise JobsdkError(f"cannot read {error.filename or listing.source}: {error}") from error
            out = session.finish()
            return str(self._answered(session.answer(), out)["there"])

    def fetch(self, paths: Mapping[str, Path]) -> dict[str, list[LeftOut]]:
        """As `Host.fetch`."""
        there = self.fetch_what_is_there(paths)
        for path in paths:
            if path not in there:
                raise ComputeError(f"there is no {path} on {self.name}")
        return there

    def fetch_what_is_there(self, paths: Mapping[str, Path]) -> dict[str, list[LeftOut]]:
        """`fetch`, without an error for what is not there. Raises ComputeError."""
        from jobsdk.compute.hosts.receiving import unpack

        with self.start(self.python_argv(ssh_files, "fetch", json.dumps([list(paths)]))) as session:
            session.close_stdin()
            self._expect_answer(session)
            try:
                there = unpack(session.out, list(paths.values()))
            except (OSError, tarfile.TarError) as error:
                session.check()
                raise ComputeError(f"cannot copy from {self.name}: {error}") from error
            session.check()
        return {path: there[index] for index, path in enumerate(paths) if index in there}

    def _expect_answer(self, session: Session) -> None:
        if not session.skip_to(ssh_files.MARK):
            raise ssh_errors.of_python(self.name, self.python, session.answer())
        content = json.loads(session.out.readline())
        if "error" in content:
            raise ssh_errors.of_system(self.name, content)

    def pull(self, run: RunFolder, run_dir: str) -> None:
        """As `Host.pull`. Only one process or thread at a time does it for a run."""
        from jobsdk.home import locked

        with locked(run.path / "pull.lock"):
            self.receive(run, run_dir).note()

    def receive(self, run: RunFolder, run_dir: str) -> Received:
        """`pull` but for the events, which the result's `note()` adds. To be called under the run's pull.lock."""
        from jobsdk.compute.hosts.receiving import receive
        from jobsdk.compute.shipping import parcel

        with self.start(parcel.command(self.python, run_dir, "pull", run_dir)) as session:
            session.limit(PULL_TIMEOUT_S)
            try:
                return receive(session, run, run_dir)
            except OSError as error:
                raise ComputeError(f"cannot write to {run.path}: {error.strerror}") from error


def _program(module: Any) -> str:
    """The source of a module, whose `from . import extraction` works without any file."""
    beside, main = (Path(str(one.__file__)).read_text("utf-8") for one in (extraction, module))
    return (
        "import sys, types\n"
        f"for name in ('{_SENT}', '{_SENT}.extraction'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        f"sys.modules['{_SENT}'].extraction = sys.modules[name]\n"
        f"exec({beside!r}, vars(sys.modules[name]))\n"
        f"__package__ = '{_SENT}'\n"
        f"exec({main!r})\n"
    )


def each(hosts: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """`do` of each at once; results, or the ComputeErrors raised, in their order."""
    from concurrent.futures import ThreadPoolExecutor

    def safely(host: Any) -> Any:
        try:
            return do(host)
        except JobsdkError as error:
            return error

    if len(hosts) < 2:
        return [safely(host) for host in hosts]
    with ThreadPoolExecutor(min(32, len(hosts))) as pool:
        return list(pool.map(safely, hosts))


def _placed(argv: Sequence[str], environ: Mapping[str, str] | None, cwd: str | None) -> list[str]:
    """The command in its folder and with its variables."""
    words = list(argv)
    if environ:
        words = ["env", *(f"{name}={value}" for name, value in environ.items()), *words]
    if cwd is not None:
        words = ["sh", "-c", 'cd "$0" && exec "$@"', cwd, *words]
    return words


@functools.lru_cache(maxsize=8)
def _sockets_of(home: str) -> Path:
    folder = Path(home) / "ssh"
    if len(os.fsencode(folder)) + 17 > _LONGEST_SOCKET:
        tail = hashlib.sha256(home.encode()).hexdigest()[:8]
        folder = Path(tempfile.gettempdir()) / f"jobsdk-{os.getuid()}-{tail}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise ComputeError(f"{folder} must belong to you alone: ssh's connections are kept there. Fix: remove it")
    return folder


def _sockets() -> Path:
    from jobsdk.home import home

    return _sockets_of(str(home()))


def _is_as_it_lies(file: Any, root: str) -> bool:
    """Whether a file of a listing is where its path says, as rsync reads it."""
    lies = os.path.join(root, file.path)
    return bool(os.readlink(lies) == file.link if file.link is not None else file.source == lies)


def _add(archive: tarfile.TarFile, file: Any) -> None:
    member = tarfile.TarInfo(file.path)
    member.mode = 0o755 if file.executable else 0o644
    if file.link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, file.link
        archive.addfile(member)
        return
    with open(file.source, "rb") as content:
        member.size = os.fstat(content.fileno()).st_size
        member.mtime = file.stamp.mtime_ns // 10**9
        archive.addfile(member, content)


def errors_of(results: Iterable[Any]) -> list[JobsdkError]:
    """The errors among the results of `each`."""
    return [one for one in results if isinstance(one, JobsdkError)]
