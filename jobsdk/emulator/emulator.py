"""One emulator, put together: Azurite, the TLS server, the proxy, and the jobs that run; from start to stop."""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import json
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jobsdk.compute.azureml.workspace import Workspace
from jobsdk.emulator import certificates, proxy, settings
from jobsdk.emulator.azurite import Azurite
from jobsdk.emulator.certificates import write_private
from jobsdk.emulator.faults import Faults
from jobsdk.emulator.server import Application, RequestLog, Response
from jobsdk.emulator.settings import Settings
from jobsdk.emulator.store import Store
from jobsdk.errors import JobsdkError

#: In the folder of a running emulator, which locks it: its pid, its proxy's port, and what its clients set. Private.
RUNNING = "running.json"
AT_ONCE = 4  # jobs


class Emulator:
    """An emulator in `folder`; `run()` is its whole life, and `on_ready` gets the environment of its clients."""

    def __init__(
        self,
        folder: Path,
        *,
        azurite: str,
        workspace: Workspace | None = None,
        port: int = 0,
        latency: float = 0.0,
        faults: Sequence[Mapping[str, Any]] = (),
        at_once: int = AT_ONCE,
        mapped: Mapping[str, Path] | None = None,
        python: Path | None = None,
    ) -> None:
        self._folder = folder
        self._azurite = azurite
        self._port = port
        self._latency = latency
        self._at_once = at_once
        self._mapped = dict(mapped or {})
        self._python = python
        self._faults = Faults()
        for fault in faults:
            self._faults.add(fault)
        self._log = RequestLog()
        settings.make_folder(folder)
        self._settings = settings.load_or_make(folder, workspace)

    def run(self, on_ready: Callable[[dict[str, str]], None], *, until_eof: bool = False) -> None:
        """Serve until SIGTERM or SIGINT, or with `until_eof` until stdin ends. Raises JobsdkError."""
        from jobsdk.emulator.history import History
        from jobsdk.emulator.jobs import Jobs
        from jobsdk.emulator.login import Login
        from jobsdk.emulator.running import Runner
        from jobsdk.emulator.serving import Server
        from jobsdk.emulator.storage import Storage
        from jobsdk.emulator.workspace import Workspace as Resources

        folder, own = self._folder, self._settings
        os.environ["JOBSDK_HOME"] = str(folder / "home")
        # What is trusted by those who start us is still to be trusted by what jobs fetch from elsewhere.
        files = certificates.make(folder, proxy.names(own.blob_host), certificates.trusted_here())
        blobs = Azurite(self._azurite, folder / "azurite", own, files, self._saw_blob)
        store = Store(folder / "state.sqlite")
        servers: list[Server] = []
        runner = None
        try:
            storage = Storage(own, blobs.port, files.authority)
            for container in own.containers.values():
                storage.make(container)
            runner = Runner(folder / "jobs", own, store, storage, self._at_once, self._mapped, self._python)
            runner.bury()
            login = Login(own)
            routes = [
                *login.routes(),
                *Resources(own, store, storage, self._faults).routes(),
                *Jobs(own, store, runner).routes(),
                *History(own, store, storage).routes(),
            ]
            application = Application(routes, login.check, self._faults, self._log)
            servers.append(Server(application.answer, files.chain, files.key))
            servers.append(Server(self._control))
            ends = proxy.Ends(servers[0].port, blobs.port, own.blob_host, servers[1].port)
            asyncio.run(self._serve(ends, files, on_ready, until_eof))
        finally:
            (folder / RUNNING).unlink(missing_ok=True)
            if runner is not None:
                runner.stop()
            for server in servers:
                server.stop()
            blobs.stop()
            store.close()
            files.key.unlink(missing_ok=True)

    async def _serve(
        self,
        ends: proxy.Ends,
        files: certificates.Certificates,
        on_ready: Callable[[dict[str, str]], None],
        until_eof: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        self._proxy = proxy.Proxy(ends, self._faults, self._log, self._latency)
        try:
            listening = await self._proxy.start(self._port)
        except OSError as error:
            raise JobsdkError(
                f"port {self._port} of 127.0.0.1 cannot be listened on: {error.strerror}. Fix: give another --port"
            ) from None
        port = listening.sockets[0].getsockname()[1]
        variables = environment(self._settings, port, files)
        workspace = self._settings.workspace._asdict()
        (self._folder / "config.json").write_text(json.dumps(workspace, indent=1) + "\n")
        running = {
            "pid": os.getpid(),
            "port": port,
            "control_key": self._settings.control_key,
            "environment": variables,
        }
        write_private(self._folder / RUNNING, json.dumps(running).encode())
        self._running = open(self._folder / RUNNING)  # noqa: SIM115 # locked as long as this process lives
        fcntl.flock(self._running, fcntl.LOCK_EX)
        on_ready(variables)
        if until_eof:
            threading.Thread(target=_at_eof, args=(loop, ended), daemon=True).start()
        await ended.wait()
        listening.close()
        await self._proxy.close()

    def _saw_blob(self, method: str, path: str, status: int) -> None:
        if not path.startswith(f"/{self._settings.account}/"):  # our own requests name the account in the path
            self._log.add(method, self._settings.blob_host, path, status)

    def _control(self, method: str, host: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """What tests ask of the emulator itself: its log of requests, and faults to come."""
        if not path.startswith("/"):
            return Response({"error": "only https goes through this proxy"}, 501)
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(key.encode(), self._settings.control_key.encode()):
            return Response({"error": f"the control_key of {RUNNING} is needed, as a bearer token"}, 401)
        try:
            if (method, path) == ("GET", "/requests"):
                return Response({"requests": self._log.all()})
            if (method, path) == ("DELETE", "/requests"):
                self._log.clear()
            elif (method, path) == ("POST", "/faults"):
                self._faults.add(json.loads(body))
            elif (method, path) == ("DELETE", "/faults"):
                self._faults.clear()
            elif (method, path) == ("PUT", "/latency"):
                self._proxy.latency = float(json.loads(body)["ms"]) / 1000
            else:
                return Response({"error": "there are /requests, /faults and /latency"}, 404)
        except (JobsdkError, ValueError, KeyError, TypeError) as error:
            return Response({"error": str(error)}, 400)
        return Response({})


def environment(own: Settings, port: int, files: certificates.Certificates) -> dict[str, str]:
    """What makes azure-ai-ml, azure-identity and others that read these variables clients of an emulator."""
    address, bundle, direct = f"http://127.0.0.1:{port}", str(files.bundle), "127.0.0.1,localhost"
    return {
        "HTTPS_PROXY": address,
        "https_proxy": address,
        "NO_PROXY": direct,
        "no_proxy": direct,
        "REQUESTS_CA_BUNDLE": bundle,
        "CURL_CA_BUNDLE": bundle,
        "SSL_CERT_FILE": bundle,
        "AZURE_TENANT_ID": own.tenant_id,
        "AZURE_CLIENT_ID": own.client_id,
        "AZURE_CLIENT_SECRET": own.client_secret,
        "AZURE_SUBSCRIPTION_ID": own.subscription_id,
        "AZURE_RESOURCE_GROUP": own.resource_group,
        "AZUREML_WORKSPACE_NAME": own.workspace_name,
    }


def _at_eof(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Whoever started us keeps our stdin open while it wants us."""
    while os.read(0, 4096):  # sys.stdin's own lock would be held when the interpreter ends
        pass
    try:
        loop.call_soon_threadsafe(ended.set)
    except RuntimeError:
        pass  # it has ended already
