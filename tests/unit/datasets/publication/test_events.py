"""Events: one for each file and file set that is in place or failed, sent again until they are taken."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from replication.datasets.publication.events import WebhookEvents, open_events
from replication.datasets.stores.local import LocalStore
from replication.errors import ConfigError
from tests.copying import job, read_tree, write_tree

FILES = {"a/1": b"one", "a/2": b"two", "b/3": b"three"}


class Listener:
    """Refuses so many times, then takes events."""

    def __init__(self, refused: int = 0) -> None:
        self.refused, self.taken = refused, []

    def send(self, events: Sequence[str]) -> None:
        if self.refused:
            self.refused -= 1
            raise ConnectionRefusedError("nobody listens")
        self.taken += [json.loads(event) for event in events]


def run(folder: Path, events: object) -> None:
    made = job(LocalStore(str(folder / "src")), LocalStore(str(folder / "dst")))
    made.events = events
    made.run()


def test_each_file_and_each_file_set_has_one_event(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", FILES)  # 000-13, 000-33, 000-43
    write_tree(tmp_path / "src", {"c/bad": b"x", "c/good": b"y"})
    write_tree(tmp_path / "dst", {"c/bad/below": b""})
    run(tmp_path, heard := Listener())
    found = {(event["event"], event["file_set"], event.get("path", "")) for event in heard.taken}
    assert found == {
        *(("file_published", name[0], name) for name in (*FILES, "c/good")),
        *(("file_set_published", name, "") for name in "abc"),
    }
    assert len({event["id"] for event in heard.taken}) == len(heard.taken) == len(found)


def test_a_failed_file_set_has_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "src", FILES)  # 000-43
    write = LocalStore.write_small

    def failing(self: LocalStore, path: str, *given: object) -> None:
        if path.endswith("a/2"):
            raise PermissionError("http://ann:hush@server/a/2")  # as drivers quote the address of a file
        write(self, path, *given)

    monkeypatch.setattr(LocalStore, "write_small", failing)
    run(tmp_path, heard := Listener())
    (failed,) = [event for event in heard.taken if event["event"] == "file_set_failed"]
    assert (failed["file_set"], failed["failures"]) == ("a", {"a/2": "PermissionError: http://ann:***@server/a/2"})


def test_events_that_nobody_took_are_sent_by_the_next_run(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", FILES)  # 000-36
    run(tmp_path, Listener(refused=100))
    assert read_tree(tmp_path / "dst") == FILES, "the files are in place already"
    run(tmp_path, heard := Listener())
    assert sorted(event["path"] for event in heard.taken if event["event"] == "file_published") == sorted(FILES)
    assert not (tmp_path / "dst/.walship").exists()


def test_a_receiver_that_is_away_is_waited_for_once_and_not_by_each_file_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.publication.steps._WAITED_S", 0.1)
    files = {f"{number}/a": b"1" for number in range(5)}
    write_tree(tmp_path / "src", files)
    waited: list[int] = []

    class Away:
        def send(self, events: Sequence[str]) -> None:
            waited.append(len(events))
            threading.Event().wait(0.2)
            raise TimeoutError("nobody answers")

    run(tmp_path, Away())
    assert read_tree(tmp_path / "dst") == files and len(waited) == 1
    run(tmp_path, Away())
    assert len(waited) == 2
    run(tmp_path, heard := Listener())
    assert sorted(event["path"] for event in heard.taken if event["event"] == "file_published") == sorted(files)


def test_a_run_tells_why_events_were_not_sent_now_rather_than_by_the_run_before(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/1": b"1"})
    for folder in ("gone", "missing"):
        made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
        made.events = open_events(str(tmp_path / folder / "events"))
        (why,) = made.run().failures.values()
        assert f"{folder}/events" in why


def test_events_are_appended_to_a_file_or_posted(tmp_path: Path) -> None:
    file = open_events(str(tmp_path / "events"))
    file.send(['{"a": 1}'])
    file.send(['{"a": 2}'])
    assert (tmp_path / "events").read_text() == '{"a": 1}\n{"a": 2}\n'
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        WebhookEvents(f"http://127.0.0.1:{server.server_port}/").send(['{"a": 1}', '{"b": 2}'])
        server.shutdown()
        thread.join()
    assert posted == [[{"a": 1}, {"b": 2}]]
    for address in ("kafka://host", "kafka:///topic", "nats://host/topic", "https://user:secret@host/hook"):
        with pytest.raises(ConfigError) as refused:
            open_events(address)
        assert "secret" not in str(refused.value)


def test_a_webhook_that_does_not_speak_http_has_not_taken_events() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b"220 ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match=r"the event was not sent \(BadStatusLine: .*\) to http://127"):
            WebhookEvents(f"http://127.0.0.1:{server.getsockname()[1]}/").send(["{}"])
        thread.join()


def test_the_token_in_the_address_of_a_webhook_is_in_no_error() -> None:
    """A user or a password is refused with the advice to put the token in the path or query."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(301)
            self.send_header("Location", f"http://other.example{self.path}/")
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with pytest.raises(OSError, match="not sent .*http://other.example/…/ instead") as failed:
                WebhookEvents(f"http://127.0.0.1:{server.server_port}/services/T0/geheim?key=geheim").send(["{}"])
        finally:
            server.shutdown()
            thread.join()
    assert "geheim" not in str(failed.value) and f"to http://127.0.0.1:{server.server_port}" in str(failed.value)
    with pytest.raises(ConfigError, match="cannot be sent to amqp") as refused:
        open_events("amqp://user:geheim@host/events")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_webhook_that_redirects_has_not_taken_events(code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code)
            self.send_header("Location", "/new")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            with pytest.raises(OSError, match=f"answers {code} and names .*/new"):
                WebhookEvents(f"http://127.0.0.1:{server.server_port}/hook").send(["{}"])
        finally:
            server.shutdown()
            thread.join()


def test_events_are_on_lines_of_their_own_after_one_that_was_written_in_part(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    sink = open_events(str(file))
    sink.send(['{"id": 1}', '{"id": 2}'])
    file.write_bytes(file.read_bytes() + b'{"id"')  # as a full disk leaves it
    sink.send(['{"id": 3}'])
    sink.send(['{"id": 4}'])
    assert file.read_text().splitlines() == ['{"id": 1}', '{"id": 2}', '{"id"', '{"id": 3}', '{"id": 4}']


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1/hook",
        "http://host/caf\xe9",
        "http://host/a b",
        "http://host:hook/",
        "http:///hook",
        "kafka://[::1/t",
    ],
)
def test_an_address_of_events_that_is_none_is_refused_before_anything_is_copied(address: str) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        open_events(address)
    assert open_events("https://b\xfccher.example:8443/hook?token=%20")
