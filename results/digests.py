"""SHA-256 of files: of weights, stored by path and change times, and of the files of a result, beside its scores."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from attention_probing.results.files import check_regular, keep, read_kept

RECORD = "results.json"
_NUMBERS = ("tables", "latex", "figure_data")  # entries of a record that name files with numbers
_INDEX = "digests/index.json"

log = logging.getLogger(__name__)


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with check_regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def source_digest() -> str:
    """Return the SHA-256 of the program's source files; results of different versions have different digests."""
    root = Path(__file__).parent.parent
    paths: list[Path] = []
    for stub in root.glob("*/__init__.py"):
        paths.extend(stub.parent.rglob("*.py"))
        paths.extend(stub.parent.rglob("*.yaml"))  # word lists and templates beside the code that reads them
    sha = hashlib.sha256()
    for path in sorted(paths):
        sha.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return sha.hexdigest()


def checksums(folder: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of a record, without its checksums, and of its config, tables and items, by file name.

    Args:
        folder: Folder of the record; files that it does not have are left out.
        content: Content of `results.json`.
    """
    entries = {key: value for key, value in content.items() if key != "checksums"}
    by_name = {RECORD: digest(json.dumps(entries, sort_keys=True).encode())}
    for name in _file_names(content):
        if (folder / name).is_file():
            by_name[name] = file_digest(folder / name)
    return by_name


def _file_names(content: Mapping[str, Any], kinds: Iterable[str] = _NUMBERS) -> list[str]:
    """Return the names of the items and the config, and of the files in some entries of a record."""
    names = [content.get("items"), content.get("config")]
    for kind in kinds:
        names.extend(content.get(kind, {}).values())
    return [name for name in names if name is not None]


def find_alteration(path: Path, content: Mapping[str, Any]) -> str | None:
    """Return an error message if a record or a file that it names has another checksum than when it was written.

    A missing file is not an error. No file outside the folder is read.

    Args:
        path: Path of the `results.json`.
        content: Its content.
    """
    for name in _file_names(content, (*_NUMBERS, "figures")):
        if not (path.parent / name).resolve().is_relative_to(path.parent.resolve()):
            return f"{path} names {name}, which is not in its folder. Run the experiment again"
    current = checksums(path.parent, content)
    if not has_config_checksum(content):
        current.pop(str(content.get("config")), None)
    for name, sha256 in current.items():
        if sha256 != content["checksums"].get(name):
            return (
                f"{path.parent / name} was changed after the run: its SHA-256 differs from the one in {RECORD}. "
                "Restore it, or test again"
            )
    return None


def has_config_checksum(content: Mapping[str, Any]) -> bool:
    """Return True if a record has the SHA-256 of the config of its run, which versions before 1.1 did not write."""
    return content.get("config") in content["checksums"]


class Digests:
    """Cache of the SHA-256 of files.

    The checksum of a file is computed again only if the file's size, change times or inode have changed.

    Args:
        cache: Folder of the cache file. If two processes write it at once, entries may be lost, but it
            stays readable.
    """

    def __init__(self, cache: Path) -> None:
        self._path = cache / _INDEX
        self._entries = self._read()

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            content = read_kept(self._path)
        except OSError:  # for instance another user's file in a shared folder: only time is lost
            content = None
        entries: dict[str, dict[str, str]] = {}
        if content is not None:
            entries = json.loads(bytes(content))
        return entries

    def of(self, paths: Iterable[Path]) -> dict[Path, str]:
        """Return the SHA-256 of several files in hexadecimal, by path, in the order of `paths`."""
        names = {path: str(path.resolve()) for path in paths}
        stamps = {path: _stamp(path) for path in names}
        new = []
        for path, name in names.items():
            if self._stamp_of(name) != stamps[path]:
                new.append(path)
        if new:
            with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1)) as pool:  # hashing releases the lock of Python
                digests = list(pool.map(file_digest, new))
            entries = {}
            for path, sha256 in zip(new, digests, strict=True):
                entries[names[path]] = {"stamp": stamps[path], "sha256": sha256}
            self._add(entries)
        return {path: self._entries[name]["sha256"] for path, name in names.items()}

    def _stamp_of(self, name: str) -> str | None:
        """Return the stamp of a file when its checksum was computed; None if it was not."""
        return self._entries.get(name, {}).get("stamp")

    def remember(self, path: Path, sha256: str) -> None:
        """Store the SHA-256 of a file that the caller computed while writing it."""
        self._add({str(path.resolve()): {"stamp": _stamp(path), "sha256": sha256}})

    def _add(self, entries: dict[str, dict[str, str]]) -> None:
        """Add entries to those of the cache file, which other processes may have changed."""
        self._entries |= self._read() | entries
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            keep(self._path, json.dumps(self._entries, indent=0, sort_keys=True).encode())
        except OSError as error:  # a full disk or a read-only folder: only time is lost
            why = error.strerror or error
            log.warning("%s: cannot write the checksum cache (%s); the next run recomputes checksums", self._path, why)

    def of_file(self, path: Path) -> str:
        """Return the SHA-256 of one file in hexadecimal."""
        return self.of([path])[path]


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size}-{stat.st_mtime_ns}-{stat.st_ctime_ns}-{stat.st_ino}"
