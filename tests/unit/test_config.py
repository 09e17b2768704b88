"""Configuration: which layer wins, what is refused, and that everything wrong is said at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from replication.config import Config, default_toml, load
from replication.errors import ConfigError
from replication.settings import join_address, split_address
from replication.tables.catalog.catalog import catalog_properties


def write(folder: Path, text: str) -> Path:
    file = folder / "east.toml"
    file.write_text(text)
    return file


def problems_of(file: Path | None, overrides: dict[str, dict[str, object]] | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, overrides, environ)
    return caught.value.what


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = write(
        tmp_path, "[cluster]\nname = 'east'\n[writer]\nlease_s = 20\nwal_age_max_s = 21\nappend_timeout_s = 22\n"
    )
    config = load(
        file, {"writer": {"lease_s": 40}}, {"WALSHIP_WRITER_LEASE_S": "30", "WALSHIP_WRITER_WAL_AGE_MAX_S": "31"}
    )
    assert (config.writer.lease_s, config.writer.wal_age_max_s, config.writer.append_timeout_s) == (40, 31, 22)
    assert config.writer.codec == "lz4"


def test_paths_count_from_the_folder_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[cluster]\nname = 'east'\ndata_dir = 'data'\n[ledger]\nurl = 'sqlite:///ledger/east.db'\n")
    config = load(os.path.relpath(file), environ={})
    assert config.data_dir == tmp_path / "data"
    assert config.wal_dir == tmp_path / "data" / "wal"
    assert config.ledger_url == f"sqlite:///{tmp_path / 'ledger' / 'east.db'}"


@pytest.mark.parametrize("url", ["", "url = 'sqlite:///ledger.db'"])
@pytest.mark.parametrize("name", ["a%20b", "a%41b", "50% of it"])
def test_a_folder_keeps_its_ledger_whatever_it_is_called(tmp_path: Path, name: str, url: str) -> None:
    (tmp_path / name).mkdir()
    config = load(write(tmp_path / name, f"[cluster]\nname = 'east'\n[ledger]\n{url}\n"), environ={})
    assert make_url(config.ledger_url).database == str(tmp_path / name / "ledger.db")
    assert make_url(catalog_properties(config.data_dir).pyiceberg["uri"]).database == str(config.catalog_file)


def test_what_is_left_empty_is_derived(tmp_path: Path) -> None:
    config = load(write(tmp_path, "[cluster]\nname = 'east'\n[zookeeper]\nport = 2190\n"), environ={})
    assert config.data_dir == tmp_path
    assert config.ledger_url == f"sqlite:///{tmp_path}/ledger.db"
    assert config.zookeeper_root == "/walship/east"
    assert config.zookeeper_servers == "127.0.0.1:2190"


def test_options_of_spark_become_its_properties(tmp_path: Path) -> None:
    replay = {
        "spark_ui": True,
        "spark_idle_s": 0.0,
        "spark_events": str(tmp_path),
        "spark": {"spark.ui.killEnabled": "true"},
    }
    found = load(None, {"cluster": {"name": "east"}, "replay": replay}).replay.spark_properties
    assert found["spark.ui.enabled"] == found["spark.ui.killEnabled"] == "true"
    assert found["spark.eventLog.dir"] == tmp_path.as_uri()
    assert load(None, {"cluster": {"name": "east"}}).replay.spark_properties == {}


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "[cluster]\nname = 'no spaces'\n[writer]\nlease = 1\ncodec = 'gzip'\n[wirter]\nlease_s = 1\n"
        "[receiver]\nlisten = 'nowhere'\n[worker]\nretry_min_s = 100\n[tls]\ncert = 'cert.pem'\n",
    )
    said = problems_of(file, WALSHIP_MASTER_INTERVALL_S="2", WALSHIP_REPLAY_INTERVAL_S="soon")
    for key in (
        "cluster.name",
        "writer.lease:",
        "writer.codec",
        "wirter:",
        "receiver.listen",
        "worker.retry_min_s",
        "tls.ca",
        "tls.key",
    ):
        assert key in said, said
    assert "master.intervall_s (from WALSHIP_MASTER_INTERVALL_S): unknown" in said
    assert "replay.interval_s (from WALSHIP_REPLAY_INTERVAL_S): " in said and said.count("(from ") == 2


def test_tls_to_zookeeper_wants_all_three_files_and_is_wanted_off_loopback(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch(0o600)
    base = "[cluster]\nname = 'east'\n[zookeeper]\n"
    said = problems_of(write(tmp_path, base + "ca = 'ca.pem'\ncert = 'none.pem'\n"))
    assert "zookeeper.key: missing" in said and "zookeeper.cert: there is no file" in said
    assert "zookeeper.ca" not in said
    said = problems_of(write(tmp_path, base + "listen = '10.0.0.1'\n"))
    assert "zookeeper.listen: 10.0.0.1 is not loopback and there is no TLS" in said
    files = "ca = 'ca.pem'\ncert = 'ca.pem'\nkey = 'ca.pem'\n"
    secured = load(write(tmp_path, base + "listen = '10.0.0.1'\n" + files), environ={})
    assert secured.zookeeper.secured and secured.zookeeper.ca == tmp_path / "ca.pem"


def test_an_unknown_key_names_the_known_ones(tmp_path: Path) -> None:
    said = problems_of(write(tmp_path, "[cluster]\nname = 'east'\n[writer]\nlease = 1\n"))
    assert "writer.lease: unknown key; known are" in said and "lease_s" in said


def test_a_missing_name_is_a_problem_and_a_section_that_is_no_table_too(tmp_path: Path) -> None:
    said = problems_of(write(tmp_path, "writer = 3\n[cluster]\nhost = 'h0'\n"))
    assert "cluster.name" in said and "writer" in said


def test_an_environment_variable_without_a_section_is_refused_but_the_command_lines_own_are_not(tmp_path: Path) -> None:
    file = write(tmp_path, "[cluster]\nname = 'east'\n")
    assert "leases" in (said := problems_of(file, WALSHIP_LEASES_S="3")) and "(from WALSHIP_LEASES_S)" in said
    load(file, environ={"WALSHIP_CLUSTER": "west", "WALSHIP_TEST_SEED": "1", "WALSHIP_CACHE": "/nowhere"})
    load(file, environ={"WALSHIP_DATASETS": "sets.toml", "WALSHIP_AUDIT_URL": "x", "WALSHIP_DEBUG": "1"})


def test_tables_and_lists_come_from_the_environment_as_json(tmp_path: Path) -> None:
    environ = {"WALSHIP_CATALOG_SPARK": '{"type": "rest"}', "WALSHIP_REPLAY_JARS": '["a.jar", "b.jar"]'}
    config = load(write(tmp_path, "[cluster]\nname = 'east'\n"), environ=environ)
    assert config.catalog.spark == {"type": "rest"}
    assert config.replay.jars == (tmp_path / "a.jar", tmp_path / "b.jar")


@pytest.mark.parametrize(("text", "size"), [("4 MiB", 4 << 20), ("1GB", 10**9), ("4096", 4096)])
def test_byte_sizes_may_be_text(text: str, size: int) -> None:
    overrides = {"cluster": {"name": "east"}, "worker": {"message_bytes_max": text, "window_bytes": "2 GiB"}}
    assert load(None, overrides, {}).worker.message_bytes_max == size


@pytest.mark.parametrize("text", ["0", "-1", "many", ""])
def test_byte_sizes_that_are_none_are_refused(text: str) -> None:
    overrides: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, "worker": {"window_bytes": text}}
    assert "worker.window_bytes" in problems_of(None, overrides)


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2,4]", "spark://a:7077,b:7077", "yarn", "k8s://https://a:6443"]
)
def test_every_kind_of_master_that_runs_jobs_is_taken(master: str) -> None:
    overrides = {"cluster": {"name": "east"}, "replay": {"spark_master": master}}
    assert load(None, overrides, {}).replay.spark_master == master


@pytest.mark.parametrize(
    ("master", "said"), [("sc://head:15002", "Spark Connect"), ("lcoal[2]", "spark://HOST:PORT"), ("", "yarn")]
)
def test_a_master_that_runs_no_jobs_is_refused(master: str, said: str) -> None:
    problems = problems_of(None, {"cluster": {"name": "east"}, "replay": {"spark_master": master}})
    assert "replay.spark_master" in problems and said in problems


def test_plain_text_beyond_loopback_must_be_asked_for(tmp_path: Path) -> None:
    public: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, "receiver": {"listen": "10.0.0.1:7400"}}
    assert "receiver.listen" in problems_of(None, public)
    load(None, {**public, "tls": {"allow_plaintext": True}}, {})
    for file in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / file).touch(0o600)
    secured = write(tmp_path, "[tls]\nca = 'ca.pem'\ncert = 'cert.pem'\nkey = 'key.pem'\n")
    assert load(secured, public, {}).tls.enabled


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("receiver", "advertise", "nowhere", "'nowhere' is not host:port"),
        ("replay", "driver_memory", "much", "'much' is not a size such as 1g or 512m"),
        ("replay", "spark", "a=b", 'Input should be a table such as { name = "value" }'),
        ("worker", "window_bytes", "1 XiB", "'1 XiB' is neither a number of bytes nor text such as \"64 MiB\""),
        ("tls", "ca", 3, "Input should be a path"),
        ("zookeeper", "port", True, "Input should be a number"),
    ],
)
def test_a_value_of_another_type_is_refused_in_plain_words(section: str, key: str, value: object, said: str) -> None:
    overrides: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, section: {key: value}}
    assert f"{section}.{key}: {said}\n" in problems_of(None, overrides) + "\n"


@pytest.mark.parametrize("listen", ["", "nowhere", "host:port"])
def test_a_receiver_must_listen_somewhere(listen: str) -> None:
    assert "receiver.listen" in problems_of(None, {"cluster": {"name": "east"}, "receiver": {"listen": listen}})


@pytest.mark.parametrize("listen", ["0.0.0.0", "::"])
def test_listening_everywhere_needs_addresses_that_peers_can_connect_to(listen: str) -> None:
    given: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, "tls": {"allow_plaintext": True}}
    given |= {"receiver": {"listen": join_address(listen, 7400)}, "zookeeper": {"listen": listen}}
    said = problems_of(None, given)
    assert "receiver.advertise: missing" in said
    assert f"zookeeper.servers: missing; peers cannot connect to {listen}" in said


def test_broken_toml_names_the_line_and_a_missing_file_the_remedy(tmp_path: Path) -> None:
    assert "line 2" in problems_of(write(tmp_path, "[cluster]\nname east\n"))
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "none.toml", environ={})
    assert "walship init" in caught.value.hint


def test_times_without_end_are_refused(tmp_path: Path) -> None:
    assert "worker.ack_timeout_s" in problems_of(
        write(tmp_path, "[cluster]\nname = 'east'\n[worker]\nack_timeout_s = inf\n")
    )


def test_every_key_says_what_it_is(tmp_path: Path) -> None:
    silent = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key, found in field.annotation.model_fields.items()
        if not found.description
    ]
    assert silent == []
    lines = default_toml("east", tmp_path).splitlines()
    assert [line for line in lines if " = " in line and "  # " not in line] == []


def test_times_beyond_what_clocks_count_are_refused(tmp_path: Path) -> None:
    text = "[cluster]\nname = 'east'\n[worker]\nack_timeout_s = 9e19\n[writer]\nwal_age_max_s = 9e19\n"
    said = problems_of(write(tmp_path, text + "[replay]\nspark_idle_s = 1e9\n"))
    assert "worker.ack_timeout_s: Input should be less than or equal to 1209600" in said
    assert "writer.wal_age_max_s" in said and "replay.spark_idle_s" in said
    unbounded = [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key, found in field.annotation.model_fields.items()
        if key.endswith("_s") and not any(hasattr(bound, "le") for bound in found.metadata)
    ]
    assert unbounded == []
    load(write(tmp_path, "[cluster]\nname = 'east'\n[replay]\nchanges_retention_s = 3e9\n"), environ={})


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    for codec in ("utf-8-sig", "utf-16"):
        (tmp_path / "east.toml").write_text('[cluster]\nname = "east"\n', encoding=codec)
        with pytest.raises(ConfigError, match="Save it as UTF-8 without a byte order mark"):
            load(tmp_path / "east.toml", environ={})


def test_the_written_file_loads_to_the_defaults_and_shows_every_key(tmp_path: Path) -> None:
    text = default_toml("east", "data", zookeeper={"port": 2190}, catalog={"spark": {"a.b": 'quo"ted'}})
    config = load(write(tmp_path, text), environ={})
    assert config == load(
        None,
        {
            "cluster": {"name": "east", "data_dir": tmp_path / "data"},
            "zookeeper": {"port": 2190},
            "catalog": {"spark": {"a.b": 'quo"ted'}},
        },
        {},
    )
    commented = "\n".join(
        line.removeprefix("# ") if " = " in line and "[" not in line[:3] else line for line in text.split("\n")
    )
    shown = tomllib.loads(commented)
    assert {section: set(keys) for section, keys in shown.items()} == {
        section: set(getattr(config, section).model_fields_set | set(type(getattr(config, section)).model_fields))
        for section in Config.model_fields
    }
    assert load(write(tmp_path, commented), environ={}).model_copy(update={"ledger": config.ledger}) == config


def test_a_configuration_can_be_sent_to_another_process() -> None:
    config = load(None, {"cluster": {"name": "east"}}, {})
    assert pickle.loads(pickle.dumps(config)) == config


def test_secrets_are_not_in_what_python_prints_of_it(tmp_path: Path) -> None:
    secret: dict[str, dict[str, object]] = {
        "ledger": {"url": "postgresql://u:hush@db/x?sslmode=require"},
        "catalog": {"spark": {"password": "hush"}},
    }
    assert "hush" not in repr(load(None, {**secret, "cluster": {"name": "east"}}, {}))
    wrong: dict[str, dict[str, object]] = {"cluster": {"name": "east"}, "catalog": {"spark": {"password": ["hush"]}}}
    assert "hush" not in problems_of(None, wrong)


@pytest.mark.parametrize(("text", "address"), [("h:1", ("h", 1)), ("[::1]:80", ("::1", 80))])
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["h", ":1", "h:x", "h:70000", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        split_address(text)


def test_reading_it_starts_neither_spark_nor_arrow() -> None:
    code = "import sys, replication.config; print(sorted({'pyspark', 'pyarrow', 'grpc'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_hosts_that_share_a_ledger_say_where_they_share_tables() -> None:
    shared: dict[str, dict[str, object]] = {
        "cluster": {"name": "west"},
        "ledger": {"url": "postgresql://u@db/west?sslmode=require"},
    }
    assert "catalog.warehouse: missing; hosts share the ledger" in problems_of(None, shared)
    config = load(None, {**shared, "catalog": {"warehouse": "file:///mnt/shared/west"}}, {})
    assert config.warehouse_dir == Path("/mnt/shared/west") and config.shares_ledger
    assert not load(None, {**shared, "replay": {"enabled": False}}, {}).catalog.warehouse
    alone = load(None, {"cluster": {"name": "west"}, "ledger": {"url": "sqlite:////x/ledger.db"}}, {})
    assert not alone.shares_ledger and alone.warehouse.startswith("file:///")


CANARY = "postgresql+psycopg://u:canary-5a1e@127.0.0.1/east"


@pytest.mark.parametrize(
    "secret",
    [
        f"[ledger]\nurl = '{CANARY}'\n",
        "[catalog]\npyiceberg = {'s3.secret-access-key' = 'canary-5a1e'}\n",
        "[catalog]\nspark = {'password' = 'canary-5a1e'}\n",
    ],
)
def test_a_file_with_a_password_that_others_can_read_is_refused_with_the_command(tmp_path: Path, secret: str) -> None:
    file = write(tmp_path, f"[cluster]\nname = 'east'\n{secret}[replay]\nenabled = false\n")
    file.chmod(0o640)
    said = problems_of(file)
    assert f"chmod 600 {file}" in said and "canary" not in said
    file.chmod(0o600)
    assert load(file, environ={}).cluster.name == "east"
    file.write_text("[cluster]\nname = 'east'\n")
    file.chmod(0o644)
    assert (
        load(file, environ={"WALSHIP_LEDGER_URL": CANARY, "WALSHIP_CATALOG_WAREHOUSE": "s3://b"}).ledger_url == CANARY
    )


@pytest.mark.parametrize("section", ["tls", "zookeeper"])
def test_a_key_that_others_can_read_is_refused_with_the_command(tmp_path: Path, section: str) -> None:
    for name in ("ca.pem", "key.pem"):
        (tmp_path / name).touch(0o600)
    files = f"[cluster]\nname = 'east'\n[{section}]\nca = 'ca.pem'\ncert = 'ca.pem'\nkey = 'key.pem'\n"
    file = write(tmp_path, files)
    assert load(file, environ={}).cluster.name == "east"
    (tmp_path / "key.pem").chmod(0o604)
    assert f"{section}.key: " in (said := problems_of(file)) and f"chmod 600 {tmp_path / 'key.pem'}" in said


def test_servers_beyond_loopback_are_reached_over_tls_or_plain_text_is_asked_for() -> None:
    far = {"embedded": False, "servers": "localhost:2181,zk1:2181"}
    overrides: dict[str, dict[str, object]] = {
        "cluster": {"name": "east"},
        "zookeeper": far,
        "replay": {"enabled": False},
    }
    assert "zookeeper.servers: zk1 is not loopback" in problems_of(None, overrides)
    load(None, {**overrides, "tls": {"allow_plaintext": True}}, {})
    load(None, {**overrides, "zookeeper": {**far, "servers": "127.0.0.1:2181,[::1]:2181,127.0.0.2,[::1]"}}, {})
    overrides = {"cluster": {"name": "east"}, "replay": {"enabled": False}}
    third = {"lease": "witness", "witness": "127.0.0.1:2181,third:2181/witness"}
    assert "failover.witness: third is not loopback" in problems_of(None, {**overrides, "failover": third})
    load(None, {**overrides, "failover": third, "tls": {"allow_plaintext": True}}, {})
    load(None, {**overrides, "failover": {**third, "witness": "127.0.0.1:2181/witness"}}, {})
    for url, said in (
        ("postgresql://u@db/east", "ledger.url: db is not loopback"),
        ("postgresql://u@db/east?sslmode=prefer", "sslmode=verify-full"),
        ("postgresql://u@/east?host=10.0.0.1", "ledger.url: 10.0.0.1 is not loopback"),
        ("postgresql://u@127.0.0.1/east?host=10.0.0.1", "ledger.url: 10.0.0.1 is not loopback"),
        ("postgresql://u@/east?host=/run/x&hostaddr=10.0.0.1", "ledger.url: 10.0.0.1 is not loopback"),
        ("postgresql+psycopg://u@/e?host=127.0.0.1:1&host=db:5432", "ledger.url: db is not loopback"),
    ):
        assert said in problems_of(None, {**overrides, "ledger": {"url": url}})
        load(None, {**overrides, "ledger": {"url": url}, "tls": {"allow_plaintext": True}}, {})
    for url in (
        "postgresql://u@db/east?sslmode=verify-full",
        "postgresql://u@/e?host=/run/x",
        "postgresql://127.0.0.1/e",
    ):
        load(None, {**overrides, "ledger": {"url": url}}, {})
    for engine, url in (("pyiceberg", "postgresql+psycopg://u@db/x"), ("spark", "jdbc:postgresql://db:5432/x")):
        plain = {**overrides, "catalog": {engine: {"uri": url}}}
        assert f"catalog.{engine}.uri: db is not loopback" in problems_of(None, plain)
        load(None, {**plain, "tls": {"allow_plaintext": True}}, {})
        for uri in (f"{url}?sslmode=verify-full", "thrift://db:9083", "https://["):
            load(None, {**overrides, "catalog": {engine: {"uri": uri}}}, {})


def test_a_home_that_is_not_known_is_named(tmp_path: Path) -> None:
    assert "~nosuchuser/x" in problems_of(write(tmp_path, "[cluster]\nname = 'east'\ndata_dir = '~nosuchuser/x'\n"))
