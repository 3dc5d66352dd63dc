"""The certificates by which an emulator may stand for Azure's names: made anew at each start, trusted by nobody else.

`cryptography` comes with the extra `emulator`.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.x509 import KeyUsage

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
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.timezone.utc)

    def begun(name: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + _LIFE)
        )

    above = f"jobsdk azure-emulator {os.urandom(4).hex()}"
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = (
        begun(above, above, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    own = (
        begun(names[0], above, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = Certificates(*(folder / name for name in ("ca-bundle.pem", "ca.pem", "certificate.pem", "key.pem")))
    files.authority.write_bytes(authority.public_bytes(pem))
    files.bundle.write_bytes(b"\n".join([authority.public_bytes(pem), *(Path(one).read_bytes() for one in others)]))
    files.chain.write_bytes(own.public_bytes(pem))
    write_private(
        files.key,
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
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


def _usage(*, signs: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip
