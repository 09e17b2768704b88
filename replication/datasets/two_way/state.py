"""What the two sides of a sync agreed on when it last ended, and what they have now: SQLite files.

The agreed files are kept with the second side. The listing is a file of SQLite's own that is gone when it is closed, so
a sync of any number of files takes the same memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.core.copying.two_way import Agreed, SideState, SyncAction
from replication.datasets.copying.database import Database

_TABLES = """
CREATE TABLE IF NOT EXISTS agreed (path TEXT PRIMARY KEY, first_size INTEGER, first_ns INTEGER,
  second_size INTEGER, second_ns INTEGER) WITHOUT ROWID;
ATTACH '' AS listing;
CREATE TABLE listing.files (path TEXT PRIMARY KEY, folder TEXT, size INTEGER, first TEXT, second TEXT, action TEXT)
  WITHOUT ROWID;
CREATE TABLE listing.others (path TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_SIDES = ("first", "second")
_Row = tuple[str, str | None, str | None, int | None, int | None, int | None, int | None]
_PAGE = 1000
#: Whether a path is below another one: 0 follows /. With + before its action SQLite finds it by path, not by action:
#: else it looks at all others for each.
_BELOW = "b.path > a.path || '/' AND b.path < a.path || '0'"
_STAYING = (SyncAction.NOTHING, SyncAction.TO_SECOND, SyncAction.TO_FIRST, SyncAction.COMPARE)

#: What is done with a path, from what the first side, the second side and the last agreement have.
Decide = Callable[[SideState | None, SideState | None, Agreed | None], SyncAction]

#: Whether filters mean a path, whatever is there.
IsMeant = Callable[[RelativePath], bool]


class SyncState:
    """The agreed files of one pair of addresses, and one listing of both. Safe for threads; raises as ``Database``.

    At ``:memory:`` nothing was agreed on.
    """

    def __init__(self, path: Path | str) -> None:
        without = "the next run compares both sides, and removes nothing"
        self._db = Database(path, _TABLES, "the state of the sync", without)

    def listed(self, side: int, files: Sequence[FileAttributes], others: Iterable[RelativePath]) -> None:
        """Note files of a side, and paths there that are not files or are not meant."""
        name = _SIDES[side]
        rows = [(file.path, file.path.parent, file.size, json.dumps(file.to_json())) for file in files]
        with self._db.changing() as db:
            db.executemany(
                f"INSERT INTO listing.files (path, folder, size, {name}) VALUES (?, ?, ?, ?)"
                f" ON CONFLICT (path) DO UPDATE SET size = max(size, excluded.size), {name} = excluded.{name}",
                rows,
            )
            db.executemany("INSERT OR IGNORE INTO listing.others VALUES (?)", [(path,) for path in others])

    def is_lost(self, side: int, is_meant: IsMeant) -> bool:
        """Whether a side has no file although both agreed on some that are meant."""
        if self._db.rows(f"SELECT 1 FROM listing.files WHERE {_SIDES[side]} IS NOT NULL LIMIT 1"):
            return False
        after = ""
        while rows := self._db.rows("SELECT path FROM agreed WHERE path > ? ORDER BY path LIMIT ?", (after, _PAGE)):
            after = rows[-1][0]
            if any(is_meant(RelativePath(path)) for (path,) in rows):
                return True
        return False

    def decide(self, action_of: Decide, is_meant: IsMeant) -> Counter[str]:
        """Decide on each path that is meant, and neither is, nor lies below, what is not a file.

        Returns:
            How many got which action.
        """
        counts: Counter[str] = Counter()
        self._db.change("INSERT OR IGNORE INTO listing.files (path) SELECT path FROM agreed")
        has_others = bool(self._db.rows("SELECT 1 FROM listing.others LIMIT 1"))
        after = ""
        while rows := self._page_of_all(after):
            after, decided = rows[-1][0], []
            for path, first, second, a, a_ns, b, b_ns in rows:
                checked = RelativePath(path)  # the state may be forged
                if (has_others and self._is_left_out(checked)) or (first is second is None and not is_meant(checked)):
                    continue
                states = [SideState.of(_file(text)) if text is not None else None for text in (first, second)]
                known = Agreed(SideState(a, a_ns), SideState(b, b_ns)) if a is not None and b is not None else None
                action = action_of(states[0], states[1], known)
                counts[action.value] += 1
                decided.append((action.name, path))
            with self._db.changing() as db:
                db.executemany("UPDATE listing.files SET action = ? WHERE path = ?", decided)
        self._db.change("CREATE INDEX listing.by_action ON files (action, folder, path)")
        return counts

    def _page_of_all(self, after: str) -> list[_Row]:
        return self._db.rows(
            "SELECT f.path, f.first, f.second, a.first_size, a.first_ns, a.second_size, a.second_ns"
            " FROM listing.files f LEFT JOIN agreed a ON a.path = f.path WHERE f.path > ? ORDER BY f.path LIMIT ?",
            (after, _PAGE),
        )

    def _is_left_out(self, path: RelativePath) -> bool:
        paths = list(path.with_folders())
        holes = ",".join("?" * len(paths))
        return bool(self._db.rows(f"SELECT 1 FROM listing.others WHERE path IN ({holes}) LIMIT 1", paths))

    def forget_gone(self) -> None:
        """Forget agreed files that were decided on, and that neither side has."""
        gone = "SELECT path FROM listing.files WHERE first IS NULL AND second IS NULL AND action IS NOT NULL"
        self._db.change(f"DELETE FROM agreed WHERE path IN ({gone})")

    def total(self, action: SyncAction) -> tuple[int, int]:
        """How many paths have an action, and the bytes of their larger sides."""
        totals = "SELECT count(*), total(size) FROM listing.files WHERE action = ?"
        ((count, size),) = self._db.rows(totals, (action.name,))
        return count, int(size)

    def files(self, action: SyncAction) -> Iterator[tuple[FileAttributes | None, FileAttributes | None]]:
        """The files of both sides that have an action, folder by folder."""
        at = ("", "")
        page = (
            "SELECT first, second, folder, path FROM listing.files"
            " WHERE action = ? AND (folder, path) > (?, ?) ORDER BY folder, path LIMIT ?"
        )
        while rows := self._db.rows(page, (action.name, *at, _PAGE)):
            at = rows[-1][2:]
            for first, second, *_ in rows:
                yield _file(first) if first else None, _file(second) if second else None

    def in_the_way(self, copied: SyncAction, removed: SyncAction, side: int) -> list[FileAttributes]:
        """Files of a side to be removed where a folder is to be copied, or below the path of a file that is."""
        pairs = f"SELECT {{}}.{_SIDES[side]} FROM listing.files a JOIN listing.files b ON {_BELOW} WHERE "
        rows = self._db.rows(
            f"{pairs.format('a')} a.action = :removed AND +b.action = :copied"
            f" UNION {pairs.format('b')} a.action = :copied AND +b.action = :removed",
            {"copied": copied.name, "removed": removed.name},
        )
        return [_file(text) for (text,) in rows]

    def leave_clashes(self) -> tuple[list[str], Counter[str]]:
        """Take the action from files with other files below their paths, and from those, if all of them would stay.

        Returns:
            Paths that are a file on one side and a folder on the other, with those below, some thousand at most; and
            how many files had which action.
        """
        actions = ",".join(f"'{action.name}'" for action in _STAYING)
        stays = f"action IN ({actions}) AND coalesce({{0}}first, {{0}}second) IS NOT NULL"  # one side has it
        below = f"{_BELOW} AND +b.{stays.format('b.')}"
        paths: list[str] = []
        taken: Counter[str] = Counter()
        with self._db.changing() as db:
            for (path,) in db.execute(
                f"SELECT path FROM listing.files a WHERE {stays.format('')}"
                f" AND EXISTS (SELECT 1 FROM listing.files b WHERE {below})"
            ).fetchall():
                meant = f"{stays.format('')} AND (path = :path OR path > :path || '/' AND path < :path || '0')"
                for name, action in db.execute(
                    f"SELECT path, action FROM listing.files WHERE {meant} ORDER BY path", {"path": path}
                ):
                    taken[SyncAction[action].value] += 1
                    if len(paths) < _PAGE:
                        paths.append(name)
                db.execute(f"UPDATE listing.files SET action = NULL WHERE {meant}", {"path": path})
        return paths, taken

    def leave_same_names(self, key: Callable[[str], str]) -> tuple[list[str], Counter[str]]:
        """Take the action from files whose paths have the same key; returns them as :meth:`leave_clashes`."""
        there = "first IS NOT NULL OR second IS NOT NULL"
        several = f"SELECT name_key(path) FROM listing.files WHERE {there} GROUP BY 1 HAVING count(*) > 1"
        with self._db.changing() as db:
            db.create_function("name_key", 1, key)
            found = db.execute(
                f"SELECT path, action FROM listing.files WHERE ({there}) AND name_key(path) IN ({several})"
                " AND action IS NOT NULL ORDER BY path"
            ).fetchall()
            db.executemany("UPDATE listing.files SET action = NULL WHERE path = ?", [(path,) for path, _ in found])
        taken = Counter(SyncAction[action].value for _, action in found)
        return [path for path, _ in found[:_PAGE]], taken

    def file(self, side: int, path: RelativePath) -> FileAttributes | None:
        """A file of a side as it was listed; None if it had none."""
        found = self._db.rows(f"SELECT {_SIDES[side]} FROM listing.files WHERE path = ?", (path,))
        return next((_file(text) for (text,) in found if text is not None), None)

    def is_free(self, path: RelativePath) -> bool:
        """Whether neither side has a file of a name."""
        return not self._db.rows("SELECT 1 FROM listing.files WHERE path = ?", (path,))

    def act(self, action: SyncAction, side: int, file: FileAttributes) -> None:
        """Give an action to a file of one side, which may be new."""
        self.listed(side, [file], ())
        self._db.change("UPDATE listing.files SET action = ? WHERE path = ?", (action.name, file.path))

    def change(self, agreed: Mapping[str, Agreed], gone: Iterable[str]) -> None:
        """Note agreed files and forget others.

        A power cut may undo the last notes. The next run then compares these files by content.
        """
        rows = [
            (path, each.first.size, each.first.timestamp_ns, each.second.size, each.second.timestamp_ns)
            for path, each in agreed.items()
        ]
        with self._db.changing() as db:
            db.executemany("INSERT OR REPLACE INTO agreed VALUES (?, ?, ?, ?, ?)", rows)
            db.executemany("DELETE FROM agreed WHERE path = ?", [(path,) for path in gone])

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()


def _file(text: str) -> FileAttributes:
    return FileAttributes.from_json(json.loads(text))
