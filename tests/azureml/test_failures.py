"""What the exceptions of Azure's libraries become: their real texts, and those that hold what nobody may see."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core import exceptions as core
from azure.identity import CredentialUnavailableError

from jobsdk.compute.azureml.failures import AzureError, explained, scrubbed, told
from jobsdk.installation import install_command

ARM = "https://management.azure.com/subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices"
BLOB = "https://account.blob.core.windows.net/container/LocalUpload/x?sv=2026&se=2026-01-01&sig=SECRETSIGNATURE%3D"


def answer(status: int, code: str, message: str, url: str = f"{ARM}/workspaces/w/jobs/j", **headers: str) -> Exception:
    """The exception that azure-core makes of an answer."""
    body = json.dumps({"error": {"code": code, "message": message}})
    response: Any = SimpleNamespace(
        status_code=status,
        reason="a reason",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        request=SimpleNamespace(url=url),
        text=lambda *_: body,
        body=body.encode,
        content=body.encode(),
    )
    kinds = {401: core.ClientAuthenticationError, 404: core.ResourceNotFoundError, 409: core.ResourceExistsError}
    return kinds.get(status, core.HttpResponseError)(message=message, response=response)


CASES: list[tuple[Exception, str, list[str]]] = [
    (
        core.ClientAuthenticationError(
            "Authentication failed: AADSTS7000215: Invalid client secret provided. Ensure the secret being sent ..."
        ),
        "login",
        ["client secret is wrong (AADSTS7000215)", "AZURE_CLIENT_SECRET"],
    ),
    (
        core.ClientAuthenticationError("AADSTS70043: The refresh token has expired or is invalid due to sign-in"),
        "login",
        ["the login is too old (AADSTS70043)", "az login"],
    ),
    (
        core.ClientAuthenticationError("AADSTS99999: Something new."),
        "login",
        ["the login is refused (AADSTS99999)"],
    ),
    (
        CredentialUnavailableError("DefaultAzureCredential failed to retrieve a token from the included credentials."),
        "login",
        ["no credentials for Azure are found", "az login"],
    ),
    (
        core.ClientAuthenticationError(
            "DefaultAzureCredential failed.\n EnvironmentCredential: Unable to get authority configuration for "
            "https://login.microsoftonline.com/xx.\nSee https://aka.ms/azsdk/troubleshoot."
        ),
        "login",
        ["there is no such tenant", "AZURE_TENANT_ID"],
    ),
    (
        core.ClientAuthenticationError(
            "DefaultAzureCredential failed.\n EnvironmentCredential: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
            "verify failed\nSee https://aka.ms/azsdk/troubleshoot."
        ),
        "network",
        ["the certificate that Azure shows is not trusted here"],
    ),
    (
        OSError("Could not find a suitable TLS CA certificate bundle, invalid path: /nope"),
        "network",
        ["no file /nope", "REQUESTS_CA_BUNDLE"],
    ),
    (answer(401, "InvalidAuthenticationToken", "The access token is invalid."), "login", ["(401)", "az login"]),
    (
        answer(
            403,
            "AuthorizationFailed",
            "The client 'me' with object id '1' does not have authorization to perform action "
            "'Microsoft.MachineLearningServices/workspaces/jobs/write' over scope '/subscriptions/s/resourceGroups/g/"
            "providers/Microsoft.MachineLearningServices/workspaces/w' or the scope is invalid.",
        ),
        "forbidden",
        ["workspaces/jobs/write on the resource group g, the workspace w (403)", "AzureML Data Scientist"],
    ),
    (
        answer(403, "AuthorizationPermissionMismatch", "This request is not authorized using this permission.", BLOB),
        "data",
        ["Storage Blob Data Contributor"],
    ),
    (
        answer(403, "AuthenticationFailed", "Signature not valid in the specified time frame.", BLOB),
        "expired",
        ["not valid any more", "clock"],
    ),
    (answer(403, "AuthorizationFailure", "This request is not authorized.", BLOB), "data", ["firewall"]),
    (
        answer(404, "SubscriptionNotFound", "The subscription 's' could not be found."),
        "gone",
        ["no such subscription", "subscription_id"],
    ),
    (
        answer(404, "ResourceGroupNotFound", "Resource group 'g' could not be found."),
        "gone",
        ["no such resource group", "resource_group"],
    ),
    (
        answer(
            404,
            "ResourceNotFound",
            "The Resource 'Microsoft.MachineLearningServices/workspaces/w' under resource group 'g' was not found.",
        ),
        "gone",
        ["no such workspace", "workspace_name"],
    ),
    (answer(404, "UserError", "Compute target gpu not found."), "gone", ["no such compute", "target"]),
    (answer(404, "UserError", "Not there.", f"{ARM}/workspaces/w/datastores/d"), "gone", ["no such datastore"]),
    (answer(409, "Conflict", "A job with this name exists."), "conflict", ["something else of that name (409)"]),
    (answer(429, "TooManyRequests", "Slow down.", retry_after="17"), "throttled", ["wait for 17 seconds (429)"]),
    (answer(400, "UserError", "The specified quota is used up."), "quota", ["the quota is used up", "raised"]),
    (answer(400, "UserError", "Instance count is too large."), "refused", ["(400): Instance count is too large"]),
    (
        answer(503, "ServiceUnavailable", "Try later.", x_ms_request_id="abc-1"),
        "service",
        ["(503, request abc-1)", "try again later"],
    ),
    (
        core.ServiceRequestError(
            "HTTPSConnectionPool(host='management.azure.com', port=443): Max retries exceeded with url: / (Caused by "
            "NameResolutionError(\"<urllib3>: Failed to resolve 'management.azure.com'\"))"
        ),
        "network",
        ["management.azure.com is not known to DNS"],
    ),
    (
        core.ServiceRequestError(
            "HTTPSConnectionPool(host='management.azure.com', port=443): Max retries exceeded (Caused by SSLError("
            "SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')))"
        ),
        "network",
        ["the certificate that management.azure.com shows", "REQUESTS_CA_BUNDLE"],
    ),
    (
        core.ServiceRequestError("Max retries exceeded (Caused by ProxyError('Unable to connect to proxy', ...))"),
        "network",
        ["the proxy", "HTTPS_PROXY"],
    ),
    (core.ServiceResponseError("('Connection aborted.', ConnectionResetError(104))"), "network", ["was lost"]),
    (core.ServiceResponseTimeoutError("Read timed out."), "network", ["did not answer in time"]),
    (ModuleNotFoundError("No module named 'azure'", name="azure"), "missing", [install_command("azure")]),
]


@pytest.mark.parametrize(("error", "kind", "words"), CASES)
def test_a_line_that_says_what_is_wrong_and_what_to_do(error: Exception, kind: str, words: list[str]) -> None:
    with pytest.raises(AzureError) as caught, told("workspace w"):
        raise error
    text = str(caught.value)
    assert caught.value.kind == kind
    assert all(word in text for word in words), text
    assert text.startswith("workspace w: ")
    assert len(text) <= 460
    assert "SECRETSIGNATURE" not in text


def test_an_error_within_an_error_is_found() -> None:
    inner = answer(403, "AuthorizationPermissionMismatch", "No.", BLOB)
    try:
        try:
            raise inner
        except Exception as error:
            raise RuntimeError("Met something") from error
    except RuntimeError as error:
        outer = error
    found = explained(outer)
    assert found is not None
    assert "Storage Blob Data Contributor" in found.fix


def test_what_is_not_of_azure_passes() -> None:
    with pytest.raises(ZeroDivisionError), told("something"):
        raise ZeroDivisionError
    with pytest.raises(ModuleNotFoundError), told("something"):
        raise ModuleNotFoundError("No module named 'mine'", name="mine")


@pytest.mark.parametrize(
    "text",
    [
        f"PUT {BLOB} failed",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=TOPSECRET==;EndpointSuffix=x",
        'the body {"client_secret": "TOPSECRET"} was refused',
        "client_secret=TOPSECRET&scope=x",
        "Authorization: Bearer TOPSECRET.abc-def_1",
        "Authorization: SharedKey account:TOPSECRET=",
        "sig=TOPSECRET",
    ],
)
def test_no_secret_is_told(text: str) -> None:
    assert "SECRET" not in scrubbed(text)
