"""From options as they are typed to a copy configuration."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from replication.core.copying.configuration import CopyConfiguration, Existing, Grouping, parse_preserve
from replication.core.copying.conversions import check_conversions
from replication.core.copying.filters import FilterRule, Filters
from replication.core.copying.names import RelativePath
from replication.errors import RequestError

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def modes(*, update: bool, overwrite: bool, skip: bool) -> Existing:
    """Which files are replaced; RequestError if two ways are asked for."""
    given = {Existing.UPDATE: update, Existing.OVERWRITE: overwrite, Existing.SKIP: skip}
    asked = [mode for mode, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise RequestError("--update, --overwrite and --skip exclude each other", "Give one of them")
    return asked[0] if asked else Existing.CHANGED


def configuration_of(
    *,
    existing: Existing,
    rules: tuple[Sequence[str], Sequence[str], Sequence[str]],
    sizes: tuple[str, str],
    ages: tuple[str, str],
    preserve: str,
    backup_dir: str,
    grouping: str,
    given: Mapping[str, Any],
    numbers: Mapping[str, str],
) -> CopyConfiguration:
    """The configuration of a copy; RequestError for a value that cannot be read.

    Args:
        existing: which files are replaced.
        rules: of ``--filter``, ``--exclude`` and ``--include``.
        sizes: the least and the most bytes, or empty texts.
        ages: files must be newer than the first and older than the second.
        preserve: as ``--preserve`` has it.
        backup_dir: below the target.
        grouping: of file sets.
        given: other attributes.
        numbers: other attributes that are sizes in bytes; empty texts leave the defaults.
    """
    now_ns = time.time_ns()
    filters = Filters(
        _rules(*rules),
        size(sizes[0]) if sizes[0] else 0,
        size(sizes[1]) if sizes[1] else None,
        now_ns - age_ns(ages[0]) if ages[0] else None,
        now_ns - age_ns(ages[1]) if ages[1] else None,
    )
    return CopyConfiguration(
        existing=existing,
        filters=filters,
        preserve=parse_preserve(preserve),
        backup_dir=RelativePath(backup_dir.strip("/")) if backup_dir else None,
        grouping=Grouping(grouping),
        **given,
        **dict[str, Any]((name, size(text)) for name, text in numbers.items() if text),
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
        raise RequestError(f"{text!r} is no size", "Write for example 65536, 64KiB or 1.5GB") from None


def age_ns(text: str) -> int:
    """An age in nanoseconds: ``90s``, ``30m``, ``12h``, ``7d``, ``2w``."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is no age", "Write for example 90s, 30m, 12h, 7d or 2w")
    return int(float(found[1]) * _SECONDS[found[2]] * 1e9)


def declared(options: Mapping[str, Any]) -> CopyConfiguration:
    """The configuration out of a dataset's options, which have the names of ``walship copy``'s.

    Raises:
        RequestError: one is unknown, or cannot be read.
    """
    left = dict(options)

    def taken(name: str, default: Any) -> Any:
        found = left.pop(name, default)
        if not isinstance(found, type(default)) or isinstance(found, bool) is not isinstance(default, bool):
            raise RequestError(f"the option {name} cannot be {found!r}", "See walship copy --help")
        return found

    def texts(name: str) -> list[str]:
        found = left.pop(name, [])
        return [found] if isinstance(found, str) else [str(text) for text in found]

    flags = ("recursive", "follow-links", "delete", "verify", "versions")
    numbers = {"max-delete": "delete_max", "threads": "threads", "attempts": "attempts"}
    numbers |= {"files-per-split": "files_per_split", "replication": "replication"}
    given: dict[str, Any] = {"compare_content": taken("checksum", False)}
    given["conversions"] = check_conversions(texts("convert"))
    given |= {name.replace("-", "_"): taken(name, name == "recursive") for name in flags}
    given |= {field: taken(name, 0) for name, field in numbers.items() if name in left}
    sizes = {"limit": "bytes_per_s", "range-size": "range_bytes", "block-size": "block_size"}
    made = configuration_of(
        existing=modes(update=taken("update", False), overwrite=taken("overwrite", False), skip=taken("skip", False)),
        rules=(texts("filter"), texts("exclude"), texts("include")),
        sizes=(str(left.pop("min-size", "")), str(left.pop("max-size", ""))),
        ages=(taken("newer-than", ""), taken("older-than", "")),
        preserve=taken("preserve", "times,permissions"),
        backup_dir=taken("backup-dir", ""),
        grouping=taken("file-set", "directory"),
        given=given,
        numbers={field: str(left.pop(name)) for name, field in sizes.items() if name in left},
    )
    if left:
        raise RequestError(f"the options {', '.join(sorted(left))} are unknown", "See walship copy --help")
    return made
