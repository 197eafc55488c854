from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest


def writer(usual: str) -> Callable[..., Path]:
    """A function that writes a file, named so unless a name is given, into a folder."""

    def write(folder: Path, content: str | bytes, name: str = usual) -> Path:
        path = folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and remembers what was asked for."""

    asked: list[str] = []

    def log_message(self, format: str, *args: object) -> None:
        self.asked.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address and folder of a server on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()
    Quiet.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as httpd:
        thread = Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", folder
        httpd.shutdown()
        thread.join()
