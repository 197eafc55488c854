"""Reading of the corpus files of a sweep before its first run, so that a damaged one is found in seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention_probing.corpora.sentence import CorpusError
from attention_probing.datamodules.attention import AttentionDataModule


class FileInspector:
    """Function that reads the corpus files of the data of a run as the run itself would; each file once.

    Nothing that is read is kept. Data of labelled texts, which the plans of languages do not have, are not read.
    """

    def __init__(self) -> None:
        self._faults: dict[tuple[type, Path], CorpusError | None] = {}

    def __call__(self, data: object, stages: Sequence[str]) -> None:
        """Read the files that some stages read.

        Args:
            data: Datamodule of the run.
            stages: Stages of Lightning, such as `fit`.

        Raises:
            CorpusError: A file is damaged; the message has its path and the line.
        """
        if not isinstance(data, AttentionDataModule):
            return
        files = data.files()
        for stage in stages:
            splits, _ = data.splits_of(stage, files)
            for split in splits:
                fault = self._find_fault(data, files[split])
                if fault is not None:
                    raise fault

    def _find_fault(self, data: AttentionDataModule[Any], path: Path) -> CorpusError | None:
        key = (type(data), path.resolve())
        if key not in self._faults:
            self._faults[key] = None
            try:
                data.read(path)
            except CorpusError as error:
                self._faults[key] = error
        return self._faults[key]
