"""From options as they are typed, or declared in a file, to a copy configuration."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from replication.core.copying.configuration import CopyConfiguration, Existing, Grouping, parse_preserve
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.converters.plugins import conversions_of
from replication.errors import RequestError, UnsafeNameError
from shell.copying.groups import FileOptions, ReplaceOptions, SpeedOptions, VersionOptions, WriteOptions

_G = TypeVar("_G")
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_AGE_MAX_NS = 100 * 366 * 86400 * 10**9
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def configuration_of(
    files: FileOptions,
    replacing: ReplaceOptions,
    writing: WriteOptions,
    speed: SpeedOptions,
    versions: VersionOptions | None = None,
) -> CopyConfiguration:
    """The configuration of a copy; RequestError for a value that cannot be read."""
    return CopyConfiguration(
        existing=_mode(replacing),
        compare_content=replacing.checksum,
        recursive=files.recursive,
        follow_links=files.follow_links,
        filters=_filters(files),
        preserve=parse_preserve(writing.preserve),
        grouping=Grouping(writing.file_set),
        delete=replacing.delete,
        delete_max=replacing.max_delete,
        backup_dir=_backup(replacing.backup_dir) if replacing.backup_dir else None,
        verify=writing.verify,
        replication=writing.replication,
        block_size=size(writing.block_size) if writing.block_size else None,
        range_bytes=size(speed.range_size),
        files_per_split=speed.files_per_split,
        threads=speed.threads,
        limit=speed.limit,
        conversions=conversions_of(writing.convert or []),
        attempts=speed.attempts,
        register=writing.register,
        spark=speed.spark,
        versions=versions is not None and versions.versions,
    )


def _mode(options: ReplaceOptions) -> Existing:
    """Which files are replaced; RequestError if two ways are asked for."""
    given = {Existing.UPDATE: options.update, Existing.OVERWRITE: options.overwrite, Existing.SKIP: options.skip}
    asked = [mode for mode, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise RequestError("--update, --overwrite and --skip exclude each other", "Give one of them")
    return asked[0] if asked else Existing.CHANGED


def _backup(text: str) -> RelativePath:
    """The folder of backups; RequestError if it is the target itself, where nothing would be kept, or outside."""
    hint = "Name a folder below it, such as replaced"
    if not (folder := text.rstrip("/")):
        raise RequestError(f"--backup-dir {text} is the target itself", hint)
    try:
        path = RelativePath(folder)
    except UnsafeNameError:
        raise RequestError(f"--backup-dir {text} is no folder below the target", hint) from None
    if path.partition("/")[0] == STAGING:
        raise RequestError(f"--backup-dir {text} is where copies keep their own files", hint)
    return path


def _filters(options: FileOptions) -> Filters:
    now_ns = time.time_ns()
    return Filters(
        _rules(options.filters or (), options.exclude or (), options.include or ()),
        size(options.min_size) if options.min_size else 0,
        size(options.max_size) if options.max_size else None,
        now_ns - age_ns(options.newer_than) if options.newer_than else None,
        now_ns - age_ns(options.older_than) if options.older_than else None,
    )


def _rules(filters: Sequence[str], excludes: Sequence[str], includes: Sequence[str]) -> tuple[FilterRule, ...]:
    made = []
    for text in filters:
        if text[:2] not in ("+ ", "- "):
            raise RequestError(f"the filter {text!r} begins with neither '+ ' nor '- '", "See walship copy --help")
        made.append(FilterRule(text[0] == "+", text[2:].strip()))
    made += [FilterRule(False, text) for text in excludes]
    made += [FilterRule(True, text) for text in includes]
    return (*made, FilterRule(False, "**")) if includes else tuple(made)


def size(text: str) -> int:
    """Bytes: ``65536``, ``64KiB``, ``1.5 GB``."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text.removesuffix("/s")))
    except ValidationError:
        raise RequestError(f"{text!r} is not a size", "Write for example 65536, 64KiB or 1.5GB") from None


def age_ns(text: str) -> int:
    """An age in nanoseconds: ``90s``, ``30m``, ``12h``, ``7d``, ``2w``."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is not an age", "Write for example 90s, 30m, 12h, 7d or 2w")
    age = float(found[1]) * _SECONDS[found[2]] * 1e9
    if age > _AGE_MAX_NS:
        raise RequestError(f"{text!r} is more than a hundred years", "Write for example 90s, 30m, 12h, 7d or 2w")
    return int(age)


def declared(options: Mapping[str, Any]) -> CopyConfiguration:
    """The configuration out of a dataset's options, which have the names of ``walship copy``'s.

    Raises:
        RequestError: one is unknown, or cannot be read.
    """
    left = dict(options)
    made = configuration_of(
        _taken(left, FileOptions),
        _taken(left, ReplaceOptions),
        _taken(left, WriteOptions),
        _taken(left, SpeedOptions),
        _taken(left, VersionOptions),
    )
    if left:
        raise RequestError(
            f"there is no option {' and no '.join(sorted(left))}",
            "Name them as walship copy --help does, without --: max-delete",
        )
    return made


def _taken(left: dict[str, Any], group: type[_G]) -> _G:
    """A group with the options that are in ``left``, which are taken out."""
    hints = get_type_hints(group, include_extras=True)
    given = {}
    for field in fields(group):  # type: ignore[arg-type]
        kind, option = get_args(hints[field.name])
        name = str(option.default).partition("/")[0].removeprefix("--")  # where Typer keeps an option's first name
        if name in left:
            value = given[field.name] = _checked(name, left.pop(name), kind)
            if option.min is not None and value is not None and value < option.min:
                raise RequestError(f"the option {name} cannot be {value}", f"Give at least {option.min}")
            if option.max is not None and value is not None and value > option.max:
                raise RequestError(f"the option {name} cannot be {value}", f"Give at most {option.max}")
    return group(**given)


def _text(value: Any) -> str:
    """A declared value as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _checked(name: str, value: Any, kind: Any) -> Any:
    """A declared value as its option has it: a size may be a number, and one of several a text."""
    if kind == list[str] | None:
        found = value if isinstance(value, list | tuple) else [value]
        fits, words = all(isinstance(each, str | int | float) for each in found), "a text, or a list of such"
        value = [_text(each) for each in found] if fits else value
    elif kind is str:
        fits, words = isinstance(value, str | int | float) and not isinstance(value, bool), "a text"
        value = str(value) if fits else value
    elif get_origin(kind) is Literal:
        fits, words = value in get_args(kind), f"one of {', '.join(get_args(kind))}"
    elif kind is bool:
        fits, words = isinstance(value, bool), "true or false, without quotes"
    else:
        fits, words = type(value) is int, "a whole number, without quotes"
    if not fits:
        raise RequestError(f"the option {name} cannot be {value!r}", f"Write {words}")
    return value
