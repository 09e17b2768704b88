"""Certificates are replaced and revoked while a receiver runs."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from peer.receive import receiver as receiver_module
from replication.errors import ConfigError, PeerRefusedError, PeerUnavailableError
from replication.link import tls_files
from replication.link.base import Ack, Reason, Refusal
from replication.link.tls import LinkTls
from replication.link.tls_files import DeniedCertificates
from tests.certificates import tls_section, write_secret
from tests.hostile import of_other_users
from tests.integration.receiving import Pair, answer
from tests.integration.test_link_tls import AUTHORITY, Authority
from tests.waiting import wait_until

OTHER = Authority()
BOTH = AUTHORITY.ca + OTHER.ca


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """East has a grant at west; west looks at its files at each call."""
    monkeypatch.setattr(tls_files, "_POLL_S", 0.0)
    monkeypatch.setattr(receiver_module, "_ANNOUNCE_S", 0.1)
    of_other_users(monkeypatch)
    (tmp_path / "deny").write_text("# none\n")
    section = {**tls_section(tmp_path, AUTHORITY.issue("west")), "deny": str(tmp_path / "deny")}
    made = Pair(tmp_path, tls=section)
    made.tls = AUTHORITY.issue("east")
    made.west.send_to_cluster(made.east.cluster)
    yield made
    made.close()


def printed(tls: LinkTls) -> str:
    """As ``openssl x509 -fingerprint -sha256`` prints it."""
    digest = sha256(ssl.PEM_cert_to_DER_cert(tls.cert.decode())).hexdigest().upper()
    return "sha256 Fingerprint=" + ":".join(digest[at : at + 2] for at in range(0, 64, 2))


def test_a_revoked_certificate_ends_its_stream_and_another_one_of_the_cluster_gets_in(
    pair: Pair, tmp_path: Path
) -> None:
    assert pair.tls is not None
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
        (tmp_path / "deny").write_text(f"{printed(pair.tls)}  # stolen\n")

        def refusal() -> Refusal | None:
            reply = answer(session, pair.data(256, pair.ends[0]))
            return reply if isinstance(reply, Refusal) else None

        found = wait_until(refusal)
        assert found is not None and found.reason is Reason.NOT_GRANTED
        with pytest.raises(PeerRefusedError, match="it is revoked") as caught:
            pair.link(receiver).describe()
        assert "tls.deny" in caught.value.hint
        pair.tls = AUTHORITY.issue("east")
        assert isinstance(answer(pair.ship(receiver), pair.data(pair.ends[0], pair.ends[1])), Ack)


def test_certificates_and_the_authority_are_replaced_without_a_restart(pair: Pair, tmp_path: Path) -> None:
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        new = OTHER.issue("west")
        write_secret(tmp_path / "cert", new.cert)
        with_old_key = pair.link(receiver)
        assert with_old_key.describe().cluster == pair.west.cluster, "a key that is not in place yet changes nothing"
        write_secret(tmp_path / "key", new.key)
        write_secret(tmp_path / "ca", BOTH)
        pair.tls = replace(AUTHORITY.issue("east"), ca=OTHER.ca)
        assert pair.link(receiver).describe().cluster == pair.west.cluster, "the bundle trusts both"
        write_secret(tmp_path / "ca", OTHER.ca)
        with pytest.raises(PeerUnavailableError):
            pair.link(receiver).describe()
        pair.tls = OTHER.issue("east")
        assert pair.link(receiver).describe().cluster == pair.west.cluster
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack), "an open connection goes on"


def test_a_list_of_denied_certificates_that_cannot_be_read_is_refused_and_later_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_files, "_POLL_S", 0.0)
    file = tmp_path / "deny"
    file.write_text("ab" * 32 + "\nno fingerprint\n")
    with pytest.raises(ConfigError, match="line 2"):
        DeniedCertificates(file)
    file.write_text("ab" * 32)
    denied = DeniedCertificates(file)
    assert "ab" * 32 in denied and "cd" * 32 not in denied
    file.write_text("no fingerprint\n" + "cd" * 32)
    with capture_logs() as logs:
        assert "ab" * 32 in denied and "cd" * 32 not in denied
    assert [log["event"] for log in logs] == ["tls_files_unusable"], "once, not each time"
    file.unlink()
    assert "ab" * 32 in denied
    file.write_text("cd" * 32)
    assert "ab" * 32 not in denied and "cd" * 32 in denied
