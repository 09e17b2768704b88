"""Mutual TLS of the link: who may connect, and which cluster a certificate is for.

A cluster's certificate carries the cluster's name as a DNS subject alternative name; both ends check it. Plain text
is for loopback, or where the configuration allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from replication.errors import ConfigError
from replication.settings import TlsSection, split_address
from replication.tls_checks import is_loopback

_DNS, _NAMES = "peer_dns", "x509_subject_alternative_name"  # as gRPC names them; the second has every kind


@dataclass(frozen=True, slots=True)
class LinkTls:
    """PEM bytes: the authority both ends trust, and this cluster's certificate and key."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)

    def client(self) -> grpc.ChannelCredentials:
        """For a sender."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


def load(section: TlsSection) -> LinkTls | None:
    """Read the files of ``section``; None when it has none. ConfigError when they cannot be read."""
    if section.ca is None or section.cert is None or section.key is None:
        return None
    return LinkTls(_read(section.ca), _read(section.cert), _read(section.key))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", "Check tls.ca, tls.cert and tls.key") from None


def server_credentials(first: LinkTls, renewed: Callable[[], LinkTls | None]) -> grpc.ServerCredentials:
    """For a receiver's port: callers without a certificate of the authority are refused.

    ``renewed`` is asked before each handshake; what it gives is used from then on, if it is not None.
    """
    used = [first]

    def configuration(tls: LinkTls) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], tls.ca)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        now = renewed()
        if now is None or now == used[0]:
            return None
        used[0] = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(configuration(first), fetch, require_client_authentication=True)


def check_plaintext(address: str, tls: LinkTls | None, allow_plaintext: bool) -> None:
    """Raise ConfigError when ``address`` would be spoken to in plain text although it is not loopback."""
    if tls is None and not allow_plaintext and not is_loopback(split_address(address)[0]):
        raise ConfigError(
            f"{address} is not loopback and there is no TLS",
            "Set tls.ca, tls.cert and tls.key, or tls.allow_plaintext = true on a network you trust",
        )


def caller_names(auth: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """The names in a caller's certificate: a cluster's is a DNS name. Names of persons are never a cluster's."""
    names = {kind: {name.decode(errors="replace") for name in auth.get(kind, ())} for kind in (_DNS, _NAMES)}
    return frozenset(name for name in names[_DNS] | names[_NAMES] if name in names[_DNS] or "@" in name or ":" in name)
