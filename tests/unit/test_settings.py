"""Values of settings that a part could not use are refused when the file is read."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from replication import config as configuration
from replication.errors import ConfigError
from replication.link.channel import client_options


@pytest.mark.parametrize(
    ("servers", "what"),
    [
        (",", "':2181' is not host:port"),
        ("127.0.0.1:2181,", "':2181' is not host:port"),
        ("127.0.0.1:99999", "'127.0.0.1:99999' is not host:port"),
        ("localhost:2181/x", "'localhost:2181/x' is not host:port"),
        ("127.0.0.1,[::1],[::1]:7,localhost:2181", ""),
    ],
)
def test_servers_of_zookeeper_are_addresses(servers: str, what: str) -> None:
    given = {"cluster": {"name": "east"}, "zookeeper": {"embedded": False, "servers": servers}}
    if not what:
        assert configuration.load(None, given, {}).zookeeper_servers == servers
        return
    with pytest.raises(ConfigError, match=what):
        configuration.load(None, given, {})


def test_the_embedded_server_may_listen_on_an_address_of_ipv6() -> None:
    given = {"cluster": {"name": "east"}, "zookeeper": {"listen": "::1", "port": 2190}}
    assert configuration.load(None, given, {}).zookeeper_servers == "[::1]:2190"


@pytest.mark.parametrize(
    "url", ["/mnt/store", "store", "file://store", "file:/mnt/store", "s3:bucket", "s3://", "~/store"]
)
def test_a_store_for_spilled_files_is_an_address_or_the_second_run_would_delete_them(url: str) -> None:
    given = {"cluster": {"name": "east"}, "master": {"spill_url": url}}
    with pytest.raises(ConfigError, match="is not the address of a store, such as s3://bucket/walship or file:///"):
        configuration.load(None, given, {})


@pytest.mark.parametrize(("section", "key"), [("catalog", "warehouse"), ("timeline", "url")])
def test_the_place_of_tables_and_instants_is_an_address_or_it_would_count_from_where_each_process_was_started(
    section: str, key: str
) -> None:
    for place in ("tables", "/mnt/tables", "file://tables"):
        with pytest.raises(ConfigError, match=f"{section}.{key}: '{place}' is not the address of a store"):
            configuration.load(None, {"cluster": {"name": "east"}, section: {key: place}}, {})


@pytest.mark.parametrize("url", ["s3://bucket/in::x", "memory://spill::x", "hdfs://[::1]:9000/x"])
def test_a_store_for_spilled_files_is_not_cut_or_they_would_be_written_where_nobody_reads_them(url: str) -> None:
    given = {"cluster": {"name": "east"}, "master": {"spill_url": url}}
    with pytest.raises(ConfigError, match="is not the address of a store, .* no ::"):
        configuration.load(None, given, {})


@pytest.mark.parametrize(
    "url", ["", "file:///mnt/st::re", "file:///mnt/store", "s3://bucket", "hdfs://name:9000/x", "memory:///tmp/store"]
)
def test_any_store_that_a_driver_knows_may_be_named(url: str) -> None:
    assert (
        configuration.load(None, {"cluster": {"name": "east"}, "master": {"spill_url": url}}, {}).master.spill_url
        == url
    )


@pytest.mark.parametrize(
    "root", ["walship/east", "/walship/east/", "/", "/walship//east", "/wal ship", "/größe", "/.x"]
)
def test_a_root_that_no_peer_could_name_or_whose_access_list_would_be_that_of_a_parent_is_refused(root: str) -> None:
    with pytest.raises(ConfigError, match="zookeeper.root: .* is not like /walship/east"):
        configuration.load(None, {"cluster": {"name": "east"}, "zookeeper": {"root": root}}, {})


@pytest.mark.parametrize("section", ["worker", "receiver"])
def test_messages_larger_than_grpc_takes_are_refused_and_not_by_the_processes_that_would_send_them(
    section: str,
) -> None:
    given = {"cluster": {"name": "east"}, "worker": {"window_bytes": "4 GiB"}}
    with pytest.raises(ConfigError, match=f"{section}.message_bytes_max .*: Input should be less than or equal to"):
        configuration.load(None, given, {f"WALSHIP_{section.upper()}_MESSAGE_BYTES_MAX": "2 GiB"})
    largest = getattr(
        configuration.load(None, given, {f"WALSHIP_{section.upper()}_MESSAGE_BYTES_MAX": "1 GiB"}), section
    )
    grpc.insecure_channel("127.0.0.1:1", options=client_options(largest.message_bytes_max, None)).close()


@pytest.mark.parametrize("name", ["what?", os.fsdecode(b"what\xe9")])
def test_a_folder_that_no_address_can_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"data_dir.*what.*choose another folder"):
        configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path / name / "x")}}, {})


@pytest.mark.parametrize("sign", [",", '"', "\\", "?"])
def test_a_folder_that_sparks_options_cannot_name_is_refused(tmp_path: Path, sign: str) -> None:
    """Spark did not start there, or made two folders elsewhere for its temporary files."""
    given = {"cluster": {"name": "east", "data_dir": str(tmp_path / f"with{sign}sign")}}
    with pytest.raises(ConfigError, match="choose another folder") as refused:
        configuration.load(None, given, {})
    assert f" {sign} " in refused.value.what
