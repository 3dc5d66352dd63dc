"""Microsoft Entra ID, as far as a service principal with a secret needs it: tokens, and the check of each request."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import uuid
from typing import Any
from urllib.parse import parse_qsl

from jobsdk.emulator.server import Refused, Request, Response, Route
from jobsdk.emulator.settings import Settings

HOST = "login.microsoftonline.com"
_LIFE_S = 3600


class Login:
    """Gives tokens to its one application, and recognizes its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._key = bytes.fromhex(settings.token_key)

    def routes(self) -> list[Route]:
        hosts = r"login\.(?:microsoftonline\.com|windows\.net|microsoft\.com)"
        return [
            Route("GET", re.compile(hosts + r"/(?:common/)?discovery/instance"), self._instances, True),
            Route(
                "GET",
                re.compile(hosts + r"/(?P<tenant>[^/]+)/(?:v2\.0/)?\.well-known/openid-configuration"),
                self._configuration,
                True,
            ),
            Route("POST", re.compile(hosts + r"/(?P<tenant>[^/]+)/oauth2/(?:v2\.0/)?token"), self._token, True),
        ]

    # -- the endpoints -------------------------------------------------------------------------------------------

    def _instances(self, request: Request) -> Response:
        tenant = self._settings.tenant_id
        return Response(
            {
                "tenant_discovery_endpoint": f"https://{HOST}/{tenant}/v2.0/.well-known/openid-configuration",
                "api-version": "1.1",
                "metadata": [
                    {
                        "preferred_network": HOST,
                        "preferred_cache": "login.windows.net",
                        "aliases": [HOST, "login.windows.net", "login.microsoft.com", "sts.windows.net"],
                    }
                ],
            }
        )

    def _configuration(self, request: Request) -> Response:
        self._check_tenant(request)
        base = f"https://{HOST}/{request.parts['tenant']}"
        return Response(
            {
                "token_endpoint": f"{base}/oauth2/v2.0/token",
                "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
                "jwks_uri": f"{base}/discovery/v2.0/keys",
                "issuer": f"{base}/v2.0",
                "response_types_supported": ["code", "id_token"],
                "subject_types_supported": ["pairwise"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    def _token(self, request: Request) -> Response:
        self._check_tenant(request)
        form = dict(parse_qsl(request.content.decode(errors="replace")))
        client = form.get("client_id", "")
        if form.get("grant_type") != "client_credentials" or "client_secret" not in form:
            raise _error(
                501, "unsupported_grant_type", 70003,
                "jobsdk azure-emulator gives tokens for a client secret only. Fix: set the variables that "
                "'jobsdk azure-emulator env' prints, and use DefaultAzureCredential or EnvironmentCredential",
            )  # fmt: skip
        if client != self._settings.client_id:
            raise _error(
                400, "unauthorized_client", 700016,
                f"Application with identifier '{client[:64]}' was not found in the directory 'emulated'. This can "
                "happen if the application has not been installed by the administrator of the tenant or consented to "
                "by any user in the tenant. You may have sent your authentication request to the wrong tenant.",
            )  # fmt: skip
        if not hmac.compare_digest(form["client_secret"].encode(), self._settings.client_secret.encode()):
            raise _error(
                401, "invalid_client", 7000215,
                "Invalid client secret provided. Ensure the secret being sent in the request is the client secret "
                f"value, not the client secret ID, for a secret added to app '{client}'.",
            )  # fmt: skip
        audience = form.get("scope", "").split(" ")[0].removesuffix("/.default") or "https://management.azure.com"
        return Response(
            {
                "token_type": "Bearer",
                "expires_in": _LIFE_S,
                "ext_expires_in": _LIFE_S,
                "access_token": self.token(audience, time.time() + _LIFE_S),
            }
        )

    def _check_tenant(self, request: Request) -> None:
        tenant = request.parts["tenant"]
        if tenant not in (self._settings.tenant_id, "common", "organizations"):
            raise _error(
                400, "invalid_tenant", 90002,
                f"Tenant '{tenant[:64]}' not found. Check to make sure you have the correct tenant ID and are signing "
                "into the correct cloud. Check with your subscription administrator, this may happen if there are no "
                "active subscriptions for the tenant.",
            )  # fmt: skip

    # -- tokens --------------------------------------------------------------------------------------------------

    def token(self, audience: str, expires: float) -> str:
        """A JSON web token for an audience, which runs out at a time (seconds since 1970)."""
        settings = self._settings
        issued = int(expires) - _LIFE_S
        claims = {
            "aud": audience, "iss": f"https://sts.windows.net/{settings.tenant_id}/", "iat": issued, "nbf": issued,
            "exp": int(expires), "appid": settings.client_id, "oid": settings.workspace_guid, "sub": settings.client_id,
            "tid": settings.tenant_id, "ver": "1.0",
        }  # fmt: skip
        text = f"{_encoded({'typ': 'JWT', 'alg': 'HS256'})}.{_encoded(claims)}"
        return f"{text}.{self._signature(text)}"

    def check(self, request: Request) -> None:
        """Raises Refused unless the request has a token of ours that has not run out."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise self._unauthorized("AuthenticationFailed", "Authentication failed. The request has no bearer token.")
        text, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(text).encode()):
            raise self._unauthorized(
                "InvalidAuthenticationToken", "The access token is invalid: another issuer has signed it."
            )
        claims = _decoded(text.partition(".")[2])
        if claims["exp"] <= time.time():
            raise self._unauthorized(
                "ExpiredAuthenticationToken", "The access token expiry UTC time is earlier than current UTC time."
            )

    def _unauthorized(self, code: str, message: str) -> Refused:
        uri = f"https://{HOST}/{self._settings.tenant_id}"
        challenge = f'Bearer authorization_uri="{uri}", error="invalid_token", error_description="{message}"'
        return Refused(401, code, message, {"WWW-Authenticate": challenge})

    def _signature(self, text: str) -> str:
        return _base64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


def _error(status: int, error: str, number: int, text: str) -> Refused:
    """An error as Entra ID shapes it."""
    trace, correlation, when = str(uuid.uuid4()), str(uuid.uuid4()), time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    said = f"AADSTS{number}: {text} Trace ID: {trace} Correlation ID: {correlation} Timestamp: {when}"
    body = {
        "error": error, "error_description": said, "error_codes": [number], "timestamp": when, "trace_id": trace,
        "correlation_id": correlation, "error_uri": f"https://{HOST}/error?code={number}",
    }  # fmt: skip
    return Refused(status, error, said, body=body)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _encoded(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content, separators=(",", ":")).encode())


def _decoded(text: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return claims
