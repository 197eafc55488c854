"""New sentences for a trained probe: the data of its training over other sentences, without a Trainer."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from attention import EncoderSpec, Options
from attention.extraction import console
from datamodules import DependencyDataModule, VectorSpec
from datamodules.dependency import Field
from results.errors import new_items
from training import TrainedModule, quiet
from training.checkpoints import config_of, data_settings, datamodule_from


@contextmanager
def data_of_sentences(
    probe: TrainedModule[Any, Any],
    sentences: str | Sequence[str | Sequence[str]],
    reads: Collection[Field],
    encoder: EncoderSpec | None,
    options: Options | None,
    vectors: VectorSpec | None,
    root: str | None,
    hidden: tuple[int, ...] = (),
) -> Iterator[DependencyDataModule]:
    """The sentences as the split `test`, read as those of the training were, in a cache that ends with the context.

    What is None is that of the training. Their trees mean nothing.

    Raises:
        TrainingError: the probe is not trained.
        UserError: there is no sentence, or one has no words.
    """
    given = new_items("sentences", sentences)
    probe.on_validation_start()
    with TemporaryDirectory() as cache, quiet(), torch.inference_mode():
        file = Path(cache) / "sentences.conllu"
        file.write_text("".join(_rows(number, one) for number, one in enumerate(given, 1)), encoding="utf-8")
        trained = _data_of_training(probe, reads)
        data = DependencyDataModule(
            {"test": str(file)},
            root,
            punctuation=(),
            encoder=encoder or trained.encoder,
            options=options or trained.options,
            hidden=hidden,
            vectors=vectors or trained.vector_spec,
            cache=cache,
        )
        before, console.quiet = console.quiet, True  # a store that lasts as long as this is no news
        try:
            data.setup("predict")
        finally:
            console.quiet = before
        data.read_only(frozenset(reads))
        yield data


def _data_of_training(probe: TrainedModule[Any, Any], reads: Collection[Field]) -> DependencyDataModule:
    """The data of the checkpoint, not set up; where it does not say, those of the default encoder."""
    if probe.loaded_from is not None and "data" in config_of(probe.loaded_from[1]):
        data = datamodule_from(data_settings(*probe.loaded_from))
        assert isinstance(data, DependencyDataModule)
        return data
    return DependencyDataModule(encoder=EncoderSpec() if {"attention", "hidden"} & set(reads) else None)


def _rows(number: int, sentence: str | Sequence[str]) -> str:
    """A sentence as CoNLL-U, under any tree: it is not read."""
    words = sentence.split() if isinstance(sentence, str) else sentence
    rows = [f"{place}\t{word}\t_\tX\t_\t_\t{place - 1}\tdep\t_\t_\n" for place, word in enumerate(words, 1)]
    return f"# sent_id = {number}\n{''.join(rows)}\n"
