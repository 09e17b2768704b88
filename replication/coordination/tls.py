"""Mutual TLS to ZooKeeper, on both ends."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from replication.errors import ConfigError
from replication.settings import ZooKeeperSection


@dataclass(frozen=True, slots=True)
class ZookeeperTls:
    """PEM files for mutual TLS. Only ``ca`` is trusted, not the system's roots, and host names are checked."""

    ca: str
    certificate: str
    key: str

    @staticmethod
    def of(section: ZooKeeperSection) -> ZookeeperTls | None:
        """From the configuration; None unless ca, cert and key are set."""
        if section.ca is None or section.cert is None or section.key is None:
            return None
        return ZookeeperTls(str(section.ca), str(section.cert), str(section.key))

    def context(self) -> ssl.SSLContext:
        """The context; ConfigError when a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(self.ca)
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the TLS files for ZooKeeper cannot be used: {error}", "Check the PEM files and their permissions"
            ) from None
        return context
