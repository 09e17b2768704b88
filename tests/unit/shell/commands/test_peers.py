"""What a person proves who defines a peer."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.errors import ConfigError, RequestError
from replication.settings import TlsSection
from shell.commands.peers import administrator_tls


def test_an_administrators_certificate_stands_in_for_the_clusters_own(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert", tmp_path / "key"
    key.touch(mode=0o600)
    with pytest.raises(RequestError, match=f"there is no file {cert}"):
        administrator_tls(TlsSection(ca=tmp_path / "ca"), cert, key)
    cert.touch()
    own = TlsSection(ca=tmp_path / "ca", cert=tmp_path / "own", key=tmp_path / "own.key", allow_plaintext=True)
    assert administrator_tls(own, None, None) is None
    shown = administrator_tls(own, cert, key)
    assert shown == TlsSection(ca=own.ca, cert=cert, key=key, allow_plaintext=True)


@pytest.mark.parametrize(("cert", "key"), [("cert", None), (None, "key")])
def test_half_of_a_certificate_is_refused(tmp_path: Path, cert: str | None, key: str | None) -> None:
    with pytest.raises(RequestError, match="go together"):
        administrator_tls(TlsSection(ca=tmp_path / "ca"), cert and tmp_path / cert, key and tmp_path / key)


def test_an_administrators_certificate_needs_tls_and_a_private_key(tmp_path: Path) -> None:
    (tmp_path / "cert").touch()
    (tmp_path / "key").touch(mode=0o644)
    with pytest.raises(RequestError, match="needs TLS"):
        administrator_tls(TlsSection(), tmp_path / "cert", tmp_path / "key")
    with pytest.raises(ConfigError, match="chmod 600"):
        administrator_tls(TlsSection(ca=tmp_path / "ca"), tmp_path / "cert", tmp_path / "key")
