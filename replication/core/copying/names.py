"""Names of files below a root: a type that no name can have which leaves the root or breaks a store's protocol.

Names come from foreign stores, manifests and archives. FTP and SFTP send them in lines of commands, shells and logs
show them. So a name with a control character is refused everywhere, whatever the store would take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from replication.errors import UnsafeNameError

#: C0, DEL and C1 control characters, line and paragraph separators, and marks that reorder text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BYTES_MAX = 4096
PART_BYTES_MAX = 255
FOLDERS_MAX = 900  # Python makes and removes deeper ones by calls that are too deep for it
_SHOWN_MAX = 200
#: Folder of a copy's own files in a target; never listed or copied.
STAGING = ".walship"


class RelativePath(str):
    """A path below a root, parts separated by ``/``; the empty text is the root.

    Raises:
        UnsafeNameError: the text is absolute, has an empty part, ``.`` or ``..``, a control character or text that is
            no Unicode, is too long, or is that of the folder of a copy's own files but for its case.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> RelativePath:
        """Check a text once; a path that was checked is returned as it is."""
        if type(text) is RelativePath:
            return text
        if problem := _problem(text):
            raise UnsafeNameError(f"the name {text!r:.300} is refused: {problem}", "Rename the file, or exclude it")
        return super().__new__(cls, text)

    @property
    def name(self) -> str:
        """The last part."""
        return self.rpartition("/")[2]

    @property
    def parent(self) -> RelativePath:
        """The folder that it lies in."""
        return str.__new__(RelativePath, self.rpartition("/")[0])

    def with_folders(self) -> Iterator[RelativePath]:
        """The path, and the folders that it lies in, but not the root."""
        path = self
        while path:
            yield path
            path = path.parent

    def child(self, name: str) -> RelativePath:
        """The path of an entry of this folder; ``name`` is one part.

        Raises:
            UnsafeNameError: as for the class, or the name has a separator or lies too deep.
        """
        if "/" in name:
            raise UnsafeNameError(f"the name {name!r:.300} is refused: it has a separator", "Rename it, or exclude it")
        checked = RelativePath(name) if name else None
        if checked is None:
            raise UnsafeNameError("an empty name is refused", "Check the store's listing")
        if self.count("/") >= FOLDERS_MAX:
            raise UnsafeNameError(
                f"it is more than {FOLDERS_MAX} folders deep", "Copy a folder below SRC, or exclude it"
            )
        return str.__new__(RelativePath, f"{self}/{checked}" if self else checked)

    def shown_child(self, name: str) -> RelativePath:
        """A path for people and filters, of an entry whose name is refused: escaped, and cut when it is long."""
        shown = repr(name)[1:-1].replace("/", "\\x2f")[:_SHOWN_MAX]
        return str.__new__(RelativePath, f"{self}/{shown}" if self else shown)

    def below(self, other: RelativePath) -> RelativePath:
        """This path, put below another folder."""
        return str.__new__(RelativePath, f"{other}/{self}" if self and other else (self or other))

    def relative_to(self, folder: RelativePath) -> RelativePath:
        """This path as seen from a folder that holds it."""
        assert not folder or self == folder or self.startswith(f"{folder}/"), f"{self} is not in {folder}"
        return str.__new__(RelativePath, self[len(folder) :].lstrip("/"))


#: The root itself.
ROOT = str.__new__(RelativePath, "")


def _problem(text: str) -> str:
    """Why a text is not a safe path; empty when it is one."""
    if not text:
        return ""
    if _CONTROL.search(text):
        return "it has a control character"
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if size > _BYTES_MAX:
        return f"it is longer than {_BYTES_MAX} bytes"
    for part in text.split("/"):
        if part in ("", ".", ".."):
            return "it is absolute or may lead out of its folder"
        if len(part) > PART_BYTES_MAX // 4 and len(part.encode()) > PART_BYTES_MAX:
            return f"a part is longer than {PART_BYTES_MAX} bytes"
        if len(part) == len(STAGING) and part != STAGING and part.casefold() == STAGING:
            return f"where case is ignored it is {STAGING}, which has a copy's own files"
    return ""
