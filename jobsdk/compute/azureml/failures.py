"""What Azure's libraries raise, in one line: what is wrong, where, and what to do. No secret gets into it."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from jobsdk.errors import ComputeError, JobsdkError
from jobsdk.installation import install_command

LIMIT = 400  # characters of a message
_LOGIN = "az login"
_VARIABLES = "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"

#: What Microsoft Entra ID says by number: (what is wrong, what to do).
_ENTRA = {
    "7000215": ("the client secret is wrong", "set AZURE_CLIENT_SECRET to the secret's value, not its id"),
    "7000222": ("the client secret has expired", "make a new one for the app, and set AZURE_CLIENT_SECRET"),
    "700016": ("there is no such app in the tenant", "look at AZURE_CLIENT_ID and AZURE_TENANT_ID"),
    "90002": ("there is no such tenant", "look at AZURE_TENANT_ID"),
    "900023": ("the tenant's id is none", "look at AZURE_TENANT_ID"),
    "50126": ("the user name or password is wrong", _LOGIN),
    "50076": ("a second factor is asked for", _LOGIN),
    "50079": ("a second factor is asked for", _LOGIN),
    "53003": (
        "a rule of conditional access forbids it",
        "ask the tenant's administrator, or log in from another place",
    ),
    "65001": ("nobody has consented to the app", "ask the tenant's administrator for consent"),
    "700082": ("the login is too old", _LOGIN),
    "70043": ("the login is too old", _LOGIN),
    "500011": ("the tenant does not know the service asked for", "look at AZURE_TENANT_ID"),
}
_STORAGE_ROLE = "have the role Storage Blob Data Contributor granted on the workspace's storage account"
_QUOTA = re.compile(r"quota|ClusterMaxNodesReached|InsufficientCapacity", re.IGNORECASE)
_ACTION = re.compile(r"perform action '([^']+)'.*?over scope '([^']+)'", re.DOTALL)
_URL = re.compile(r"\b(https?://[^\s?'\"<>]+)\?[^\s'\"<>]*")
_SECRETS = re.compile(
    r"(?i)\b(sig|signature|token|access_token|client_secret|client_assertion|password|accountkey|sharedaccesskey|key)"
    r"(=|\":\s*\"|'?:\s+'?)[^\s&\"',;)]+"
)
_BEARER = re.compile(r"(?i)\b(bearer|sharedkey)\s+[\w.~+/=:-]+")


class Failure(NamedTuple):
    """A failure, told apart: `kind` is one of missing, login, forbidden, gone, conflict, refused, throttled, quota,
    service, network, data, expired."""

    kind: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        from jobsdk.findings import shorten

        fix = f". Fix: {self.fix}" if self.fix else ""
        return shorten(self.what.rstrip("."), max(80, LIMIT - len(fix))) + fix


class AzureError(ComputeError):
    """A failure of Azure's, or on the way there."""

    def __init__(self, failure: Failure, doing: str = "") -> None:
        told = failure._replace(what=f"{doing}: {failure.what}") if doing else failure
        super().__init__(str(told))
        self.kind = failure.kind


@contextlib.contextmanager
def told(doing: str) -> Iterator[None]:
    """What Azure's libraries raise within becomes AzureError; `doing` says what was tried, and where."""
    _asking.depth = getattr(_asking, "depth", 0) + 1
    try:
        yield
    except JobsdkError:
        raise
    except Exception as error:
        found = explained(error)
        if found is None:
            raise
        raise AzureError(found, doing) from error
    finally:
        _asking.depth -= 1


def quieten() -> None:
    """Let what azure-identity logs of a failed login be unheard within `told`, which says it in one line."""
    logging.getLogger("azure.identity._credentials.chained").addFilter(_unheard)


def _unheard(_: logging.LogRecord) -> bool:
    return not getattr(_asking, "depth", 0)


_asking = threading.local()


def explained(error: BaseException) -> Failure | None:
    """What an exception means; None for one that has nothing to do with Azure."""
    if isinstance(error, ImportError):
        library = (error.name or "azure").partition(".")[0]
        if library not in ("azure", "msal", "marshmallow", "jwt"):
            return None
        return Failure("missing", f"the library {error.name or 'azure'} is missing", install_command("azure"))
    chain = list(_chain(error))
    for one in chain:
        found = _of(one)
        if found is not None:
            return found
    for one in chain:
        if type(one).__module__.startswith("azure."):
            return Failure("refused", scrubbed(str(getattr(one, "message", "") or one)))
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status that is behind an exception, if one is."""
    return next((code for one in _chain(error) if isinstance(code := getattr(one, "status_code", None), int)), None)


def scrubbed(text: str) -> str:
    """The text in one line, without what gives access: signatures in URLs, tokens, keys."""
    text = _URL.sub(r"\1", text)
    text = _SECRETS.sub(r"\1\2***", text)
    text = _BEARER.sub(r"\1 ***", text)
    return " ".join(text.split())


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it was made of: the libraries wrap one another's."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [getattr(one, name, None) for name in ("error", "inner_exception", "__cause__", "__context__")]
            waiting += [part for part in getattr(one, "args", ()) if isinstance(part, BaseException)]


def _of(error: BaseException) -> Failure | None:
    from azure.core import exceptions as core

    text = str(getattr(error, "message", "") or error)
    is_of_login = isinstance(error, core.ClientAuthenticationError) and error.status_code in (None, 400, 401)
    if is_of_login and not _is_of_a_service(error):
        return _of_login(text)
    if isinstance(error, core.HttpResponseError) and error.status_code is not None:
        return _of_response(error)
    if isinstance(error, core.ServiceRequestError | core.ServiceResponseError) or (
        type(error).__module__.partition(".")[0] in ("requests", "urllib3") or "TLS CA certificate bundle" in text
    ):
        return _of_network(text)
    return None


def _is_of_a_service(error: Any) -> bool:
    """Whether the service refused a token, and not Entra ID to give one."""
    request = getattr(getattr(error, "response", None), "request", None)
    url = str(getattr(request, "url", ""))
    return bool(url) and not re.match(r"https://login\.|http://169\.254\.", url)


def _of_login(text: str) -> Failure:
    number = re.search(r"AADSTS(\d+)", text)
    if number is not None:
        what, fix = _ENTRA.get(number[1], ("the login is refused", f"{_LOGIN}, or look at {_VARIABLES}"))
        return Failure("login", f"Microsoft Entra ID: {what} (AADSTS{number[1]})", fix)
    if re.search(r"[Uu]nable to get authority configuration", text):
        return Failure("login", "Microsoft Entra ID: there is no such tenant", "look at AZURE_TENANT_ID")
    network = _of_network(re.sub(r"https://aka\.ms/\S*", "", text))
    if network.what != _DROPPED:
        return network
    what = "no credentials for Azure are found on this machine"
    return Failure("login", what, f"{_LOGIN}, or set {_VARIABLES}")


_DROPPED = "the connection was lost"


def _of_network(text: str) -> Failure:
    bundle = re.search(r"TLS CA certificate bundle, invalid path: (.+)", text)
    if bundle is not None:
        return Failure("network", f"there is no file {bundle[1].strip()}, which REQUESTS_CA_BUNDLE names",
                       "correct or unset REQUESTS_CA_BUNDLE (or CURL_CA_BUNDLE)")  # fmt: skip
    host = re.search(r"host='([^']+)'|//([\w.-]+)|resolve '([^']+)'|Host: ([\w.-]+)", text)
    where = next((part for part in host.groups() if part), "Azure") if host else "Azure"
    if re.search(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSLError|SSLCertVerification", text):
        fix = "set REQUESTS_CA_BUNDLE to a file that also has the certificate authority of your proxy"
        return Failure("network", f"the certificate that {where} shows is not trusted here", fix)
    if re.search(r"RemoteDisconnected|Connection aborted|[Rr]eset by peer|Broken pipe|EOF occurred", text):
        return Failure("network", _DROPPED, "try again")
    if re.search(r"ProxyError|[Cc]annot connect to proxy|Unable to connect to proxy|Tunnel connection failed", text):
        return Failure("network", f"the proxy does not let through to {where}", "look at HTTPS_PROXY and NO_PROXY")
    if re.search(r"resolve|getaddrinfo|Name or service not known|nodename nor servname|No address", text):
        return Failure("network", f"the name {where} is not known to DNS", "look at the network, and at HTTPS_PROXY")
    if re.search(r"[Tt]imed? ?out|TimeoutError", text):
        return Failure("network", f"{where} did not answer in time", "try again; look at the network")
    if re.search(r"refused|unreachable|No route", text):
        return Failure("network", f"{where} cannot be reached", "look at the network, and at HTTPS_PROXY")
    return Failure("network", _DROPPED, "try again")


def _of_response(error: Any) -> Failure:
    status, code, words = error.status_code, _code(error), scrubbed(_words(error))
    if status == 429:
        after = _header(error, "retry-after")
        wait = f" for {after} seconds" if after else ""
        return Failure("throttled", f"Azure has too many requests, and asks to wait{wait} (429)", "try again later")
    if _QUOTA.search(f"{code} {words}"):
        fix = "ask for fewer nodes, another kind of machine or compute, or have the quota raised in the portal"
        return Failure("quota", f"the quota is used up: {words}", fix)
    if status == 401:
        fix = f"{_LOGIN} --tenant TENANT, or set {_VARIABLES}"
        return Failure("login", f"Azure does not accept the login (401): {words or code}", fix)
    if status == 403:
        return _of_forbidden(error, code, words)
    if status == 404:
        return _of_missing(error, code, words)
    if status == 409 or code in ("Conflict", "ImmutablePropertyChanged"):
        what = f"there is something else of that name ({status}): {words or code}"
        return Failure("conflict", what, "give the job another name")
    if status >= 500 or status == 408:
        request = _header(error, "x-ms-request-id")
        about = f", request {request}" if request else ""
        return Failure("service", f"Azure failed to answer ({status}{about}): {words or code}", "try again later")
    return Failure("refused", f"Azure refuses it ({status}): {words or code}", "correct that in the job")


def _of_forbidden(error: Any, code: str, words: str) -> Failure:
    if _is_of_storage(error):
        if code == "AuthenticationFailed" or "including the signature" in words:
            fix = "try again: a new one is fetched; look at this machine's clock"
            return Failure("expired", "the storage's signature (SAS) or key is not valid any more (403)", fix)
        if code in ("AuthorizationFailure", "IpAuthorizationError", "PublicAccessNotPermitted"):
            fix = "allow this network in the storage account's firewall, or submit from within its network"
            return Failure("data", f"the storage account does not let this network in (403 {code})", fix)
        return Failure("data", f"the storage account refuses access (403 {code})", _STORAGE_ROLE)
    found = _ACTION.search(words)
    if found is not None:
        action, scope = found.groups()
        short = action.removeprefix("Microsoft.MachineLearningServices/")
        fix = "have the role AzureML Data Scientist granted there"
        return Failure("forbidden", f"this login lacks the right {short} on {_short(scope)} (403)", fix)
    fix = "have the role AzureML Data Scientist granted on the workspace"
    return Failure("forbidden", f"this login may not do that (403): {words or code}", fix)


def _of_missing(error: Any, code: str, words: str) -> Failure:
    url = str(getattr(getattr(getattr(error, "response", None), "request", None), "url", ""))
    if code == "ContainerNotFound" or code == "BlobNotFound":
        return Failure("gone", f"the storage has no such thing (404 {code})")
    if code == "SubscriptionNotFound":
        return Failure("gone", f"there is no such subscription, or not for this login (404): {words}",
                       "look at subscription_id, or az login to its tenant")  # fmt: skip
    if code == "ResourceGroupNotFound":
        return Failure("gone", f"there is no such resource group (404): {words}", "look at resource_group")
    if re.search(r"[Ww]orkspace\b.*\bnot\b.*\bfound|workspaces/[^/' ]+'?.*not found", words) or (
        code in ("ResourceNotFound", "WorkspaceNotFound") and re.search(r"workspaces/[^/]+(\?|$)", url)
    ):
        return Failure("gone", f"there is no such workspace (404): {words}", "look at workspace_name")
    if re.search(r"compute", words, re.IGNORECASE):
        return Failure(
            "gone", f"the workspace has no such compute (404): {words}", "look at target; jobsdk compute check"
        )
    if "/datastores/" in url:
        return Failure("gone", f"the workspace has no such datastore (404): {words}", "look at datastore")
    return Failure("gone", f"there is no such thing (404): {words or code}")


def _is_of_storage(error: Any) -> bool:
    url = str(getattr(getattr(getattr(error, "response", None), "request", None), "url", ""))
    return bool(re.match(r"https?://[\w-]+\.(blob|dfs|file)\.", url)) or bool(getattr(error, "error_code", None))


def _code(error: Any) -> str:
    """The service's own code of an error."""
    own = getattr(error, "error_code", None)
    if own:
        return str(getattr(own, "value", own))
    return str(getattr(getattr(error, "error", None), "code", None) or _body(error).get("code") or "")


def _words(error: Any) -> str:
    inner = getattr(getattr(error, "error", None), "message", None) or _body(error).get("message")
    return str(inner or getattr(error, "reason", None) or getattr(error, "message", "") or "").split("\nRequestId:")[0]


def _body(error: Any) -> dict[str, Any]:
    import json

    try:
        content = json.loads(error.response.text())
    except Exception:
        return {}
    inner = content.get("error") if isinstance(content, dict) else None
    return inner if isinstance(inner, dict) else {}


def _header(error: Any, name: str) -> str:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    return str(headers.get(name) or "")


def _short(scope: str) -> str:
    """A resource id without the parts that say nothing new."""
    parts = scope.strip("/").split("/")
    names = dict(zip(parts[::2], parts[1::2], strict=False))
    named = [f"{kind} {names[key]}" for key, kind in _PLACES.items() if key in names]
    return ", ".join(named[-2:]) or scope


_PLACES = {
    "subscriptions": "the subscription",
    "resourceGroups": "the resource group",
    "resourcegroups": "the resource group",
    "workspaces": "the workspace",
    "computes": "the compute",
    "datastores": "the datastore",
    "jobs": "the job",
}
