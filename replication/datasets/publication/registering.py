"""Which files may not be published, since they are to be registered."""

from __future__ import annotations

from replication.datasets.publication.recording import overwritten
from replication.datasets.publication.steps import CopySite, PublishFileSet, registered_files
from replication.datasets.registration.base import RefusesNames
from replication.errors import CopyError


def registration_refusal(site: CopySite, registrar: str, step: PublishFileSet) -> CopyError | None:
    """Why the files of a step may not be published; None if they may, or if no registrar is told of them."""
    if not registrar:
        return None
    if over := overwritten(site.target, step.moves):
        what = f"{over[0][1]} is there already, and a registered file is never written over"
        return CopyError(what, "Give new files other names, or say --skip")
    if isinstance(told := site.registrar(registrar), RefusesNames):
        for file in registered_files([step]):
            if reason := told.refusal(site.target.url, file):
                return CopyError(f"{file.path} cannot be registered: {reason}", "Rename it, or exclude it")
    return None
