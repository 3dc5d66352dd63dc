"""What Ray and its clients say where a cluster cannot be used, in plain words."""

from __future__ import annotations

from jobsdk.compute.engine import reaching
from jobsdk.findings import shorten

_PATIENCE_S = 5.0  # seconds for a connection

_TOKEN = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as for Ray's own tools"


def cannot_connect(address: str | None, said: str) -> str:
    """Why ray.init() has failed, by what it has said, with `Fix: ...`."""
    text = _sentence(said)
    if "Could not find any running Ray instance" in text:
        return f"no Ray cluster runs on this machine (address: {address}). Fix: ray start --head, or set its address"
    where = f"the Ray cluster at {address} cannot be used" if address else "no Ray can be started on this machine"
    fix = "correct address or init of the compute" if address else "correct init of the compute"
    if "ersion mismatch" in text:
        fix = "use its versions of Ray and Python here, or the job submission API: address: http://HOST:8265"
    elif _is_of_token(text):
        fix = _TOKEN
    return f"{where}: {text}. Fix: {fix}"


def refused(address: str, said: str) -> str:
    """Why the job submission API has not done what it was asked for, by what its client says, with `Fix: ...`."""
    text = _sentence(said)
    if "Version check returned 404" in text:
        return f"what answers at {address} is no Ray cluster. Fix: correct address, whose port is that of the dashboard"
    if "Failed to connect to Ray at address" in text:
        fix = "start it, or correct address: the dashboard's port, by http or https"
        return f"no Ray cluster answers at {address}{_why(address)}. Fix: {fix}"
    fix = _TOKEN if _is_of_token(text) else "look at the cluster, or correct the compute"
    return f"the Ray cluster at {address}: {text}. Fix: {fix}"


def _why(address: str) -> str:
    """What is wrong with the connection, which Ray's client does not say."""
    from urllib.parse import urlsplit

    place = urlsplit(address)
    try:
        port = place.port or {"http": 80, "https": 443}[place.scheme]
    except ValueError as error:
        return f" ({error})"
    why = reaching.trouble(place.hostname or "", port, _PATIENCE_S)
    return f" ({why})" if why else ""


def _is_of_token(text: str) -> bool:
    return "Unauthor" in text or "uthentication" in text or "401" in text


def _sentence(said: str) -> str:
    """In one line, without a stop."""
    return shorten(" ".join(said.split()), 220).rstrip(". ")
