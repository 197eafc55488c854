"""Encoders as Python gives them to a datamodule: a name, a specification, or a loaded encoder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.datamodules import (
    AtlasDataModule,
    ClassificationDataModule,
    CoreferenceDataModule,
    DependencyDataModule,
    PairDataModule,
    TextDataModule,
)
from attention_probing.results.errors import UserError


def atlas_encoder(encoder: Any) -> EncoderSpec | None:  # noqa: ANN401
    """Return the encoder of the first part of an atlas."""
    part: Any = AtlasDataModule(encoder=encoder).parts[0]
    found: EncoderSpec | None = part.encoder
    return found


MAKERS: dict[str, Callable[[Any], Any]] = {
    "dependency": lambda encoder: DependencyDataModule(encoder=encoder).encoder,
    "coreference": lambda encoder: CoreferenceDataModule(encoder=encoder).encoder,
    "text": lambda encoder: TextDataModule(encoder=encoder).encoder,
    "before": lambda encoder: TextDataModule(before=encoder).before,
    "pairs": lambda encoder: PairDataModule(encoder=encoder).encoder,
    "atlas": atlas_encoder,
    "classification": lambda encoder: ClassificationDataModule(tokenizer=encoder).tokenizer,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_an_encoder_may_be_a_name(kind: str) -> None:
    make = MAKERS[kind]
    assert make("gpt2") == EncoderSpec("gpt2")
    specification = EncoderSpec("gpt2", dtype="float16")
    assert make(specification) == specification


def test_an_encoder_may_be_a_loaded_one_with_the_weights_of_its_files(bert: Path, corpus: str, tmp_path: Path) -> None:
    encoder = Encoder(str(bert))
    data = DependencyDataModule(corpus, encoder=encoder, cache=str(tmp_path))
    data.setup("test")
    assert data.provenance.encoder["name"] == bert.name
    with torch.no_grad():
        next(encoder.model.parameters()).add_(1)
    with pytest.raises(UserError, match="weights of the encoder were changed after it had been loaded"):
        DependencyDataModule(corpus, encoder=encoder)
