"""The emulator's own services, asked by plain HTTP or directly: tokens, pages, jobs sent twice, faults, the proxy."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobsdk.emulator import certificates, settings
from jobsdk.emulator.login import Login
from jobsdk.emulator.process import Running, started
from jobsdk.emulator.server import Refused, Request
from jobsdk.errors import JobsdkError
from tests.bootstrap.runs import wait_for
from tests.emulator.emulated import azurite, emulated, names

VERSION = "api-version=2025-01-01-preview"


class Client:
    """A plain client of an emulator, with a token from its login."""

    def __init__(self, running: Running) -> None:
        self.running = running
        context = ssl.create_default_context(cafile=running.environ["SSL_CERT_FILE"])
        proxies = urllib.request.ProxyHandler({"https": running.environ["HTTPS_PROXY"]})
        self._opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))
        subscription, group, workspace = names(running)
        self.workspace = (
            f"https://management.azure.com/subscriptions/{subscription}/resourceGroups/{group}"
            f"/providers/Microsoft.MachineLearningServices/workspaces/{workspace}"
        )
        self.token = self._login()

    def _login(self) -> str:
        environ = self.running.environ
        form = {
            "grant_type": "client_credentials", "scope": "https://management.azure.com/.default",
            "client_id": environ["AZURE_CLIENT_ID"], "client_secret": environ["AZURE_CLIENT_SECRET"],
        }  # fmt: skip
        url = f"https://login.microsoftonline.com/{environ['AZURE_TENANT_ID']}/oauth2/v2.0/token"
        with self._opener.open(url, urllib.parse.urlencode(form).encode(), timeout=60) as answer:
            token: str = json.loads(answer.read())["access_token"]
        return token

    def ask(self, method: str, url: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """Status and JSON; a path alone is one of the workspace."""
        url = url if "://" in url else f"{self.workspace}{url}{'&' if '?' in url else '?'}{VERSION}"
        headers = {"Authorization": f"Bearer {token or self.token}"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with self._opener.open(urllib.request.Request(url, data, headers, method=method), timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def put_job(self, name: str, command: str = "true", **more: Any) -> tuple[int, Any]:
        environment = "/environments/AzureML-minimal/versions/1"
        given = {"jobType": "Command", "command": command, "environmentId": environment, **more}
        return self.ask("PUT", f"/jobs/{name}", {"properties": given})

    def status(self, name: str) -> str:
        return str(self.ask("GET", f"/jobs/{name}")[1]["properties"]["status"])

    def ended(self, name: str) -> str:
        return str(wait_for(lambda: (s := self.status(name)) in ("Completed", "Failed", "Canceled") and s, 120))


@pytest.fixture(scope="module")
def azure() -> Iterator[Client]:
    with emulated("--jobs", "1") as running:
        yield Client(running)


@pytest.fixture
def client(azure: Client) -> Iterator[Client]:
    yield azure
    azure.running.clear_faults()


# -- tokens --------------------------------------------------------------------------------------------------------


def test_tokens_are_checked(tmp_path: Path) -> None:
    own, other = (settings.load_or_make(_made(tmp_path / name)) for name in ("own", "other"))
    login = Login(own)

    def check(authorization: str) -> None:
        login.check(Request("GET", "management.azure.com", "/", {}, {"authorization": authorization}, b"", {}))

    now = time.time()
    check(f"Bearer {login.token('https://management.azure.com', now + 60)}")
    for authorization, code in (
        ("", "AuthenticationFailed"),
        ("Basic abc", "AuthenticationFailed"),
        ("Bearer x.y.z", "InvalidAuthenticationToken"),
        (f"Bearer {Login(other).token('a', now + 60)}", "InvalidAuthenticationToken"),
        (f"Bearer {login.token('a', now - 1)}", "ExpiredAuthenticationToken"),
    ):
        with pytest.raises(Refused) as refused:
            check(authorization)
        assert (refused.value.status, refused.value.body["error"]["code"]) == (401, code)
        assert refused.value.headers["WWW-Authenticate"].startswith("Bearer authorization_uri=")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_settings_stay_and_a_foreign_file_is_refused(tmp_path: Path) -> None:
    assert settings.load_or_make(tmp_path) == settings.load_or_make(tmp_path)
    (tmp_path / "emulator.json").write_text("{}")
    with pytest.raises(JobsdkError, match=r"is no emulator's: .* Fix:"):
        settings.load_or_make(tmp_path)


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_sent_twice_runs_once(client: Client, tmp_path: Path) -> None:
    command = f"echo once >> {tmp_path}/said"
    assert client.put_job("twice", command)[0] == 201
    assert client.put_job("twice", command, tags={"again": "yes"})[0] == 200
    assert client.ended("twice") == "Completed"
    status, job = client.put_job("twice", command)
    assert (status, job["properties"]["status"], job["properties"]["tags"]) == (200, "Completed", {"again": "yes"})
    assert (tmp_path / "said").read_text() == "once\n"
    status, error = client.put_job("twice", "something else")
    assert (status, error["error"]["code"]) == (400, "UserError")
    assert "A job with this name already exists" in error["error"]["message"]


def test_jobs_wait_for_their_turn_and_are_cancelled_before_it(client: Client, tmp_path: Path) -> None:
    assert client.put_job("first", f"while ! [ -e {tmp_path}/go ]; do sleep 0.05; done")[0] == 201
    wait_for(lambda: client.status("first") == "Running", 120)
    client.put_job("second", f"echo ran > {tmp_path}/second")
    client.put_job("third", f"echo ran > {tmp_path}/third")
    wait_for(lambda: client.status("second") == client.status("third") == "Queued", 60)
    status, _ = client.ask("POST", "/jobs/second/cancel")
    assert status == 202
    assert client.ended("second") == "Canceled"
    assert client.status("third") == "Queued"
    (tmp_path / "go").touch()
    assert client.ended("third") == "Completed"
    assert not (tmp_path / "second").exists()


def test_a_list_comes_in_pages(client: Client, tmp_path: Path) -> None:
    client.put_job("blocks", f"while ! [ -e {tmp_path}/go ]; do sleep 0.05; done")
    for number in range(52):
        assert client.put_job(f"page-{number}", tags={"page": str(number)})[0] == 201
    for number in range(52):
        client.ask("POST", f"/jobs/page-{number}/cancel")
    (tmp_path / "go").touch()
    _, first = client.ask("GET", "/jobs?listViewType=All")
    assert len(first["value"]) == 50
    assert first["value"][0]["name"] == "page-51"
    _, second = client.ask("GET", first["nextLink"])
    assert [job["name"] for job in second["value"]][:2] == ["page-1", "page-0"]
    assert "nextLink" not in second
    _, one = client.ask("GET", "/jobs?tag=page=7")
    assert [job["name"] for job in one["value"]] == ["page-7"]


def test_a_timeout_cancels(client: Client) -> None:
    client.put_job("too-long", "sleep 600", limits={"jobLimitsType": "Command", "timeout": "PT1S"})
    assert client.ended("too-long") == "Canceled"


def test_references_that_lead_nowhere_are_refused(client: Client) -> None:
    status, error = client.put_job("none", environmentId="/environments/none/versions/1")
    assert (status, error["error"]["message"]) == (400, "The job's environment none/versions/1 was not found.")
    status, error = client.put_job("none", codeId="/codes/none/versions/1")
    assert (status, "none/versions/1" in error["error"]["message"]) == (400, True)
    assert client.ask("GET", "/jobs/none")[0] == 404


@pytest.mark.parametrize(
    "environment",
    [
        "azureml://registries/azureml/environments/sklearn-1.5/labels/latest",
        "azureml:AzureML-acpt-pytorch:33",
        "azureml:AzureML-acpt-pytorch@latest",
        "/subscriptions/s/environments/AzureML-acpt-pytorch/versions/33",
        "/subscriptions/s/environments/own/versions/1",
        "/subscriptions/s/environments/own/labels/latest",
    ],
)
def test_environments_that_azure_ml_offers_and_own_ones(client: Client, environment: str) -> None:
    assert client.ask("PUT", "/environments/own/versions/1", {"properties": {"image": "ubuntu"}})[0] in (200, 201)
    name = f"with-{abs(hash(environment))}"
    assert client.put_job(name, environmentId=environment)[0] == 201
    assert client.ended(name) == "Completed"


@pytest.mark.engine("azurite")
def test_public_data_comes_from_where_it_is_mapped_to(tmp_path: Path) -> None:
    account = "wasbs://datasets@public.invalid"
    (tmp_path / "mnist/sub").mkdir(parents=True)
    (tmp_path / "mnist/train 1.csv").write_text("one\n")
    (tmp_path / "mnist/sub/b.csv").write_text("two\n")
    (tmp_path / "one.csv").write_text("three\n")
    options = ["--map", f"{account}/mnist={tmp_path}/mnist", "--map", f"{account}/other/x.csv={tmp_path}/one.csv"]
    inputs = {
        "folder": {"jobInputType": "uri_folder", "uri": f"{account}/mnist/"},
        "file": {
            "jobInputType": "uri_file", "uri": "https://public.invalid/datasets/mnist/train%201.csv"
        },
        "below": {"jobInputType": "uri_folder", "uri": f"{account}/mnist/sub"},
        "one": {"jobInputType": "uri_file", "uri": f"{account}/other/x.csv"},
        "direct": {"jobInputType": "uri_folder", "uri": f"{account}/mnist/", "mode": "Direct"},
    }  # fmt: skip
    read = (
        "cat '${{inputs.folder}}/train 1.csv' ${{inputs.folder}}/sub/b.csv '${{inputs.file}}' ${{inputs.below}}/b.csv"
        " ${{inputs.one}} > outputs/all; echo ${{inputs.direct}} >> outputs/all; rm -r ${{inputs.folder}};"
        f" test \"$(cat outputs/all | tr '\\n' ' ')\" = 'one two one two three {account}/mnist/ '"
    )
    with emulated(*options) as running:
        client = Client(running)
        assert client.put_job("mapped", read, inputs=inputs)[0] == 201
        assert client.ended("mapped") == "Completed"
        assert (tmp_path / "mnist/train 1.csv").exists()
        for name, uri, says in (
            ("out", f"{account}/mnist/../one.csv", "leads out of"),
            ("gone", f"{account}/mnist/nothing.csv", "is not there"),
            ("beside", f"{account}/mnist2/a.csv", "cannot be fetched"),
        ):
            given = {"data": {"jobInputType": "uri_file", "uri": uri}}
            assert client.put_job(name, "cat ${{inputs.data}}", inputs=given)[0] == 201
            assert client.ended(name) == "Failed"
            base = client.workspace.replace(
                "https://management.azure.com", "https://eastus.api.azureml.ms/history/v1.0"
            )
            assert says in client.ask("GET", f"{base}/runs/{name}/details")[1]["error"]["error"]["message"]


@pytest.mark.engine("azurite")
def test_jobs_have_the_python_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    with emulated("--python", str(tmp_path / "bin/python")) as running:
        client = Client(running)
        assert client.put_job("own", f"test $(command -v python) = {tmp_path}/bin/python")[0] == 201
        assert client.ended("own") == "Completed"


def test_an_input_that_is_not_there_fails_the_job(client: Client) -> None:
    uri = "azureml://datastores/workspaceblobstore/paths/nothing.csv"
    client.put_job("no-input", "cat ${{inputs.x}}", inputs={"x": {"jobInputType": "uri_file", "uri": uri}})
    assert client.ended("no-input") == "Failed"
    base = client.workspace.replace("https://management.azure.com", "https://eastus.api.azureml.ms/history/v1.0")
    _, details = client.ask("GET", f"{base}/runs/no-input/details")
    assert details["error"]["error"]["message"] == f"The input x is not there: {uri}"


def test_logs_grow_while_a_job_runs(client: Client, tmp_path: Path) -> None:
    client.put_job("growing", f"echo one; while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two")
    base = client.workspace.replace("https://management.azure.com", "https://eastus.api.azureml.ms/history/v1.0")

    def log() -> str:
        _, details = client.ask("GET", f"{base}/runs/growing/details")
        address = details["logFiles"].get("user_logs/std_log.txt")
        if address is None:
            return ""
        with client._opener.open(address, timeout=60) as answer:
            return str(answer.read().decode())

    wait_for(lambda: log() == "one\n", 120)
    wait_for(lambda: client.status("growing") == "Running")  # a log may come before the status
    (tmp_path / "go").touch()
    assert client.ended("growing") == "Completed"
    assert log() == "one\ntwo\n"


@pytest.mark.engine("azurite")
def test_what_an_emulator_kept_is_there_at_its_next_start(tmp_path: Path) -> None:
    folder, mark = tmp_path / "emulator", tmp_path / "started"
    with started(folder, ["--azurite", azurite()]) as running:
        client = Client(running)
        client.put_job("done")
        assert client.ended("done") == "Completed"
        client.put_job("unfinished", f"touch {mark}; exec sleep 12321.5")
        wait_for(mark.exists, 120)
        os.kill(running.pid, signal.SIGKILL)
    with emulated(folder=folder) as again:
        assert again.environ["AZURE_CLIENT_SECRET"] == running.environ["AZURE_CLIENT_SECRET"]
        client = Client(again)
        assert (client.status("done"), client.ended("unfinished")) == ("Completed", "Failed")


@pytest.mark.engine("azurite")
def test_a_folder_that_is_no_word_for_a_shell(tmp_path: Path) -> None:
    with emulated(folder=tmp_path / "a 'b' $HOME") as running:
        client = Client(running)
        outputs = {"told": {"jobOutputType": "uri_folder"}}
        command = (
            "cd ${{outputs.told}} && echo yes > told.txt && mkdir $AZ_BATCHAI_JOB_TEMP/own && echo kept > ~-/outputs/a"
        )
        assert client.put_job("told", command, outputs=outputs)[0] == 201
        assert client.ended("told") == "Completed"


def test_two_emulators_have_nothing_in_common(client: Client) -> None:
    with emulated() as running:
        other = Client(running)
        assert other.put_job("theirs")[0] == 201
        assert client.ask("GET", "/jobs/theirs")[0] == 404
        status, error = client.ask("GET", "/jobs/theirs", token=other.token)
        assert (status, error["error"]["code"]) == (401, "InvalidAuthenticationToken")


# -- faults --------------------------------------------------------------------------------------------------------


def test_a_status_for_so_many_requests(client: Client) -> None:
    client.running.add_fault(method="put", path="/jobs/faulty", status=429, retry_after=3, times=2, after=1)
    client.running.add_fault(path="/computes", status=409, code="QuotaExceeded", message="There is no quota left.")
    assert [client.put_job(f"faulty-{number}")[0] for number in range(4)] == [201, 429, 429, 201]
    status, error = client.ask("GET", "/computes")
    assert (status, error["error"]["code"], error["error"]["message"]) == (
        409, "QuotaExceeded", "There is no quota left.",
    )  # fmt: skip
    assert client.ask("GET", "/computes")[0] == 200
    client.running.add_fault(status=403)
    client.running.clear_faults()
    assert client.ask("GET", "/computes")[0] == 200


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"stauts": 500}, "has no 'stauts'"),
        ({"status": "500"}, "status cannot be '500'"),
        ({"status": True}, "status cannot be True"),
        ({}, "exactly one of status"),
        ({"status": 500, "drop_after": 3}, "exactly one of status"),
        ({"status": 500, "path": "("}, "path is no pattern"),
    ],
)
def test_a_fault_that_is_none_is_refused(client: Client, fault: dict[str, Any], says: str) -> None:
    with pytest.raises(JobsdkError, match=says):
        client.running.add_fault(**fault)


def upload(client: Client, name: str) -> str:
    """The address, with its signature, to which code can be uploaded."""
    _, pending = client.ask("POST", f"/codes/{name}/versions/1/startPendingUpload", {})
    address: str = pending["blobReferenceForConsumption"]["credential"]["sasUri"]
    return address


def put_blob(client: Client, address: str, content: bytes) -> int:
    url = address.replace("?", "/file.bin?")
    request = urllib.request.Request(url, content, {"x-ms-blob-type": "BlockBlob"}, method="PUT")
    try:
        with client._opener.open(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_signature_that_has_run_out(client: Client) -> None:
    client.running.add_fault(expired_sas=True)
    assert put_blob(client, upload(client, "late"), b"x") == 403
    assert put_blob(client, upload(client, "late"), b"x") == 201


def test_a_connection_that_breaks_in_mid_upload(client: Client) -> None:
    address = upload(client, "broken")
    client.running.add_fault(path=r"\.blob\.core\.windows\.net", drop_after=100_000)
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        put_blob(client, address, b"x" * 2_000_000)
    assert put_blob(client, address, b"x" * 2_000_000) == 201


def test_blob_requests_are_told_without_their_signatures(client: Client) -> None:
    address = upload(client, "told")
    put_blob(client, address, b"x")
    path = urllib.parse.urlsplit(address).path + "/file.bin"

    def told() -> list[dict[str, Any]]:
        return [one for one in client.running.requests() if one["path"].partition("?")[0] == path]

    (one,) = wait_for(told, 60)
    assert (one["method"], one["status"]) == ("PUT", 201)
    assert one["host"].endswith(".blob.core.windows.net")
    assert "sig=..." in one["path"]


# -- the proxy -----------------------------------------------------------------------------------------------------


def connect(client: Client, target: str) -> tuple[socket.socket, bytes]:
    """A connection through the proxy, and the proxy's first line."""
    connection = socket.create_connection(("127.0.0.1", client.running.port), timeout=60)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer and (data := connection.recv(1)):
        answer += data
    return connection, answer.split(b"\r\n")[0]


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """The port of a server that says everything again, once to each client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    while data := connection.recv(65536):
                        connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_other_names_lead_where_they_lead(client: Client) -> None:
    with echo() as port:
        connection, answer = connect(client, f"localhost:{port}")
        with connection:
            assert answer == b"HTTP/1.1 200 Connection established"
            connection.sendall(b"hello" * 50_000)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            while data := connection.recv(65536):
                received += data
    assert received == b"hello" * 50_000


def test_what_cannot_be_reached_is_a_bad_gateway(client: Client) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        connection, answer = connect(client, f"127.0.0.1:{unused.getsockname()[1]}")
        connection.close()
    assert answer == b"HTTP/1.1 502 Bad Gateway"


def test_only_who_trusts_the_authority_is_served(client: Client) -> None:
    connection, _ = connect(client, "management.azure.com:443")
    with connection, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context(cadata=_foreign_authority()).wrap_socket(
            connection, server_hostname="management.azure.com"
        )
    for host in ("management.azure.com", "eastus.api.azureml.ms", "ml.azure.com", "vault.windows.net"):
        connection, _ = connect(client, f"{host}:443")
        context = ssl.create_default_context(cafile=client.running.environ["SSL_CERT_FILE"])
        with connection, context.wrap_socket(connection, server_hostname=host) as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3")


def _foreign_authority() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return certificates.make(Path(folder), ["other.example"], []).authority.read_text()


@pytest.mark.parametrize("header", ["Transfer-Encoding: chunked", f"Content-Length: {1 << 40}"])
def test_a_body_without_bounds_is_refused(client: Client, header: str) -> None:
    connection, _ = connect(client, "management.azure.com:443")
    context = ssl.create_default_context(cafile=client.running.environ["SSL_CERT_FILE"])
    with connection, context.wrap_socket(connection, server_hostname="management.azure.com") as secure:
        secure.sendall(f"PUT /x HTTP/1.1\r\nHost: management.azure.com\r\n{header}\r\n\r\n".encode())
        assert secure.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_plain_request_does_not_go_through_the_proxy(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.running.port), timeout=60) as connection:
        connection.sendall(b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert answer.endswith(b'{"error": "only https goes through this proxy"}')


def test_the_real_authorities_are_trusted_as_before(client: Client) -> None:
    import certifi

    assert Path(certifi.where()).read_text() in Path(client.running.environ["REQUESTS_CA_BUNDLE"]).read_text()


def test_the_emulator_itself_answers_only_who_has_its_key(client: Client) -> None:
    running = client.running._replace(control_key="guessed")
    with pytest.raises(JobsdkError, match="control_key"):
        running.requests()
    with pytest.raises(JobsdkError, match="there are /requests"):
        client.running._ask("GET", "/anything")


def test_latency_is_borne_by_each_round_trip(client: Client) -> None:
    client.running.set_latency(200)
    try:
        before = time.monotonic()
        assert client.ask("GET", "/computes")[0] == 200  # TCP, TLS and the request itself: at least three
        assert time.monotonic() - before > 0.59
    finally:
        client.running.set_latency(0)
