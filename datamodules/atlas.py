"""Datamodule of texts, a treebank and documents read by one encoder, for a profile of each of its attention heads."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_probing.attention import Options
from attention_probing.attention.encoder import EncoderOption, specification_of
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.splits import Split
from attention_probing.datamodules.coreference import CoreferenceDataModule
from attention_probing.datamodules.corpus import DEFAULT_OPTIONS, DEFAULT_SPEC, CorpusDataModule
from attention_probing.datamodules.dependency import DependencyDataModule
from attention_probing.datamodules.text import TextDataModule
from attention_probing.datamodules.text_sources import Sources, TextSource, read_sources
from attention_probing.results import Provenance
from attention_probing.results.errors import setting
from attention_probing.results.options import Positive, checked

TREEBANK = "treebank"
"""Name of the treebank's test split among the texts, where it is read at the level of tokens."""


class AtlasDataModule(CorpusDataModule[Any]):
    """Datamodule of texts, a treebank, and documents with coreference; only for `test`.

    It combines a datamodule for each of the three. A test reads first all batches of the texts, then
    those of the treebank, then those of the documents.

    Args:
        text: Corpora of texts, given as for `corpora` of `TextDataModule`.
        treebank: Treebank, given as for `corpus` of `DependencyDataModule`; None for none. Its test
            split is also read as one of the texts.
        documents: Documents, given as for `corpus` of `CoreferenceDataModule`; None for none.
        encoder: The encoder.
        options: Precision of the stored attention, and the policy for sentences over the encoder's
            limit, for treebank and documents.
        root: Folder of the public corpora; else `$PROBING_DATA`, else `./data`.
        cache: Folder of attention stores and of the package's sample corpora; else `$PROBING_CACHE`,
            else `./stores`.
        max_length: Largest number of word pieces of a text segment, delimiters included.
        random_init: Also read everything through the same encoder with random weights; only its
            embeddings stay pretrained.
        limit: Largest number of sentences and documents of each split, and of segments of each text that names no
            limit of its own; None for all.
    """

    unit = "segments, sentences and windows"
    holds = "texts, a treebank and documents"

    @checked
    def __init__(
        self,
        text: Sources = "sample",
        treebank: str | dict[str, str] | None = "sample",
        documents: str | dict[str, str] | None = None,
        encoder: EncoderOption = DEFAULT_SPEC,
        options: Options = DEFAULT_OPTIONS,
        root: str | None = None,
        cache: str | None = None,
        max_length: Positive = 128,
        random_init: bool = True,
        limit: Positive | None = None,
    ) -> None:
        super().__init__("", root, cache, limit=limit)
        for name, chosen in (("layers", options.layers), ("heads", options.heads)):
            if chosen is not None:
                raise CorpusError(
                    f"{setting(f'data.options.{name}')} is {list(chosen)}, but {type(self).__name__} needs all. "
                    f"Leave it out."
                )
        if options.quantity != "attention":
            raise CorpusError(
                f"{setting('data.options.quantity')} is {options.quantity}, but {type(self).__name__} joins analyses "
                "of attention weights. Leave it out."
            )
        self.text = text
        self.treebank = treebank
        self.documents = documents
        self.encoder = specification_of(encoder)
        self.options = options
        self.max_length = max_length
        self.random_init = random_init
        self._shared: dict[str, Any] = dict(
            encoder=encoder, root=root, cache=cache, random_init=random_init, limit=limit
        )

    @cached_property
    def parts(self) -> tuple[CorpusDataModule[Any], ...]:
        """Datamodules of the texts, the treebank and the documents.

        Raises:
            CorpusError: The treebank has no test split.
        """
        texts = list(read_sources(self.text))
        annotated: list[CorpusDataModule[Any]] = []
        if self.treebank is not None:
            arcs = DependencyDataModule(self.treebank, options=self.options, **self._shared)
            arcs.option = "data.treebank"
            files = arcs.files()
            if "test" not in files:
                raise CorpusError(f"The corpus ({setting('data.treebank')}) has no test split. {arcs.missing_remedy}.")
            texts.append(TextSource(str(files["test"]), name=TREEBANK))
            annotated.append(arcs)
        if self.documents is not None:
            links = CoreferenceDataModule(self.documents, options=self.options, **self._shared)
            links.option = "data.documents"
            annotated.append(links)
        return (TextDataModule(texts, max_length=self.max_length, **self._shared), *annotated)

    def files(self) -> Mapping[str, Path]:
        """Return the corpus files of the texts, the treebank and the documents.

        The keys are the names of the text corpora, `dependency.<split>` for the treebank, and
        `coreference.<split>` for the documents.
        """
        texts, *annotated = self.parts
        files = dict(texts.files())
        for part in annotated:
            for split, path in part.files().items():
                files[f"{_name(part)}.{split}"] = path
        return files

    def splits_of(self, stage: str, files: Mapping[str, Path]) -> tuple[list[Split], list[Split]]:
        """Return two empty lists: the splits to read and to prepare are those of the `parts`.

        Raises:
            CorpusError: The stage is not `test`.
        """
        return self.parts[0].splits_of(stage, files)

    def absent(self, stages: Iterable[str]) -> list[CorpusError]:
        errors = []
        for part in self.parts:
            errors.extend(part.absent(stages))
        return errors

    def setup(self, stage: str) -> None:
        """Set up the datamodules of the texts, the treebank and the documents.

        Raises:
            UserError: One of these datamodules cannot be set up; see the `setup` of each.
        """
        for part in self.parts:
            part.place(self.ranks, self.device)
            part.setup(stage)

    @property
    def provenance(self) -> Provenance:
        """Description of the encoder and the files for the results, with counts of everything left out.

        Files and counts are those of the `parts`, under the names `text`, `dependency` (the treebank)
        and `coreference` (the documents).
        """
        provenances = {_name(part): part.provenance for part in self.parts}
        data = {name: of_part.data for name, of_part in provenances.items()}
        audit = {name: of_part.audit for name, of_part in provenances.items()}
        return Provenance(provenances["text"].encoder, data, audit)

    def test_dataloader(self) -> list[Any]:
        """Return the test dataloaders of texts, treebank and documents."""
        loaders = []
        for part in self.parts:
            loaders.extend(part.test_dataloader())
        return loaders


def _name(part: CorpusDataModule[Any]) -> str:
    """Return `text`, `dependency` or `coreference`."""
    return type(part).__name__.removesuffix("DataModule").lower()
