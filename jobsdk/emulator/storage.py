"""The emulator's own way to its blobs: straight to Azurite, beside the proxy with its latency and faults."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from jobsdk.emulator.settings import Settings

if TYPE_CHECKING:
    from azure.storage.blob import BlobServiceClient, ContainerClient

_BLOCK = 4 << 20  # bytes that one append may have


class Storage:
    """Containers and blobs of the emulator's storage account. What Azurite refuses is an azure.core.AzureError."""

    def __init__(self, settings: Settings, port: int, authority: Path) -> None:
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import BlobServiceClient

        self._settings = settings
        self._client: BlobServiceClient = BlobServiceClient(
            f"https://127.0.0.1:{port}/{settings.account}",
            credential={"account_name": settings.account, "account_key": settings.account_key},
            transport=RequestsTransport(connection_verify=str(authority), use_env_settings=False),
            connection_verify=str(authority),
            max_single_put_size=8 << 20,
        )

    def make(self, container: str) -> None:
        """Make a container if there is none of this name."""
        from azure.core.exceptions import ResourceExistsError

        try:
            self._client.create_container(container)
        except ResourceExistsError:
            pass

    def url(self, container: str, path: str = "") -> str:
        """The address that a client knows it by."""
        return f"https://{self._settings.blob_host}/{container}" + (f"/{path}" if path else "")

    def signature(self, container: str, *, has_run_out: bool = False) -> str:
        """A signature that lets its holder read and write in a container for some hours."""
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        start, end = now - datetime.timedelta(hours=2), now + datetime.timedelta(hours=-1 if has_run_out else 8)
        return generate_container_sas(
            self._settings.account,
            container,
            account_key=self._settings.account_key,
            permission=ContainerSasPermissions(read=True, add=True, create=True, write=True, list=True),
            start=start,
            expiry=end,
        )

    def below(self, container: str, prefix: str) -> Iterator[str]:
        """The names of the blobs in a folder of a container."""
        folder = prefix.rstrip("/") + "/" if prefix.strip("/") else None
        yield from self._container(container).list_blob_names(name_starts_with=folder)

    def fetch(self, container: str, path: str, target: Path) -> bool:
        """Copy a blob to the file `target`; whether there is one."""
        from azure.core.exceptions import ResourceNotFoundError

        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            stream = self._container(container).download_blob(path)
        except ResourceNotFoundError:
            return False
        with target.open("wb") as file:
            stream.readinto(file)
        return True

    def fetch_folder(self, container: str, prefix: str, target: Path) -> int:
        """Copy what is below a folder of a container to the folder `target`; returns the number of files."""
        target.mkdir(parents=True, exist_ok=True)
        start, count = prefix.strip("/") + "/" if prefix.strip("/") else "", 0
        for name in self.below(container, prefix):
            relative = PurePosixPath(name[len(start) :])
            if not relative.parts or ".." in relative.parts:
                continue
            self.fetch(container, name, target / relative)
            count += 1
        return count

    def keep(self, container: str, path: str, source: Path) -> None:
        """Copy a file to a blob."""
        with source.open("rb") as file:
            self._container(container).upload_blob(path, file, overwrite=True)

    def keep_folder(self, container: str, prefix: str, source: Path) -> int:
        """Copy what is in a folder to the folder `prefix` of a container; returns the number of files."""
        count = 0
        for folder, _, names in os.walk(source, followlinks=True):
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    relative = path.relative_to(source).as_posix()
                    self.keep(container, f"{prefix.strip('/')}/{relative}".lstrip("/"), path)
                    count += 1
        return count

    def append(self, container: str, path: str, data: bytes, *, is_new: bool) -> None:
        """Add to an append blob, as Azure ML writes logs."""
        blob = self._container(container).get_blob_client(path)
        if is_new:
            from azure.storage.blob import ContentSettings

            blob.create_append_blob(content_settings=ContentSettings(content_type="text/plain"))
        for start in range(0, len(data), _BLOCK):
            blob.append_block(data[start : start + _BLOCK])

    def _container(self, name: str) -> ContainerClient:
        return self._client.get_container_client(name)
