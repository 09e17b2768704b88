"""Which cluster a command means."""

import errno
import os

import pytest

from replication.errors import ConfigError
from shell.cli.find import clusters_below, find_cluster


@pytest.fixture
def folder(tmp_path):
    for name in ("east", "west"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "walship.toml").write_text(f'[cluster]\nname = "{name}"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    (tmp_path / "broken.toml").write_text("[cluster\n")
    return tmp_path


def test_clusters_are_found_two_levels_down_and_other_toml_files_are_passed_over(folder):
    assert [found.name for found in clusters_below(folder)] == ["east", "west"]


def test_a_pipe_with_such_a_name_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.toml")
    assert len(clusters_below(folder)) == 2


def test_a_folder_that_cannot_be_listed_is_passed_over(folder, monkeypatch):
    """As one beneath which a mount has died."""
    (folder / "dead").mkdir()
    listed = os.scandir

    def scandir(path="."):
        if os.fspath(path).endswith("dead"):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [found.name for found in clusters_below(folder)] == ["east", "west"]


def test_a_name_finds_its_file(folder):
    assert find_cluster("west", {}, folder).target.endswith("west/walship.toml")


def test_the_environment_says_which_when_the_command_line_does_not(folder):
    assert find_cluster(None, {"WALSHIP_CLUSTER": "east"}, folder).name == "east"
    assert find_cluster("west", {"WALSHIP_CLUSTER": "east"}, folder).name == "west"


def test_the_only_cluster_needs_no_naming(folder):
    assert find_cluster(None, {}, folder / "site" / "east").name == "east"


def test_several_clusters_and_none_named_lists_them(folder):
    with pytest.raises(ConfigError, match=r"east .*west"):
        find_cluster(None, {}, folder)


def test_no_cluster_says_how_to_make_one(tmp_path):
    with pytest.raises(ConfigError, match="walship init"):
        find_cluster(None, {}, tmp_path)


def test_an_unknown_name_is_refused(folder):
    with pytest.raises(ConfigError, match="north"):
        find_cluster("north", {}, folder)


def test_the_current_folder_may_be_named(folder):
    (folder / "walship.toml").write_text('[cluster]\nname = "here"\n')
    assert find_cluster(".", {}, folder).name == "here"


def test_a_file_is_taken_as_it_is(folder):
    found = find_cluster("site/west/walship.toml", {}, folder)
    assert (found.name, found.target) == ("west", str(folder / "site/west/walship.toml"))


def test_a_folder_stands_for_the_file_that_init_wrote_there(folder):
    found = find_cluster("site/east", {}, folder)
    assert found.name == "east" and found.target.endswith("site/east/walship.toml")
    with pytest.raises(ConfigError, match=r"there is no configuration file .*site/walship.toml"):
        find_cluster("./site", {}, folder)


def test_a_zookeeper_address_is_taken_as_it_is(folder):
    found = find_cluster("zk1:2181,zk2:2181/walship/east", {}, folder)
    assert (found.name, found.target) == ("east", "zk1:2181,zk2:2181/walship/east")
