"""The certificates by which an emulator stands for Azure's names: created at each start, trusted by nobody else."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_LIFE = datetime.timedelta(days=30)


class Certificates(NamedTuple):
    """Files: what clients are to trust (the authority beside those of `others`), and a server's own chain and key."""

    bundle: Path
    authority: Path
    chain: Path
    key: Path


def make(folder: Path, names: Sequence[str], others: Sequence[str]) -> Certificates:
    """An authority, and a certificate for `names` and 127.0.0.1. The authority's key is kept nowhere.

    `others` are files with the authorities of the real world: what the proxy passes on is vouched for by those.
    """
    import trustme

    authority = trustme.CA(path_length=0, organization_name="jobsdk azure-emulator")
    expiry = datetime.datetime.now(datetime.timezone.utc) + _LIFE
    own = authority.issue_cert(*names, "127.0.0.1", not_after=expiry)
    files = Certificates(*(folder / name for name in ("ca-bundle.pem", "ca.pem", "certificate.pem", "key.pem")))
    trusted = authority.cert_pem.bytes()
    files.authority.write_bytes(trusted)
    files.bundle.write_bytes(b"\n".join([trusted, *(Path(one).read_bytes() for one in others)]))
    files.chain.write_bytes(b"".join(pem.bytes() for pem in own.cert_chain_pems))
    write_private(files.key, own.private_key_pem.bytes())
    return files


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, as a whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(draft, path)


def trusted_here() -> list[str]:
    """The files with the authorities that requests and OpenSSL trust without an emulator, as the environment says."""
    import certifi

    chosen = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"))
    found = [path for path in chosen if path and os.path.isfile(path)]
    return [*dict.fromkeys([*found, certifi.where()])]
