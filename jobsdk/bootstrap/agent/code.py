"""The job's code, brought into the run's folder once, also where several nodes have that folder in common."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from typing import Callable

from . import download

_CHUNK = 1 << 20
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


class CodeError(Exception):
    """The code could not be brought here; the message says why."""


def bring(source: str, digest: str, run_dir: str, timeout: float, tell: Callable[..., None]) -> str:
    """The folder with a private copy of the code at `source`: a folder, a tar file, or the http(s) URL of one.

    `digest` ("sha256:...", or empty) is that of the tar file. Of several nodes with one run folder one makes the copy
    and the others wait for it, at most `timeout` seconds. Raises CodeError.
    """
    target, claim = run_dir + "/code", run_dir + "/code.claim"
    if os.path.isdir(target):  # by an earlier start of the job, or by another node
        return target
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return _wait(target, claim, timeout)
    began = time.time()
    try:
        partly = "%s.part" % target
        shutil.rmtree(partly, ignore_errors=True)
        _copy(source, digest, partly, run_dir)
        os.rename(partly, target)
    except (OSError, ValueError, CodeError, download.DownloadError, shutil.Error) as error:
        text = "the code at %s cannot be brought here: %s" % (source.split("?")[0], str(error).splitlines()[0])
        with open(claim, "w") as file:
            file.write(text)
        raise CodeError(text) from error
    tell("code_staged", seconds=round(time.time() - began, 3))
    return target


def _wait(target: str, claim: str, timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while not os.path.isdir(target):
        with open(claim) as file:
            failed = file.read()
        if failed or time.monotonic() > deadline:
            raise CodeError(failed or "another node has been copying the code for %.0f s" % timeout)
        time.sleep(0.02)
    return target


def _copy(source: str, digest: str, target: str, run_dir: str) -> None:
    if source.startswith(("http://", "https://")):
        source = download.fetch(source, run_dir + "/cache")[0]
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
        return
    if not source.endswith(_ARCHIVES) and not digest:
        raise CodeError("it is neither a folder nor a tar file")
    if digest and digest != _sha256(source):
        raise CodeError("its content has changed: the sha256 is %s, not %s" % (_sha256(source), digest))
    import tarfile

    from ..transport import extraction

    os.mkdir(target)
    rights = os.stat(target).st_mode
    try:
        with tarfile.open(source) as archive:
            left = extraction.extract(archive, target, rights=rights).left_out
    except extraction.Refused as error:
        raise CodeError(str(error)) from error
    except (tarfile.TarError, EOFError) as error:
        raise CodeError("it is no whole tar file: %s" % str(error).splitlines()[0]) from error
    if left:
        raise CodeError("it has %s" % str(left[0]))


def _sha256(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            whole.update(chunk)
    return "sha256:" + whole.hexdigest()
