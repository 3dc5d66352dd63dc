"""The job's code, brought into the run's folder once, also where several nodes have that folder in common."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from typing import TYPE_CHECKING, Callable

from ..spec import paths, stores
from . import download

if TYPE_CHECKING:
    from ..spec.plan import Plan

_CHUNK = 1 << 20
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
_ZIP = ".zip"


class CodeError(Exception):
    """The code could not be brought here; the message says why."""


def bring(plan: Plan, source: str, digest: str, run_dir: str, tell: Callable[..., None]) -> str:
    """The folder with a private copy of the code at `source`: a folder, a tar file, or the http(s) URL of one; or a URL
    of an object store, which may lead to a folder or an archive (.tar, .tar.gz, .tgz, .zip).

    `digest` ("sha256:...", or empty) is that of the tar file. Of several nodes with one run folder one makes the copy
    and the others wait for it, as long as nodes wait for one another. Raises CodeError.
    """
    target, claim = run_dir + "/code", run_dir + "/code.claim"
    if os.path.isdir(target):  # by an earlier start of the job, or by another node
        return target
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return _wait(target, claim, plan["rendezvous_timeout_s"])
    began = time.time()
    try:
        partly = "%s.part" % target
        shutil.rmtree(partly, ignore_errors=True)
        if stores.store_of(source) is not None:
            source = _fetch(plan, source, run_dir)
        _copy(source, digest, partly, run_dir)
        os.rename(partly, target)
        shutil.rmtree(run_dir + "/code.fetched", ignore_errors=True)
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


def _fetch(plan: Plan, url: str, run_dir: str) -> str:
    """Copy what is in an object store into the run's folder; the folder or archive."""
    from . import fetching

    is_file = url.endswith((*_ARCHIVES, _ZIP))
    folder = run_dir + "/code.fetched"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        fetching.copy(plan, url, is_file, folder, run_dir)
    except fetching.FetchError as error:
        raise CodeError(str(error)) from error
    return "%s/%s" % (folder, paths.file_name(url)) if is_file else folder


def _copy(source: str, digest: str, target: str, run_dir: str) -> None:
    if source.startswith(("http://", "https://")):
        source = download.fetch(source, run_dir + "/cache")[0]
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True)
        return
    if not source.endswith((*_ARCHIVES, _ZIP)) and not digest:
        raise CodeError("it is neither a folder nor a tar file")
    if digest and digest != _sha256(source):
        raise CodeError("its content has changed: the sha256 is %s, not %s" % (_sha256(source), digest))
    if source.endswith(_ZIP):
        _unzip(source, target)
        return
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


def _unzip(source: str, target: str) -> None:
    import zipfile

    try:
        with zipfile.ZipFile(source) as archive:
            archive.extractall(target)  # nosec B202 # it takes `..` and leading slashes out of names
    except zipfile.BadZipFile as error:
        raise CodeError("it is no whole zip file: %s" % error) from error


def _sha256(path: str) -> str:
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            whole.update(chunk)
    return "sha256:" + whole.hexdigest()
