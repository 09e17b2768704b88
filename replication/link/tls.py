"""Mutual TLS of the link: who may connect, and which cluster a certificate is for.

A cluster's certificate carries the cluster's name as a DNS subject alternative name; both ends check it. Plain text
is for loopback, or where the configuration allows it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from replication.errors import ConfigError
from replication.settings import TlsSection, split_address


@dataclass(frozen=True, slots=True)
class LinkTls:
    """PEM bytes: the authority both ends trust, and this cluster's certificate and key."""

    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)

    def server(self) -> grpc.ServerCredentials:
        """For the receiver's port: callers without a certificate of this authority are refused."""
        return grpc.ssl_server_credentials([(self.key, self.cert)], self.ca, require_client_auth=True)

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


def check_plaintext(address: str, tls: LinkTls | None, allow_plaintext: bool) -> None:
    """Raise ConfigError when ``address`` would be spoken to in plain text although it is not loopback."""
    if tls is None and not allow_plaintext and not is_loopback(split_address(address)[0]):
        raise ConfigError(
            f"{address} is not loopback and there is no TLS",
            "Set tls.ca, tls.cert and tls.key, or tls.allow_plaintext = true on a network you trust",
        )


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def caller_names(auth: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """The cluster names in a caller's certificate."""
    return frozenset(name.decode(errors="replace") for name in auth.get("x509_subject_alternative_name", ()))
