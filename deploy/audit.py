"""``python -m deploy.audit``: known weaknesses of the pinned packages and jars, by the advisories of OSV (osv.dev).

Ends with 0 when there is none, 1 when there are, 2 when the advisories could not be read: then nothing was audited.
``WALSHIP_AUDIT_URL`` is another address of the same service, such as a mirror.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from urllib.error import URLError
from urllib.request import Request, urlopen

from deploy.sbom import Component, components

URL = "https://api.osv.dev/v1/querybatch"
_TIMEOUT_S = 20
_BATCH = 500


def weaknesses(found: Sequence[Component], url: str) -> list[tuple[Component, list[str]]]:
    """The components that have advisories, with their ids.

    Raises:
        OSError: the service could not be reached.
        ValueError: it did not answer as it should.
    """
    weak = []
    for at in range(0, len(found), _BATCH):
        batch = found[at : at + _BATCH]
        results = _ask(batch, url)
        if len(results) != len(batch):
            raise ValueError(f"{len(results)} answers about {len(batch)} packages")
        for component, result in zip(batch, results, strict=True):
            if ids := sorted(str(each["id"]) for each in result.get("vulns", ())):
                weak.append((component, ids))
    return weak


def _ask(batch: Sequence[Component], url: str) -> list[dict[str, list[dict[str, str]]]]:
    queries = [{"version": each.version, "package": {"name": each.name, "ecosystem": each.ecosystem}} for each in batch]
    request = Request(url, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=_TIMEOUT_S) as answer:
        found = json.load(answer)["results"]
    if not isinstance(found, list):
        raise ValueError("the answer has no list of results")
    return found


def main() -> int:
    """Ask, and say what was found."""
    url, found = os.environ.get("WALSHIP_AUDIT_URL", URL), components()
    try:
        weak = weaknesses(found, url)
    except (OSError, URLError, ValueError, LookupError, TypeError, AttributeError) as error:
        print(f"NOT AUDITED: the advisories at {url} cannot be read: {error}", file=sys.stderr)
        print("A release needs them: run this where osv.dev can be reached, or set WALSHIP_AUDIT_URL", file=sys.stderr)
        return 2
    for component, ids in weak:
        print(f"{component.name} {component.version}: {', '.join(ids)}")
    print(f"{len(found)} packages and jars audited, {len(weak)} with advisories")
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
