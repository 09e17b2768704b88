"""Throw-away certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from replication.coordination.tls import ZookeeperTls
from replication.link.tls import LinkTls


def write_secret(file: Path, content: bytes) -> str:
    """Write a file that only its owner can read; its path."""
    file.touch(mode=0o600)
    file.write_bytes(content)
    return str(file)


def tls_section(folder: Path, issued: LinkTls, prefix: str = "") -> dict[str, str]:
    """Write a cluster's files; the keys of a configuration's ``[tls]``."""
    contents = {"ca": issued.ca, "cert": issued.cert, "key": issued.key}
    return {name: write_secret(folder / f"{prefix}{name}", content) for name, content in contents.items()}


class Authority:
    """A certificate authority of its own, writing PEM files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        self._write("ca.pem", self._sign(self._name, self._key, None, "", ca=True))

    def tls(self, name: str, address: str = "127.0.0.1", cluster: str = "") -> ZookeeperTls:
        """Files for a host at ``address``, which speaks for ``cluster``, if given, on links."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        certificate = self._write(f"{name}.pem", self._sign(subject, key, address, cluster, ca=False))
        return ZookeeperTls(str(self._folder / "ca.pem"), certificate, self._write(f"{name}.key", private))

    def section(self, name: str) -> dict[str, str]:
        """The keys of a configuration's ``[zookeeper]``."""
        files = self.tls(name)
        return {"ca": files.ca, "cert": files.certificate, "key": files.key}

    def _write(self, name: str, content: bytes) -> str:
        return write_secret(self._folder / name, content)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, address: str | None, cluster: str, *, ca: bool
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if address is not None:
            names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address))]
            names += [x509.DNSName(cluster)] if cluster else []
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
