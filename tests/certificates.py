"""Certificates for tests, made on the spot: a CA, what it signs, and what nobody should accept."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lynx_ascend.transport.tls import TlsConfig

_DAY = datetime.timedelta(days=1)


@dataclass
class Authority:
    """A CA whose files go to `folder`."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject(self.name)
        certificate = _builder(self._subject, self._subject, self._key, 1)
        certificate = certificate.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = self.folder / f"{self.name}.pem"
        self.file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, days: float = 1, check: str | None = None) -> TlsConfig:
        """The files of an engine whose certificate holds the DNS name `name` and ends in `days` from now.

        check: the name that it asks of its peers.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._subject, key, days)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        files = [self.folder / f"{self.name}-{name}.{kind}" for kind in ("pem", "key")]
        files[0].write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsConfig(str(files[0]), str(files[1]), str(self.file), check)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + days * _DAY)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
