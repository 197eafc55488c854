from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pytorch_lightning import Trainer

from attention_probing.attention import EncoderSpec
from attention_probing.corpora.document import Documents
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import ClassificationDataModule, CoreferenceDataModule, DependencyDataModule
from tests.documents import corpus as random_documents, document, write

LENGTHS = ((3, 1, 2), (4, 6, 2, 5, 8), (7, 7, 7, 7), (2,), (5, 5, 9, 1), (3, 9, 8, 9, 9), (8, 2, 2, 9))

Kind = Any  # the class of a datamodule
Module = Any  # a datamodule of any kind
Row = tuple[str, str, str]

TRAIN: tuple[Row, ...] = (
    ("1", "A good fox . The fox sleeps .", "1"),
    ("0", "a BAD fox", "1 2"),
    ("1", "good good coffee", "0 1"),
    ("0", "the guests drink bad coffee", "3"),
    ("1", "The dogs !", ""),
)
DEV: tuple[Row, ...] = (("0", "a bad cat", "1"), ("1", "good Good coffee", "0"))
TEST: tuple[Row, ...] = (("1", "unseen words <pad>", ""), ("0", "a bad fox", "1"), ("0", "A bad cat", "1"))
ROWS: Mapping[Split, tuple[Row, ...]] = {"train": TRAIN, "dev": DEV, "test": TEST}
"""Label, text and deciding words."""


def write_rows(folder: Path, rows: Mapping[Split, tuple[Row, ...]] = ROWS) -> str:
    """Write the splits; returns their path with `{split}` in it."""
    folder.mkdir(exist_ok=True)
    for split, records in rows.items():
        lines = "".join("\t".join(record) + "\n" for record in (("label", "text", "rationale"), *records))
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8")
    return str(folder / "{split}.tsv")


def named(documents: Documents, *genres: str) -> Documents:
    """The documents under names from which the reader takes their genre."""
    texts = tuple(
        document(
            f"GUM_{genres[number % len(genres)]}_{number}",
            [" ".join(words) for words in text.sentences],
            [(m.sentence, m.start, m.end, m.head, m.cluster) for m in text.mentions],
        )
        for number, text in enumerate(documents.documents)
    )
    return Documents(texts, {})


def trainer(rank: int = 0, world: int = 1, limit: float = 1.0, epoch: int = 0, validate: float = 1.0) -> Trainer:
    """What datamodules ask of a trainer."""
    facts = {"limit_train_batches": limit, "limit_val_batches": validate, "current_epoch": epoch}
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return cast(Trainer, SimpleNamespace(global_rank=rank, world_size=world, strategy=strategy, **facts))


def rows(loader: Iterable[Any]) -> Iterator[tuple[Any, int, int]]:
    """Batch, row and item of everything a loader yields."""
    for batch in loader:
        for row, index in enumerate(batch.index.tolist()):
            yield batch, row, index


@pytest.fixture(scope="session")
def by_split(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three files of documents, of seven, four and three."""
    folder = tmp_path_factory.mktemp("documents")
    for seed, (split, count) in enumerate({"train": 7, "dev": 4, "test": 3}.items()):
        write(folder / f"{split}.conll", named(random_documents(LENGTHS[:count], seed), "news"))
    return str(folder / "{split}.conll")


@pytest.fixture(params=[DependencyDataModule, CoreferenceDataModule, ClassificationDataModule])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def given(kind: type, corpus: str, by_split: str, tmp_path: Path) -> str:
    """The corpus of a datamodule of that kind."""
    if kind is ClassificationDataModule:
        return write_rows(tmp_path / "texts")
    return corpus if kind is DependencyDataModule else by_split


@pytest.fixture
def make(kind: Kind, given: str, bert: Path, cache: str) -> Callable[..., Module]:
    """Makes a datamodule of that kind, with small batches, set up for some stages."""
    sizes = {DependencyDataModule: {"max_cells": 400, "batch_size": 5}, ClassificationDataModule: {"batch_size": 1}}
    encoder = {} if kind is ClassificationDataModule else {"encoder": EncoderSpec(str(bert))}

    def made(*stages: str, corpus: str | dict[str, str] = given, **options: object) -> Module:
        module = kind(corpus, **({"cache": cache} | encoder | sizes.get(kind, {}) | options))
        for stage in stages:
            module.setup(stage)
        return module

    return made
