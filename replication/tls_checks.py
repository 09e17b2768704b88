"""Checks of a configuration's connections: what leaves this machine goes over TLS, and servers can be found."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from replication.errors import ConfigError
from replication.permissions import exposed
from replication.settings import ReceiverSection, TlsSection, ZooKeeperSection, split_address

_PORT = re.compile(r":\d+\Z")  # which a server of ZooKeeper may leave out
_EVERYWHERE = ("0.0.0.0", "::")
_NOT_NAMED = 62  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH
_DATE = re.compile(rb"(?:\x17\r|\x18\x0f20)(\d{12})Z")  # in a certificate: it begins and ends at the first two
_SOON_US = 14 * 86400 * 1_000_000
_SSL_MODES = ("require", "verify-ca", "verify-full")  # of a URL of PostgreSQL


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # other names may resolve to anything


def plain_connections(zookeeper: ZooKeeperSection, witness: str, databases: Mapping[str, str]) -> Iterator[str]:
    """Which connections to servers off loopback would be in plain text. ``databases`` are URLs by their keys."""
    for key, servers in (("zookeeper.servers", zookeeper.servers), ("failover.witness", witness.partition("/")[0])):
        hosts = [_PORT.sub("", server).strip("[]") for server in servers.split(",") if server]
        if not zookeeper.secured and (far := [host for host in hosts if not is_loopback(host)]):
            yield (
                f"{key}: {far[0]} is not loopback and there is no TLS; set zookeeper.ca, "
                "zookeeper.cert and zookeeper.key, or tls.allow_plaintext = true on a network you trust"
            )
    for key, value in databases.items():
        if not (text := value.removeprefix("jdbc:")).startswith("postgres"):
            continue
        try:
            url = urlsplit(text)
        except ValueError as error:
            yield f"{key}: not the URL of a database: {error}"
            continue
        asked = parse_qsl(url.query)
        named = [url.hostname or "", *(host for name, host in asked if name in ("host", "hostaddr"))]
        hosts = [_PORT.sub("", host).strip("[]") for each in named for host in each.split(",")]
        far = [host for host in hosts if host and not host.startswith("/") and not is_loopback(host)]
        if far and dict(asked).get("sslmode") not in _SSL_MODES:
            yield (
                f"{key}: {far[0]} is not loopback and there is no TLS; add ?sslmode=verify-full and sslrootcert=FILE,"
                " or set tls.allow_plaintext = true on a network you trust"
            )


def missing_addresses(zookeeper: ZooKeeperSection, receiver: ReceiverSection) -> Iterator[str]:
    """Which addresses are missing, so that nobody could connect there."""
    host, _ = split_address(receiver.listen)
    if host in _EVERYWHERE and not receiver.advertise:
        yield f"receiver.advertise: missing; peers cannot connect to {host}"
    if not zookeeper.servers and not zookeeper.embedded:
        yield "zookeeper.servers: missing; name the ensemble, or set zookeeper.embedded = true"
    elif not zookeeper.servers and zookeeper.listen in _EVERYWHERE:
        yield (
            f"zookeeper.servers: missing; peers cannot connect to {zookeeper.listen}. Give the address that they use,"
            f" for example 10.0.0.11:{zookeeper.port}"
        )


def unfit_files(section: str, files: Mapping[str, Path | None]) -> Iterator[str]:
    """What is wrong with the three PEM files of mutual TLS; nothing when none is given."""
    if any(files.values()):
        for key, file in files.items():
            if file is None:
                yield f"{section}.{key}: missing; mutual TLS needs ca, cert and key"
            elif not file.is_file():
                yield f"{section}.{key}: there is no file {file}"
            elif key == "key" and (reason := exposed(file)):
                yield f"{section}.{key}: {reason}"


def check_named(tls: TlsSection, cluster: str) -> None:
    """Raise ConfigError if the certificate of links does not name the cluster, so that no peer would talk to it.

    Two ends in memory shake hands, of which one trusts this certificate. What else is wrong with it is not looked at.
    """
    import ssl  # deferred: few commands need it

    if tls.cert is None or tls.key is None:
        return
    with suppress(ssl.SSLError, OSError, ValueError):
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(tls.cert, tls.key, password=b"")
        client.load_verify_locations(tls.cert)
        client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        client.hostname_checks_common_name = False
        there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
        asking, asked = (
            client.wrap_bio(here, there, server_hostname=cluster),
            server.wrap_bio(there, here, server_side=True),
        )
        for end in (asking, asked, asking):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                if error.verify_code == _NOT_NAMED:
                    raise ConfigError(
                        f"the certificate {tls.cert} does not name cluster {cluster}, so no other cluster would talk to"
                        " it",
                        f'Have one issued with the DNS name "{cluster}", for tls.cert',
                    ) from None


def ends_soon(cert: Path | None, now: int) -> int:
    """When a certificate ends, if that is within two weeks, or a fifth of its time, or was; else 0. In microseconds."""
    import ssl  # deferred: few commands need it

    with suppress(OSError, ValueError):  # what else is wrong with it is told where it is used
        pem = "" if cert is None else cert.read_text()
        first = pem[pem.index(ssl.PEM_HEADER) : pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)]
        dates = _DATE.findall(ssl.PEM_cert_to_DER_cert(first))[:2]
        begin, end = (datetime.strptime(f"{date.decode()}Z", "%y%m%d%H%M%S%z").timestamp() for date in dates)
        return int(end * 1e6) if end * 1e6 - now < min(_SOON_US, (end - begin) * 1e6 / 5) else 0
    return 0
