"""Definitions of datasets in a TOML file: a section ``[dataset.NAME]`` each, which people may edit, too."""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import date, time
from pathlib import Path
from typing import Any

from replication.core.ids import check_name
from replication.datasets.finders.plugins import finder_of
from replication.datasets.stores.open import is_local, local_path
from replication.errors import ConfigError, FormatError, RequestError
from replication.files.local import path_errors, write_whole
from replication.log import has_secrets, redact
from replication.permissions import refuse_exposed


@dataclass(frozen=True, slots=True)
class DatasetDefinition:
    """What is copied where.

    Attributes:
        name: of the dataset.
        source: the address of the store where it is.
        target: the address of the store where it goes.
        finder: the name of the finder that finds its datasets in the source.
        properties: of the finder.
        options: of the copy, as ``walship copy`` has them without ``--``: ``{"delete": true, "limit": "50MiB"}``.
        source_options: of fsspec's driver. ``$NAME`` stands for a variable of the environment, so that no password
            is in the file.
        target_options: as ``source_options``.
        timeline: the address of the timeline that is told of every file, as ``[timeline] url`` has it; "" for none.
        priority: datasets with a higher one run first.
        after: a dataset of the timeline; after the first run it runs only when that one has changed. "" for none.
    """

    name: str
    source: str
    target: str
    finder: str = "folder"
    properties: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    source_options: Mapping[str, Any] = field(default_factory=dict)
    target_options: Mapping[str, Any] = field(default_factory=dict)
    timeline: str = ""
    priority: int = 0
    after: str = ""

    def check(self) -> DatasetDefinition:
        """The definition, if its parts fit.

        Raises:
            RequestError: the finder is unknown, or an address holds a password.
            FormatError: the name cannot be one.
        """
        check_name(self.name, "dataset")
        finder_of(self.finder)
        self.check_timeline("Give --cluster")
        for url in (self.source, self.target):
            if redact(url) != url:
                raise RequestError(
                    f"the address {redact(url)} holds a password, which would be kept in a file",
                    "Give it as an option with a variable of the environment: --source-option password=$NAME",
                )
        return self

    def check_timeline(self, hint: str = "Write its timeline, or add it anew with --cluster") -> None:
        """Raise RequestError if it needs a timeline and has none."""
        if self.after and not self.timeline:
            raise RequestError(f"a dataset follows another by a timeline, and {self.name} has none", hint)
        if self.options.get("versions") is True and not self.timeline:
            raise RequestError(f"versions are kept on a cluster's timeline, and dataset {self.name} has none", hint)


class DatasetFile:
    """The TOML file of definitions. It need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[DatasetDefinition]:
        """Every definition, by name. ConfigError if the file is not of definitions, or shows others a password."""
        found = self._parsed(self._text())
        for each in found:
            given = (*each.source_options.items(), *each.target_options.items())
            plain = [{name: value} for name, value in given if not str(value).startswith("$")]
            if has_secrets([plain, each.source, each.target, each.timeline]):
                refuse_exposed(self.path)
        return found

    def get(self, name: str) -> DatasetDefinition:
        """One definition; RequestError if there is none of that name."""
        for each in self.all():
            if each.name == name:
                return each
        raise RequestError(f"there is no dataset {name} in {self.path}", "See walship dataset list")

    def target_options(self, name: str, root: str) -> dict[str, Any]:
        """The options of the target of a dataset, if it goes to ``root``. ConfigError as ``all`` and ``resolved``."""
        for each in self.all() if not is_local(root) else ():  # which needs none
            if each.name == name and redact(each.target.rstrip("/")) == root:
                return resolved(each.target_options)
        return {}

    def add(self, definition: DatasetDefinition) -> None:
        """Add a definition, durably; RequestError if there is one of that name, or it does not fit."""
        self._with(definition)  # what is refused leaves no lock file
        with self._locked():
            self._write(self._with(definition))

    def _with(self, definition: DatasetDefinition) -> str:
        text = self._text()
        if any(each.name == definition.name for each in self._parsed(text)):
            raise RequestError(f"there is a dataset {definition.name} already", "Remove it first, or edit the file")
        added = "\n".join([*([text] if text else []), _section(definition.check())])
        try:
            added.encode()
        except UnicodeEncodeError:
            raise RequestError(f"a value of dataset {definition.name} is no UTF-8", "Give another one") from None
        self._parsed(added)
        return added

    def remove(self, name: str) -> None:
        """Remove a definition, durably; what was copied stays. The file is written anew, without comments.

        Raises:
            RequestError: there is none of that name.
        """
        self.get(name)
        with self._locked():
            self.get(name)
            self._write("\n".join(_section(each) for each in self.all() if each.name != name))

    def _text(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(error) from None

    def _parsed(self, text: str) -> list[DatasetDefinition]:
        try:
            read = tomllib.loads(text)
            if others := sorted(read.keys() - {"dataset"}):
                raise TypeError(f"[{others[0]}] is unknown: each dataset is a section [dataset.NAME]")
            found = [_of_section(name, section) for name, section in _sections(read.get("dataset", {}))]
        except (tomllib.TOMLDecodeError, TypeError, FormatError) as error:
            raise self._unreadable(error) from None
        return sorted(found, key=lambda each: each.name)

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.path} cannot be read: {error}", "Correct it; see walship dataset add")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the file."""
        with path_errors(str(self.path.parent), "write to"):
            lock = self.path.with_name(f".{self.path.name}.lock").open("w")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self, text: str) -> None:
        write_whole(self.path, text.encode(), mode=0o600)


_KINDS: dict[str, tuple[type, str]] = {"str": (str, "a text in quotes"), "int": (int, "a whole number")}
_TABLE = Mapping, "a table, such as {name = value}"


def _sections(found: Any) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(found, Mapping) or not all(isinstance(each, Mapping) for each in found.values()):
        raise TypeError("dataset is no section with a name: write [dataset.NAME], and source and target below it")
    return list(found.items())


def _of_section(name: str, section: Mapping[str, Any]) -> DatasetDefinition:
    """The definition that a section of the file holds.

    Raises:
        TypeError: it lacks a value, or has one that does not fit.
        FormatError: the name cannot be one.
    """
    check_name(name, "dataset")
    kinds = {each.name: _KINDS.get(str(each.type), _TABLE) for each in fields(DatasetDefinition) if each.name != "name"}
    if unknown := sorted(section.keys() - kinds.keys()):
        raise TypeError(f"{unknown[0]} of dataset {name} is unknown: it may have {', '.join(kinds)}")
    if missing := [each for each in ("source", "target") if each not in section]:
        raise TypeError(f"{missing[0]} of dataset {name} is missing")
    for key, value in section.items():
        kind, words = kinds[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{key} of dataset {name} cannot be {json.dumps(value, default=str)}: write {words}")
    for key in ("source", "target", "timeline"):
        if (path := section.get(key, "")) and is_local(path) and not local_path(path).startswith("/"):
            raise TypeError(f"{key} of dataset {name} cannot be {redact(path)}: write the whole path, from / on")
    texts = dict(section.get("properties", {}))
    for key, value in texts.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise TypeError(f"{key} in properties of dataset {name} cannot be {json.dumps(value, default=str)}")
        texts[key] = str(value)
    return DatasetDefinition(name=name, **{**section, "properties": texts})


def specification(definition: DatasetDefinition) -> dict[str, Any]:
    """The definition for others to read: of drivers' options only those are shown that name a variable."""
    shown = asdict(definition)
    shown |= {name: redact(shown[name]) for name in ("source", "target", "timeline")}
    for name in ("source_options", "target_options"):
        shown[name] = {
            option: value if isinstance(value, str) and value.startswith("$") else "…"
            for option, value in shown[name].items()
        }
    return shown


def resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """Driver options with the variables of the environment put in; ConfigError for one that is not set."""
    found = {}
    for name, value in options.items():
        if isinstance(value, str) and value.startswith("$"):
            if value[1:] not in os.environ:
                raise ConfigError(f"the variable {value[1:]} is not set", f"Set it; option {name} is in it")
            value = os.environ[value[1:]]
        found[name] = value
    return found


def _section(definition: DatasetDefinition) -> str:
    fields = {name: value for name, value in asdict(definition).items() if name != "name" and value not in ("", {}, 0)}
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    return "\n".join([f"[dataset.{json.dumps(definition.name)}]", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value)  # inf, which JSON does not have
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
