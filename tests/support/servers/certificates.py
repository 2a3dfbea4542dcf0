"""Certificates for a test's servers: an authority in a folder, and what it signs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """A certificate authority; `certificate` is its own certificate, as all its files in PEM format."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._key = folder, _name(name), _new_key()
        self.certificate = folder / f"{name}.crt"
        self.certificate.write_bytes(self._sign(self._name, self._key, x509.BasicConstraints(True, None)))

    def issue(self, host: str) -> tuple[Path, Path]:
        """Issue a server's certificate for a host name; return its file and the key's."""
        certificate, key_file, key = self._folder / f"{host}.crt", self._folder / f"{host}.key", _new_key()
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
        certificate.write_bytes(self._sign(_name(host), key, names))
        key_file.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        )
        return certificate, key_file

    def _sign(self, subject: x509.Name, key: rsa.RSAPrivateKey, extension: x509.ExtensionType) -> bytes:
        now = datetime.now(timezone.utc)
        certificate = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)
