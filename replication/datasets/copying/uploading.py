"""Uploads of a copy: begun or gone on with, and given up. The journal notes each before the store knows it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from replication.core.copying.names import RelativePath
from replication.datasets.copying.journal import CopyJournal, JournaledRange, JournaledUpload, JournalKey
from replication.datasets.stores.base import Upload, Uploads

_SKEW = timedelta(minutes=15)  # that S3 allows between clocks


def begun(
    uploads: Uploads, journal: CopyJournal, key: JournalKey, path: RelativePath
) -> tuple[Upload, dict[int, JournaledRange]]:
    """The upload of a file to ``path``, and the ranges that it has by number.

    What an earlier run sent of the same state is gone on with; uploads of other states are given up at the end.
    """
    for known in journal.uploads(key):
        if known.upload.id and (parts := uploads.parts(known.upload)) is not None:
            there, noted = set(parts), journal.ranges(key)
            found = {number: each for number, each in noted.items() if each.parts and there.issuperset(each.parts)}
            return known.upload, {number: replace(each, is_trusted=True) for number, each in found.items()}
        _give_up(uploads, known)
    journal.add_upload(key, Upload(path, "", ""))
    upload = uploads.begin(path)
    journal.add_upload(key, upload)
    return upload, {}


def give_up_all(uploads: Uploads, journal: CopyJournal) -> None:
    """Give up what was begun and will not be completed."""
    for known in journal.uploads():
        _give_up(uploads, known)


def _give_up(uploads: Uploads, known: JournaledUpload) -> None:
    if known.upload.id:
        uploads.abort(known.upload)
        return
    begun = datetime.fromtimestamp(known.begun_s, UTC)  # a run was killed while it began this one
    for found in uploads.found(RelativePath(known.upload.path), begun - _SKEW, begun + _SKEW):
        uploads.abort(found)
