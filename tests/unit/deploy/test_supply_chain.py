"""The SBOM of a release and the audit of what it depends on, both from the lock file."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import audit, sbom

pytestmark = pytest.mark.heavy

LOCK = """\
Thing==1.0 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
other[extra]==2
plain==3.1 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def test_every_pin_of_the_lock_file_and_every_jar_is_in_the_sbom_with_its_sums() -> None:
    found = sbom.components()
    names = {each.name for each in found}
    assert {"grpcio", "pyarrow", "org.xerial:sqlite-jdbc", "org.postgresql:postgresql"} <= names
    lock = (sbom.ROOT / "constraints.txt").read_text()
    assert len([each for each in found if each.ecosystem == "PyPI"]) == len(re.findall(r"^\S+==", lock, re.MULTILINE))
    assert all(each.sums for each in found)
    made = sbom.document(found, "1")
    assert (made["bomFormat"], made["specVersion"], len(made["components"])) == ("CycloneDX", "1.5", len(found))
    assert len({each["bom-ref"] for each in made["components"]}) == len(found)
    by_name = {each["name"]: each for each in made["components"]}
    assert by_name["sqlite-jdbc"]["purl"].startswith("pkg:maven/org.xerial/sqlite-jdbc@")
    assert by_name["sqlite-jdbc"]["hashes"][0]["alg"] == "SHA-256"
    assert by_name["structlog"]["licenses"]


def test_a_pin_without_a_sum_or_of_another_version_than_is_installed_is_told(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text(LOCK.replace("other[extra]==2", "structlog==0.0.1"))
    found = sbom.components(tmp_path)
    assert [(each.name, len(each.sums)) for each in found] == [("thing", 2), ("structlog", 0), ("plain", 1)]
    first, second = sbom.deviations(found)
    assert "structlog: no SHA-256 sum" in first and "0.0.1 is pinned" in second


def test_what_a_newer_python_or_another_system_needs_is_in_the_lock_file() -> None:
    pinned = {canonicalize_name(each.name) for each in sbom.components() if each.ecosystem == "PyPI"}
    environments = [
        {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": system}
        for version in ("3.11", "3.12", "3.13", "3.14")
        for system in ("linux", "darwin")
    ]
    makefile = (sbom.ROOT / "Makefile").read_text()
    extras = re.search(r"^EXTRAS := (.*)", makefile, re.MULTILINE)[1].split()
    missing, seen, ahead = set(), set(), [("walship", extra) for extra in ("", *extras)]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:  # it is of another Python
            continue
        for needed in map(Requirement, requires):
            if needed.marker is None or any(needed.marker.evaluate({**each, "extra": extra}) for each in environments):
                if canonicalize_name(needed.name) not in pinned:
                    missing.add(f"{needed.name}, which {name} requires")
                ahead += [(needed.name, each) for each in ("", *needed.extras)]
    assert len(seen) > 100 and not missing


@contextmanager
def advisories(answer: bytes) -> Iterator[str]:
    """The URL of a service that answers so whatever is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer or _answer(asked["queries"]))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _answer(queries: list[dict[str, dict[str, str]]]) -> bytes:
    weak = {"vulns": [{"id": "GHSA-1"}]}
    return json.dumps({"results": [weak if q["package"]["name"] == "grpcio" else {} for q in queries]}).encode()


def test_an_audit_names_what_has_advisories(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with advisories(b"") as url:
        monkeypatch.setenv("WALSHIP_AUDIT_URL", url)
        assert audit.main() == 1
    assert "grpcio" in (said := capsys.readouterr().out) and "GHSA-1" in said and "1 with advisories" in said


@pytest.mark.parametrize("answer", [b"<html>", b'{"results": []}', b'{"results": {}}', None])
def test_an_audit_without_advisories_says_that_nothing_was_audited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: bytes | None
) -> None:
    with advisories(answer or b"") as url:
        monkeypatch.setenv("WALSHIP_AUDIT_URL", url if answer else "http://127.0.0.1:9")
        assert audit.main() == 2
    assert "NOT AUDITED" in capsys.readouterr().err
