"""Filters: ordered rules that include or exclude files by name, size and age; the first that matches decides."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.errors import RequestError

_REGEX = "regex:"


@dataclass(frozen=True, slots=True)
class FilterRule:
    """Includes or excludes what a pattern matches.

    A pattern is a glob: ``*``, ``?`` and ``[!a]`` stay in one folder, ``**`` does not. With a ``/`` inside or in front
    it is matched from the root on, else against any part. What matches a folder is about all below it; with ``/`` at
    the end it is about folders only. ``regex:`` in front makes it a regular expression, searched in the whole path.
    """

    include: bool
    pattern: str

    def __post_init__(self) -> None:
        """Refuse a pattern that cannot be read."""
        _compiled(self.pattern)

    def matches(self, path: RelativePath, *, is_folder: bool = False) -> bool:
        """Whether the rule is about this file or folder, by its own name or that of a folder above it."""
        return _compiled(self.pattern).search(f"{path}/" if is_folder else path) is not None


@dataclass(frozen=True, slots=True)
class Filters:
    """Which files are meant.

    Attributes:
        rules: in order; the first that matches decides. If none does, a file is meant, unless all rules include.
        size_min: smaller files are not meant.
        size_max: larger files are not meant.
        newer_than_ns: files whose timestamp is older are not meant; nanoseconds since 1970.
        older_than_ns: files whose timestamp is newer are not meant.
    """

    rules: tuple[FilterRule, ...] = ()
    size_min: int = 0
    size_max: int | None = None
    newer_than_ns: int | None = None
    older_than_ns: int | None = None

    def takes(self, file: FileAttributes) -> bool:
        """Whether a file is meant."""
        if not self.size_min <= file.size or (self.size_max is not None and file.size > self.size_max):
            return False
        if file.timestamp_ns is not None:
            if self.newer_than_ns is not None and file.timestamp_ns < self.newer_than_ns:
                return False
            if self.older_than_ns is not None and file.timestamp_ns > self.older_than_ns:
                return False
        return self.names(file.path)

    def names(self, path: RelativePath) -> bool:
        """Whether the rules mean a path, whatever its size and time."""
        for rule in self.rules:
            if rule.matches(path):
                return rule.include
        return not self.rules or not all(rule.include for rule in self.rules)

    def enters(self, folder: RelativePath) -> bool:
        """Whether files below a folder may be meant: no rule excludes all of them."""
        for rule in self.rules:
            if rule.include:
                return True
            if rule.matches(folder, is_folder=True):
                return False
        return True


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        if pattern.startswith(_REGEX):
            return re.compile(pattern.removeprefix(_REGEX))
        return re.compile(_translated(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        raise RequestError(f"the pattern {pattern!r} cannot be read: {error}", "See walship copy --help") from None


def _translated(pattern: str) -> str:
    """A glob as a regular expression over a whole path."""
    body = pattern.rstrip("/")
    if not body:
        raise RequestError(f"the pattern {pattern!r} is empty", "See walship copy --help")
    anchored = "/" in body
    out, at = "", 0
    body = body.lstrip("/")
    while at < len(body):
        if body.startswith("**/", at):
            out, at = out + "(?:[^/]+/)*", at + 3
        elif body.startswith("**", at):
            out, at = out + ".*", at + 2
        elif body[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif body[at] == "?":
            out, at = out + "[^/]", at + 1
        elif body[at] == "[" and (end := body.find("]", at + 2)) > 0:
            inside = re.sub(r"[\\\[&|~]", r"\\\g<0>", body[at + 1 : end])
            inside = "^" + inside[1:] if inside[0] == "!" else inside
            out, at = out + f"(?!/)[{inside}]", end + 1
        else:
            out, at = out + re.escape(body[at]), at + 1
    end_of_part = "/" if pattern.endswith("/") else "(?:/|$)"
    return f"{'^' if anchored else '(?:^|/)'}{out}{end_of_part}"
