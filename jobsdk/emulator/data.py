"""Code, inputs and outputs of a job, on their way between the blob store and the job's folder."""

from __future__ import annotations

import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from jobsdk.emulator.bodies import Data
from jobsdk.emulator.settings import Settings
from jobsdk.emulator.storage import Storage
from jobsdk.emulator.store import Store
from jobsdk.emulator.workspace import system_data

_DATASTORE = re.compile(r"azureml://(?:.*/)?datastores/(?P<name>[^/]+)/(?:paths/)?(?P<path>.*)")
_ASSET = re.compile(r"(?:azureml:|.*/data/)(?P<name>[\w.-]+)(?::|/versions/|@)(?P<version>[\w.-]+)")
_OF_JOB = re.compile(r"azureml://jobs/(?P<job>[^/]+)/outputs/(?P<output>[^/]+)(?:/paths/(?P<path>.*))?")
_TIMEOUT_S = 60.0


class Unreachable(Exception):
    """Data that a job names and that cannot be read."""


class BlobLocation(NamedTuple):
    """Where blobs are: a container, and a path in it."""

    container: str
    path: str


class Carrier:
    """Carries what one job needs and leaves; `folder` is the job's own."""

    def __init__(
        self, settings: Settings, store: Store, storage: Storage, folder: Path, mapped: Mapping[str, Path]
    ) -> None:
        self._mapped = {_address(uri): path for uri, path in mapped.items()}
        self._settings = settings
        self._store = store
        self._storage = storage
        self._folder = folder

    # -- to the job ----------------------------------------------------------------------------------------------

    def fetch_code(self, code_id: str | None, target: Path) -> None:
        """The code that a job names. Raises Unreachable."""
        if code_id is None:
            return
        found = re.search(r"/codes/([^/]+)/versions/([^/]+)$", code_id)
        document = self._store.get("codes", found.group(1), found.group(2)) if found else None
        if document is None:
            raise Unreachable(f"The job's code {code_id} was not found.")
        uri = document["properties"].get("codeUri") or ""
        place = self._place(uri)
        if place is None or not self._fetch_tree(place, target):
            raise Unreachable(f"There is nothing at {uri}, the place of the job's code.")

    def fetch(self, name: str, data: Data) -> str:
        """An input; what `${{inputs.name}}` stands for then. Raises Unreachable."""
        uri = self._resolved(data.uri or "")
        if data.mode == "Direct":
            return uri
        place, folder = self._place(uri), self._folder / "inputs" / name
        here = self._here(uri)
        if here is not None:
            return str(_copied(name, uri, here, data, folder))
        if place is None:
            return str(self._from_the_web(name, uri, data, folder))
        if data.is_file and place.path.endswith("/"):  # as an earlier job has left its output
            found = list(self._storage.below(place.container, place.path))
            place = place._replace(path=found[0]) if len(found) == 1 else place
        if data.is_file or (data.kind != "uri_folder" and not place.path.endswith("/")):
            target = folder / (place.path.rstrip("/").rpartition("/")[2] or name)
            if self._storage.fetch(place.container, place.path, target):
                return str(target)
            if data.is_file:
                raise Unreachable(f"The input {name} is not there: {uri}")
        if not self._fetch_tree(place, folder):
            raise Unreachable(f"There is nothing in the input {name}: {uri}")
        return str(folder)

    def _fetch_tree(self, place: BlobLocation, folder: Path) -> bool:
        """What is below a path, or the blob that is there; whether there is any."""
        if self._storage.fetch_folder(place.container, place.path, folder):
            return True
        return bool(place.path) and self._storage.fetch(
            place.container, place.path, folder / place.path.rpartition("/")[2]
        )

    def _from_the_web(self, name: str, uri: str, data: Data, folder: Path) -> Path:
        """A public file. Folders of foreign accounts would need to be listed, which few of them allow."""
        address = _public(uri)
        if address is None or not data.is_file:
            raise Unreachable(
                f"The input {name} is {data.kind} at {uri}, which jobsdk azure-emulator does not fetch: it takes "
                "folders and files of its own datastores, files by https, and what --map URI=PATH names"
            )
        target = folder / (unquote(urlsplit(address).path).rpartition("/")[2] or name)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer,  # nosec B310 # http and https only
                target.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
        except (OSError, urllib.error.URLError, ValueError) as error:
            raise Unreachable(f"The input {name} cannot be fetched from {uri.partition('?')[0]}: {error}") from None
        return target

    def _here(self, uri: str) -> Path | None:
        """The local path that the user has mapped an address to, by the longest address that it begins with."""
        wanted = _address(uri)
        fitting = [one for one in self._mapped if wanted == one or wanted.startswith(one + "/")]
        if not fitting:
            return None
        longest = max(fitting, key=len)
        root = self._mapped[longest]
        found = root / unquote(wanted[len(longest) :]).lstrip("/")
        if not Path(os.path.normpath(found)).is_relative_to(os.path.normpath(root)):
            raise Unreachable(f"The address {uri} leads out of {root}, which it is mapped to")
        return found

    # -- from the job --------------------------------------------------------------------------------------------

    def make(self, name: str, data: Data) -> str:
        """The place of an output in the job's folder; what `${{outputs.name}}` stands for."""
        folder = self._folder / "outputs" / name
        folder.mkdir(parents=True)
        return str(folder / self._file_name(name, data) if data.is_file else folder)

    def keep(self, job: str, name: str, data: Data) -> None:
        """An output that the job has written, to where it is to be; also as an asset, if it is to have a name."""
        document = self._store.get("jobs", job)
        uri = document["properties"]["outputs"][name]["uri"] if document else data.uri or ""
        place, folder = self._place(uri), self._folder / "outputs" / name
        if place is None:
            raise Unreachable(f"The output {name} cannot be written to {uri}")
        file = folder / self._file_name(name, data)
        if data.is_file:
            if file.is_file():
                path = place.path + file.name if place.path.endswith("/") else place.path
                self._storage.keep(place.container, path, file)
        else:
            self._storage.keep_folder(place.container, place.path, folder)
        if data.asset:
            self._register(data, uri)

    def keep_artifacts(self, job: str, code: Path) -> None:
        """What a job leaves in ./outputs and ./logs."""
        container = self._settings.containers["workspaceartifactstore"]
        for name in ("outputs", "logs"):
            self._storage.keep_folder(container, f"ExperimentRun/dcid.{job}/{name}", code / name)

    def _register(self, data: Data, uri: str) -> None:
        assert data.asset is not None
        version = data.version or str(len(self._store.list("data", data.asset)) + 1)
        document = {
            "name": data.asset,
            "version": version,
            "properties": {"dataUri": uri, "dataType": data.kind},
            "systemData": system_data(),
        }
        self._store.put("data", data.asset, document, version)

    @staticmethod
    def _file_name(name: str, data: Data) -> str:
        return (data.uri or "").rstrip("/").rpartition("/")[2] or name

    # -- addresses -----------------------------------------------------------------------------------------------

    def _resolved(self, uri: str) -> str:
        """The address of data that is named as an asset or as another job's output. Raises Unreachable."""
        job = _OF_JOB.fullmatch(uri)
        if job:
            document = self._store.get("jobs", job["job"])
            output = document["properties"]["outputs"].get(job["output"]) if document else None
            if output is None:
                raise Unreachable(f"There is no output {job['output']} of a job {job['job']}.")
            return f"{output['uri'].rstrip('/')}/{job['path']}" if job["path"] else str(output["uri"])
        asset = _ASSET.fullmatch(uri) if not _DATASTORE.fullmatch(uri) else None
        if asset is None:
            return uri
        versions = self._store.list("data", asset["name"])
        if "@" not in uri:
            versions = [one for one in versions if one["version"] == asset["version"]]
        if not versions:
            raise Unreachable(f"There is no data asset {asset['name']}, version {asset['version']}.")
        return str(versions[0]["properties"]["dataUri"])

    def _place(self, uri: str) -> BlobLocation | None:
        """The blobs of this emulator that an address leads to; None for what is elsewhere. Raises Unreachable."""
        stored = _DATASTORE.fullmatch(uri)
        if stored:
            container = self._settings.containers.get(stored["name"])
            if container is None:
                raise Unreachable(f"There is no datastore {stored['name']}.")
            return BlobLocation(container, stored["path"])
        parts = urlsplit(uri)
        if parts.hostname == self._settings.blob_host:
            container, _, path = unquote(parts.path).lstrip("/").partition("/")
            if parts.scheme in ("wasb", "wasbs"):
                return BlobLocation(parts.username or "", unquote(parts.path).lstrip("/"))
            return BlobLocation(container, path)
        return None


def _copied(name: str, uri: str, source: Path, data: Data, folder: Path) -> Path:
    """A copy of what an input is mapped to, as a job may change it. Raises Unreachable."""
    if source.is_dir() and not data.is_file:
        shutil.copytree(source, folder)
        return folder
    if not source.is_file():
        what = "a folder" if source.is_dir() else "not there"
        raise Unreachable(f"The input {name} is {data.kind} at {uri}, and {source}, to which that is mapped, is {what}")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(source, folder))


def _address(uri: str) -> str:
    """An address in one spelling: `wasbs:` is https in other words; without a query and a slash at the end."""
    return (_public(uri) or uri).partition("?")[0].rstrip("/")


def _public(uri: str) -> str | None:
    """The web address of a file; `wasbs://container@account.blob...` is such a one in other words."""
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https"):
        return uri
    if parts.scheme in ("wasb", "wasbs") and parts.username and parts.hostname:
        return f"https://{parts.hostname}/{parts.username}{parts.path}"
    return None
