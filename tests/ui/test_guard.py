"""Who may use the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from jobsdk.ui.guard import Tickets
from jobsdk.ui.server import application
from tests.bootstrap.runs import wait_for

from .conftest import PORT, TOKEN, submit


@pytest.fixture
def stranger() -> TestClient:
    return TestClient(application(TOKEN, PORT), base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


PATHS = ["/", "/api/runs", "/api/runs/x", "/api/runs/x/live", "/static/page.js", "/nosuch", "/api/runs/x/download"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü"])
def test_nothing_without_the_token(stranger: TestClient, path: str, given: str) -> None:
    for answer in (
        stranger.get(path, params={"token": given}),
        stranger.get(path, headers={"authorization": f"Bearer {given}".encode()}),
        stranger.get(path, headers={"cookie": f"jobsdk-{PORT}={given}".encode()}),
    ):
        assert answer.status_code == 401
        assert TOKEN not in answer.text


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get(f"/runs/x?token={TOKEN}")
    assert answer.status_code == 200
    assert 'content="0;url=/runs/x"' in answer.text
    assert TOKEN not in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert stranger.get("/").status_code == 200  # by the cookie


def test_the_token_leads_nowhere_else(stranger: TestClient) -> None:
    request = stranger.build_request("GET", f"/?token={TOKEN}")
    request.url = request.url.copy_with(raw_path=f"//evil.example/?token={TOKEN}".encode())
    assert "url=/evil.example/" in stranger.send(request).text


def test_a_ticket_lets_in_once(stranger: TestClient) -> None:
    stranger = TestClient(application(TOKEN, PORT, Tickets("once")), base_url=f"http://127.0.0.1:{PORT}")
    assert stranger.get("/?token=once").status_code == 200
    assert stranger.cookies[f"jobsdk-{PORT}"] == TOKEN
    stranger.cookies.clear()
    assert stranger.get("/?token=once").status_code == 401
    assert stranger.get("/", headers={"authorization": "Bearer once"}).status_code == 401


@pytest.mark.parametrize("site", ["same-site", "cross-site"])
def test_other_pages_cannot_even_ask(client: TestClient, site: str) -> None:
    # A page of another port of this machine is of the same site: the browser sends the cookie, and no Origin.
    assert client.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
    assert client.get("/", headers={"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 403
    assert client.get("/api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200
    # But the printed address may be clicked in a terminal that is itself a page.
    headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert client.get(f"/?token={TOKEN}", headers=headers).status_code == 200
    headers["sec-fetch-mode"] = "no-cors"
    assert client.get(f"/?token={TOKEN}", headers=headers).status_code == 403


def test_a_cookie_that_another_port_has_set_hides_not_ours(stranger: TestClient) -> None:
    name = f"jobsdk-{PORT}"
    for cookie in (f"{name}=x; {name}={TOKEN}", f"{name}={TOKEN}; a=b; {name}=x"):
        assert stranger.get("/", headers={"cookie": cookie}).status_code == 200


def test_there_are_no_web_sockets(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/runs"):
        pass


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"[::1]:{PORT}", ""]
)
def test_other_names_that_lead_here_are_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_pages_are_refused(client: TestClient, origin: str, method: str) -> None:
    answer = client.request(method, "/api/runs/x/cancel", headers={"origin": origin, "x-jobsdk": "1"})
    assert answer.status_code == 403


def test_a_form_of_another_page_changes_nothing(client: TestClient, tmp_path: Path) -> None:
    run = submit(tmp_path, "wait")
    wait_for(lambda: run.status == "Running")
    for headers in ({}, {"content-type": "text/plain"}, {"x-jobsdk": "0"}):
        assert client.post(f"/api/runs/{run.name}/cancel", headers=headers).status_code == 403
    assert client.get(f"/api/runs/{run.name}/cancel").status_code == 405
    assert run.status == "Running"
    assert client.post(f"/api/runs/{run.name}/cancel", headers={"x-jobsdk": "1"}).status_code == 200
    assert run.wait(200).status == "Canceled"


@pytest.mark.parametrize("path", ["/", "/api/runs", "/static/page.js", "/api/runs/nosuch", "/nosuch"])
def test_every_answer_says_what_a_browser_may_do(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        *(f"/api/runs/{name}" for name in ("%2e%2e", "..%2f..%2fetc", "a%2fb", "%00", "%2fetc%2fpasswd", "nosuch")),
        *(f"/static/{name}" for name in ("../server.py", "%2e%2e/server.py", "..%2fserver.py", "%2fetc/passwd")),
    ],
)
def test_no_path_leads_out(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "import" not in answer.text
