"""How a job's code gets into its pods: within a ConfigMap where it is small, else over a volume or a URL."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jobsdk.compute.hosts.host import Host
from jobsdk.compute.kubernetes.objects import CODE_FILE, CODE_HASH, CODE_PLACE
from jobsdk.compute.shipping import packing
from jobsdk.errors import ComputeError
from jobsdk.installation import install_command
from jobsdk.snapshot import copy
from jobsdk.snapshot.listing import scan

#: Bytes of an archive that fit into a ConfigMap of at most 1 MiB, in base64 and beside the plan.
INLINE = 700_000
#: Of the code on a volume, unless `folder_mode` is set: containers that read it often have another user.
MODE_ON_VOLUME = 0o755

Settings = Mapping[str, Any]


class Brought(NamedTuple):
    """What the run's objects are given: texts and base64 for its ConfigMap, texts for its Secret; and, for the run's
    folder here, the facts of the snapshot."""

    data: dict[str, str]
    binary: dict[str, str]
    secret: dict[str, str]
    facts: dict[str, Any]


def way(source: Path, settings: Settings) -> str:
    """`inline`, `volume` or `url`: code of at most 700 kB goes into a ConfigMap, as does all where no other way is set.

    Raises JobsdkError where the code cannot be listed.
    """
    other = "volume" if settings.get("code_volume") else "url" if settings.get("code_url") else "inline"
    return other if other == "inline" or scan(source).size > INLINE else "inline"


def bring(source: Path, how: str, settings: Settings, folder_mode: int) -> Brought:
    """Put the code where pods find it; `folder_mode` is for new folders of a volume.

    Code that is there already is not sent again. Raises JobsdkError."""
    fingerprint = copy.fingerprint(source)
    facts = {"source": str(source), "hash": fingerprint}
    if how == "volume":
        volume = settings["code_volume"]
        folder = Path(Host(folder_mode).send_code(source, fingerprint, volume["here"]))
        place = f"{volume['path'].rstrip('/')}/{folder.name}"
        return Brought({CODE_PLACE: place, CODE_HASH: ""}, {}, {}, {**facts, "sent": place})
    if how == "url":
        url, digest = _to_url(source, fingerprint, settings["code_url"])
        return Brought({CODE_HASH: digest}, {}, {CODE_PLACE: url}, {**facts, "sent": url.partition("?")[0]})
    buffer = io.BytesIO()
    digest = packing.pack(scan(source), buffer)
    if buffer.tell() > INLINE:
        raise ComputeError(
            f"the code in {source} is {buffer.tell() / 1e3:.0f} kB when packed, and {INLINE / 1e3:.0f} kB fit into a "
            "ConfigMap. Fix: set code_volume or code_url of the compute, or leave files out with .amlignore"
        )
    return Brought({CODE_HASH: digest}, {CODE_FILE: base64.b64encode(buffer.getvalue()).decode()}, {}, facts)


def _to_url(source: Path, fingerprint: str, urls: Mapping[str, str]) -> tuple[str, str]:
    """Upload the archive under its content's hash, unless it is there: its URL, and the archive's own hash.

    The latter is kept in a small file beside it.
    """
    import tempfile

    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError:
        raise ComputeError(f"code_url needs fsspec. Fix: {install_command('kubernetes')}") from None
    name = f"{fingerprint.replace(':', '-')}.tar.gz"
    try:
        system, folder = fsspec.core.url_to_fs(urls["upload"])
        target = f"{folder.rstrip('/')}/{name}"
        if system.exists(f"{target}.sha256"):
            digest = system.cat_file(f"{target}.sha256").decode()
        else:
            with tempfile.TemporaryFile() as file:
                digest = packing.pack(scan(source), file)
                file.seek(0)
                system.makedirs(folder, exist_ok=True)
                with system.open(target, "wb") as remote:
                    while chunk := file.read(1 << 20):
                        remote.write(chunk)
            system.pipe_file(f"{target}.sha256", digest.encode())  # only now it counts as there
    except (OSError, ValueError, ImportError) as error:
        raise ComputeError(f"the code cannot be uploaded to {urls['upload']}: {error}") from error
    prefix, mark, query = urls["fetch"].partition("?")
    return f"{prefix.rstrip('/')}/{name}{mark}{query}", digest
