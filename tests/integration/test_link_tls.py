"""Mutual TLS of the link: who gets in, and as whom."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from replication.core.ids import ClusterId
from replication.errors import PeerRefusedError, PeerUnavailableError
from replication.link.base import Hello, PeerLink
from replication.link.grpc_client import connect
from replication.link.tls import LinkTls
from tests.certificates import tls_section
from tests.sites import Site


class Authority:
    """A private certificate authority."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {uuid4()}")])
        self._certificate = self._sign(self._name, self._key.public_key(), x509.BasicConstraints(True, None))

    @property
    def ca(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, cluster: str, kind: Callable[[str], x509.GeneralName] = x509.DNSName) -> LinkTls:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cluster)])
        certificate = self._sign(subject, key.public_key(), x509.SubjectAlternativeName([kind(cluster)]))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return LinkTls(self.ca, certificate.public_bytes(serialization.Encoding.PEM), pem)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


AUTHORITY, STRANGERS = Authority(), Authority()
EAST = ClusterId("east", uuid4())
Connect = Callable[..., PeerLink]


@pytest.fixture
def west(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "west", tls=tls_section(tmp_path, AUTHORITY.issue("west")))
    yield site
    site.close()


@pytest.fixture
def reach(west: Site) -> Iterator[Connect]:
    links: list[PeerLink] = []
    with west.receiver() as receiver:

        def to(tls: LinkTls | None, name: str, caller: ClusterId = EAST) -> PeerLink:
            links.append(connect(f"127.0.0.1:{receiver.port}", name, caller, tls=tls))
            return links[-1]

        yield to
        for link in links:
            link.close()


def hello(west: Site) -> Hello:
    return Hello(EAST, west.cluster, 1, "test")


def test_a_cluster_with_its_own_certificate_gets_in(west: Site, reach: Connect) -> None:
    link = reach(AUTHORITY.issue("east"), "west")
    assert link.describe().cluster == west.cluster
    session = link.ship(hello(west))
    assert session.opened.cluster == west.cluster
    session.close()


@pytest.mark.parametrize("tls", [None, STRANGERS.issue("east")], ids=["plain text", "another authority"])
def test_without_a_certificate_of_the_authority_nobody_gets_in(reach: Connect, tls: LinkTls | None) -> None:
    with pytest.raises(PeerUnavailableError) as caught:
        reach(tls, "west").describe()
    known = "authority that it trusts: [tls] on both sides" if tls is None else "both sides trust the other's authority"
    assert known in caught.value.hint, "its receiver is up"


def test_a_strangers_certificate_under_our_authority_gets_nobody_in(reach: Connect) -> None:
    stranger = STRANGERS.issue("east")
    with pytest.raises(PeerUnavailableError) as caught:
        reach(LinkTls(AUTHORITY.ca, stranger.cert, stranger.key), "west").describe()
    assert "[tls]" in caught.value.hint, "its receiver is up"


def test_a_certificate_speaks_for_its_own_cluster_only(west: Site, reach: Connect) -> None:
    with pytest.raises(PeerRefusedError, match="is for north, not for east") as caught:
        reach(AUTHORITY.issue("north"), "west").ship(hello(west))
    assert caught.value.reason == "WRONG_CLUSTER"
    with pytest.raises(PeerRefusedError, match="is for north, not for east"):
        reach(AUTHORITY.issue("north"), "west").compare(EAST, west.cluster)


@pytest.mark.parametrize("kind", [x509.UniformResourceIdentifier, x509.RFC822Name])
def test_only_a_dns_name_in_a_certificate_is_a_clusters(
    reach: Connect, kind: Callable[[str], x509.GeneralName]
) -> None:
    with pytest.raises(PeerRefusedError, match="the certificate is for nobody, not for east"):
        reach(AUTHORITY.issue("east", kind), "west").describe()
    with pytest.raises(PeerRefusedError, match="the certificate is for mailto:a@east, not for east"):
        reach(AUTHORITY.issue("mailto:a@east", kind), "west").describe()


def test_a_receiver_that_is_another_cluster_is_not_talked_to(reach: Connect) -> None:
    with pytest.raises(PeerUnavailableError) as caught:
        reach(AUTHORITY.issue("east"), "south").describe()
    assert caught.value.hint.startswith("Its certificate must name the cluster"), "its receiver is up"


def test_a_key_is_not_shown(west: Site) -> None:
    assert "PRIVATE" not in repr(AUTHORITY.issue("east"))
