"""Object stores: which URLs lead to one, what reads them, and where each keeps its credentials. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional

if TYPE_CHECKING:
    from .plan import DataPlan

#: The last file of an upload, with the size of each file: who finds it finds all of them.
UPLOAD_MARK = ".jobsdk-upload.json"


class Store:
    """`package`: what fsspec needs for it. `credentials`: the variables that its package reads."""

    __slots__ = ("credentials", "package")  # a NamedTuple would cost every start a quarter of a millisecond

    def __init__(self, package: str, credentials: str) -> None:
        self.package = package
        self.credentials = credentials


_S3 = Store("s3fs", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
_GS = Store("gcsfs", "GOOGLE_APPLICATION_CREDENTIALS")
_AZURE = Store("adlfs", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY")
#: By the scheme of a URL. `local` is fsspec's name for the node's own disk.
STORES: Dict[str, Store] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GS,
    "gcs": _GS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "hf": Store("huggingface_hub", "HF_TOKEN"),
    "local": Store("fsspec", "the rights of the job's user"),
}


def store_of(uri: Optional[str]) -> Optional[Store]:
    """The store that a URL leads to; None for a path, an https URL, and what only Azure ML can read."""
    scheme, mark, _ = (uri or "").partition("://")
    return STORES.get(scheme.lower()) if mark else None


def is_moved(given: DataPlan) -> bool:
    """Whether nodes fetch this input from a store, or upload this output to one."""
    return "at" not in given and given.get("mode") != "direct" and store_of(given.get("uri")) is not None


def is_passed_on(given: DataPlan) -> bool:
    """Whether the command gets the URL of a store itself."""
    return "at" not in given and given.get("mode") == "direct" and store_of(given.get("uri")) is not None
