"""Fetching an `http(s)` input, and keeping it for the next run that names the same URL."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from typing import Any, Dict, Tuple

from ..spec import events, paths

_CHUNK = 1 << 20
_TIMEOUT_S = 60.0  # seconds without a byte


class DownloadError(Exception):
    """The URL could not be fetched; the message says why."""


def fetch(url: str, cache: str) -> Tuple[str, str]:
    """(path of the file, a warning or ""). Raises DownloadError.

    A copy from an earlier run is used if the server says that it is still current, or cannot be asked. Each version
    has a folder of its own, so that a running job keeps the one that it began with.
    """
    folder = os.path.join(cache, hashlib.sha256(url.encode()).hexdigest()[:24])
    known = _known(folder)
    try:
        request = urllib.request.Request(url, headers=known.get("validators", {}))
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # nosec B310 # callers give http and https only
            return _keep(url, answer, folder), ""
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return str(known["path"]), ""
        raise DownloadError("the server answers %d %s" % (error.code, error.reason)) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        if known:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(known["fetched"]))
            return str(known["path"]), "%s cannot be asked (%s): the copy of %s is used" % (url, reason, since)
        raise DownloadError(str(reason)) from error


def _known(folder: str) -> Dict[str, Any]:
    """What is kept of an earlier download, or nothing."""
    try:
        with open(folder + "/current.json") as file:
            known: Dict[str, Any] = json.load(file)
        return known if os.path.exists(known["path"]) else {}
    except (OSError, ValueError, KeyError):
        return {}


def _keep(url: str, answer: Any, folder: str) -> str:
    """Write the body as a new version, then make that the current one."""
    version = os.path.join(folder, os.urandom(8).hex())
    path = os.path.join(version, paths.file_name(url))
    os.makedirs(version)
    total = 0
    with open(path + ".part", "wb") as file:
        for chunk in iter(lambda: answer.read(_CHUNK), b""):
            file.write(chunk)
            total += len(chunk)
    length = answer.headers.get("Content-Length")
    if length is not None and int(length) != total:
        raise DownloadError("it ended after %d of %s bytes" % (total, length))
    os.rename(path + ".part", path)
    given = {"If-None-Match": answer.headers.get("ETag"), "If-Modified-Since": answer.headers.get("Last-Modified")}
    validators = {name: value for name, value in given.items() if value}
    events.write_json(folder + "/current.json", {"path": path, "validators": validators, "fetched": time.time()})
    return path
