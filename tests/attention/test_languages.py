"""Pieces of real tokenizers against the words of nine treebanks."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from attention_probing.attention.alignment import SPELLED, count_words, split_words
from attention_probing.attention.loading import load_tokenizer
from attention_probing.attention.source import EncoderSpec, resolve
from attention_probing.corpora.conllu import read_treebank

LANGUAGES = ("en_ewt", "de_gsd", "ru_gsd", "zh_gsdsimp", "ko_gsd", "id_gsd", "fa_seraji", "he_htb", "eu_bdt")


@pytest.fixture(scope="module", params=("all-MiniLM-L6-v2", "multilingual-e5-small", "smollm2-135m", "gemma-3-270m"))
def tokenizer(request: pytest.FixtureRequest, pretrained: Callable[[str], Path]) -> PreTrainedTokenizerFast:
    """Tokenizer of a real model: of the packaged one, or of a folder under `$PROBING_MODELS`."""
    packaged = request.param == "all-MiniLM-L6-v2"
    return load_tokenizer(resolve(EncoderSpec() if packaged else EncoderSpec(str(pretrained(request.param)))))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pieces_of_every_word_spell_it(
    language: str, tokenizer: PreTrainedTokenizerFast, public_data: Callable[..., Path]
) -> None:
    """But for the tokenizer's normalisation and its unknown token, and of running text, for words that share a piece.

    `pytest -s` prints a row of a table: model, language, spacing, words, pieces a word, and the counts by kind.
    """
    path = public_data("ud", f"{language}-ud-dev.conllu")
    sentences = read_treebank(path, texts=True).sentences
    texts = [one.running for one in sentences if one.running is not None]
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# text = ")]
    assert [f"# text = {text.text}" for text in texts] == [line.rstrip() for line in lines]
    for spacing in ("blanks", "text"):
        read = texts if spacing == "text" else []
        cut = split_words(tokenizer, [one.words for one in sentences], texts=read)
        counts, pieces = Counter[str](), 0
        for place, (each, sentence) in enumerate(zip(cut, sentences, strict=True)):
            counts.update(count_words(tokenizer, each, sentence.words, read[place : place + 1]))
            pieces += int(each.inside.sum())
        words_read = sum(map(len, sentences))
        assert counts["spelled_otherwise"] == 0
        assert sum(counts[kind] for kind in SPELLED) == words_read
        if spacing == "blanks":
            assert counts["spelled_with_others"] == counts["words_without_own_piece"] == 0
        kinds = [counts[kind] for kind in (*SPELLED, "pieces_across_words", "words_without_own_piece")]
        cells = [Path(tokenizer.name_or_path).name, language, spacing, words_read, f"{pieces / words_read:.2f}", *kinds]
        print("|", *(f"{cell} |" for cell in cells))
