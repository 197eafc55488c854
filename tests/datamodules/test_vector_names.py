import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from gensim import downloader

from datamodules.vector_files import VectorError
from datamodules.vector_names import find_vectors
from tests.datamodules.vector_texts import write

INDEX: dict[str, dict[str, dict[str, str]]] = {
    "models": {"glove-wiki-gigaword-50": {}, "glove-twitter-25": {}, "__testing": {}},
    "corpora": {"text8": {}},
}


def refusal(name: str, root: Path) -> str:
    with pytest.raises(VectorError) as refused:
        find_vectors(name, root)
    return str(refused.value)


def test_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "v.txt")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_vectors(str(path), tmp_path / "root") == path
    assert find_vectors("~/v.txt", tmp_path / "root") == path
    assert find_vectors("v.txt", tmp_path / "root").resolve() == path


def test_the_subset_stands_in_until_the_full_file_is_there(tmp_path: Path) -> None:
    names = ("glove.6B.50d.subset.txt.gz", "glove.6B.50d.txt.gz", "glove.6B.50d.txt")
    for name in names:
        path = write(tmp_path / "glove" / name)
        assert find_vectors("glove.6B.50d", tmp_path) == path


@pytest.mark.parametrize("name", ["glove.6B.200d", "glove.840B.300d"])
def test_glove_that_is_absent(name: str, tmp_path: Path) -> None:
    message = refusal(name, tmp_path)
    assert message.startswith(
        f"{tmp_path}/glove/{name}.txt: there is no such file, nor one packed by gzip, nor a subset"
    )
    assert "https://nlp.stanford.edu/projects/glove/" in message
    assert "`encoder`" in message


@pytest.mark.parametrize("name", ["v.txt", "glove.6B.50d.txt", "glove.6B.50d.txt.gz", "some/vectors", "v.kv", "."])
def test_a_path_that_is_no_file_is_not_looked_for_in_the_network(name: str, tmp_path: Path) -> None:
    assert refusal(name, tmp_path).startswith(f"{name}: there is no such file of word vectors. Name a text file")


# gensim's downloader


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of gensim's downloader; its index is to be had, and nothing else."""
    monkeypatch.setattr(downloader, "BASE_DIR", str(tmp_path / "gensim-data"))
    monkeypatch.setattr(downloader, "info", lambda: INDEX)
    monkeypatch.setattr(downloader, "load", unreachable())
    return tmp_path / "gensim-data"


def unreachable(before: Callable[[], object] = lambda: None) -> Callable[..., str]:
    def load(*arguments: object, **options: object) -> str:
        before()
        raise OSError("no route to host")

    return load


def test_what_gensim_downloads(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, return_path: bool) -> str:
        assert return_path  # else it would import a program from the network
        return str(write(base / name / f"{name}.gz", packed=True))

    monkeypatch.setattr(downloader, "load", load)
    assert find_vectors("glove-twitter-25", tmp_path) == base / "glove-twitter-25" / "glove-twitter-25.gz"


def test_what_was_downloaded_before_needs_no_network(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloader, "info", unreachable())
    path = write(base / "glove-twitter-25" / "glove-twitter-25.gz", packed=True)
    assert find_vectors("glove-twitter-25", tmp_path) == path


def test_two_processes_that_download_at_once(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = base / "glove-twitter-25" / "glove-twitter-25.gz"
    monkeypatch.setattr(downloader, "load", unreachable(lambda: write(path, packed=True)))
    assert find_vectors("glove-twitter-25", tmp_path) == path


@pytest.mark.parametrize("name", ["glove-wiki", "text8", "__testing"])
def test_a_name_that_gensim_does_not_have(name: str, base: Path, tmp_path: Path) -> None:
    assert refusal(name, tmp_path).startswith(
        f"{name}: no file has this name, and gensim's downloader has only glove-twitter-25, glove-wiki-gigaword-50. "
    )


def test_a_download_that_fails(base: Path, tmp_path: Path) -> None:
    assert refusal("glove-twitter-25", tmp_path).startswith(
        f"glove-twitter-25: no file has this name, and gensim's downloader failed (OSError: no route to host). Check "
        f"the name and the network, or put the file into {base}/glove-twitter-25. Name a text file"
    )


def test_without_a_network_gensims_own_traceback_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger(downloader.__name__)
    level = log.level
    monkeypatch.setattr(downloader, "BASE_DIR", str(tmp_path / "gensim-data"))
    monkeypatch.setattr(downloader, "urlopen", unreachable())
    assert "gensim's downloader failed (ValueError: unable to read local cache" in refusal("glove-twitter-25", tmp_path)
    assert not [record for record in caplog.records if record.name == log.name]
    assert log.level == level
