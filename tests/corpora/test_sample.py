from pathlib import Path

import pytest

from corpora.sample import write_sample_documents, write_sample_reviews, write_sample_text, write_sample_treebank


def test_files_that_are_damaged_are_written_again_and_others_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = write_sample_treebank(tmp_path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    assert write_sample_text(tmp_path) in before
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    files["dev"].with_suffix(".conll").write_text("cut off", encoding="utf-8")
    documents = write_sample_documents(tmp_path)
    [aside] = tmp_path.glob("*.old-*")
    assert aside.read_text(encoding="utf-8") == "cut off"
    aside.unlink()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == {path: one for path, (one, _) in before.items()}
    assert "What was there is now" in caplog.text
    assert list(documents) == list(files) == list(write_sample_reviews(tmp_path / "new" / "deeper"))
