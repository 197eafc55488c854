from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attention.alignment import AlignmentError
from attention.encoder import Encoder, EncoderSpec, resolve
from attention.forward import shapes
from attention.options import Options, Precision, StoreError
from attention.plan import Plan, lost_arcs, plan
from attention.shard import write_shard
from attention.store import Hidden
from corpora.sentence import Sentence, Treebank
from tests import tiny
from tests.attention.extractions import LENGTHS, small_shards

LIMIT = 14


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """It takes fourteen pieces at once."""
    return Encoder(resolve(EncoderSpec(str(tiny.save_bert(tmp_path_factory.mktemp("short"), max_length=LIMIT)))))


def of_words(*words: str, name: str = "s") -> Sentence:
    """The words in a chain, each the head of the next."""
    n = len(words)
    return Sentence(name, words, tuple(range(n)), ("dep",) * n, ("X",) * n)


def treebank(*sentences: Sentence) -> Treebank:
    return Treebank(sentences, {"sentences": len(sentences), "multiple_roots": 3})


SHORT, EXACT, LONG = of_words("the", "fox"), of_words(*["the"] * 12), of_words(*["the"] * 13, name="long")


def test_without_an_encoder_every_sentence_is_kept() -> None:
    planned = plan(treebank(SHORT, LONG), None, Options(layers=(99,)))
    assert planned.sentences == (SHORT, LONG)
    assert (planned.windows, planned.layers, planned.heads, planned.shards) == ((), (), (), 0)
    assert planned.audit == {"sentences": 2, "multiple_roots": 3}
    assert planned.delimiters == {"start": False, "end": False}


def test_a_sentence_that_just_fits_is_one_window(encoder: Encoder) -> None:
    for policy in ("error", "skip", "window"):
        planned = plan(treebank(SHORT, EXACT), encoder, Options(too_long=policy))
        assert planned.sentences == (SHORT, EXACT)
        assert [[len(part) for part in parts] for parts in planned.windows] == [[4], [LIMIT]]
        assert planned.audit == {
            "sentences": 2,
            "multiple_roots": 3,
            "words_without_piece": 0,
            "words_with_unknown_token": 0,
            "skipped_too_long": 0,
            "windowed": 0,
            "lost_arcs": 0,
        }


def test_too_long_is_an_error_that_names_the_sentence_and_the_remedy(encoder: Encoder) -> None:
    with pytest.raises(AlignmentError) as error:
        plan(treebank(SHORT, LONG), encoder, Options())
    for part in ("sentence long: 13 words, 15 pieces, over the limit of 14", "too_long window", "skip"):
        assert part in str(error.value)


def test_too_long_is_skipped_and_counted(encoder: Encoder) -> None:
    planned = plan(treebank(LONG, SHORT, LONG, EXACT), encoder, Options(too_long="skip"))
    assert planned.sentences == (SHORT, EXACT)
    assert len(planned.windows) == 2
    assert planned.audit["skipped_too_long"] == 2


def test_a_corpus_of_which_nothing_fits_makes_no_store(encoder: Encoder) -> None:
    with pytest.raises(StoreError, match="No sentence of 2 fits 14 pieces; use `window`"):
        plan(treebank(LONG, LONG), encoder, Options(too_long="skip"))


def test_too_long_is_cut_into_windows_and_lost_arcs_are_counted(encoder: Encoder) -> None:
    sentences = tiny.treebank((30, 4, 25, 13, 60)).sentences
    planned = plan(treebank(*sentences), encoder, Options(too_long="window"))
    assert planned.sentences == sentences
    assert [len(parts) > 1 for parts in planned.windows] == [True, False, True, True, True]
    assert planned.audit["windowed"] == 4
    lost = 0
    for sentence, parts in zip(sentences, planned.windows, strict=True):
        seen = [set(range(part.first + 1, part.first + part.words + 1)) for part in parts]
        for word, head in enumerate(sentence.heads, start=1):
            if head != 0 and not any({word, head} <= words for words in seen):
                lost += 1
    assert planned.audit["lost_arcs"] == lost > 0


def test_lost_arcs_by_hand(encoder: Encoder) -> None:
    # Twelve of fourteen words fit: the windows hold the words 1-12 and 7-14.
    sentence = Sentence("s", ("the",) * 14, (0, 14, 7, 13, 6, 7, 1, 1, 1, 13, 12, 12, 1, 6), ("dep",) * 14, ("X",) * 14)
    [parts] = plan(treebank(sentence), encoder, Options(too_long="window")).windows
    assert [(part.first, part.words) for part in parts] == [(0, 12), (6, 8)]
    assert lost_arcs(sentence, parts) == 4  # 2→14, 4→13, 13→1 and 14→6


def test_a_word_that_no_window_can_hold_is_an_error(encoder: Encoder) -> None:
    sentence = of_words("the", "s" * 40, "the", name="huge")
    with pytest.raises(AlignmentError, match=r"sentence huge: .*word 2 alone has \d+ pieces; .* 12\. Only `skip`"):
        plan(treebank(sentence), encoder, Options(too_long="window"))
    assert plan(treebank(SHORT, sentence), encoder, Options(too_long="skip")).sentences == (SHORT,)


def test_unknown_words_are_counted_in_what_is_kept(encoder: Encoder) -> None:
    joiner = "\u200d"
    skipped = of_words(*[joiner] * 13)
    planned = plan(treebank(of_words("the", joiner, joiner), SHORT, skipped), encoder, Options(too_long="skip"))
    assert planned.audit["words_without_piece"] == 2
    assert planned.audit["words_with_unknown_token"] == 2


@pytest.mark.parametrize(
    ("options", "layers", "heads"),
    [
        (Options(), (0, 1), (0, 1, 2, 3)),
        (Options(layers=(2,)), (1,), (0, 1, 2, 3)),
        (Options(layers=(1, 2), heads=(2, 4)), (0, 1), (1, 3)),
    ],
)
def test_layers_and_heads_count_from_zero_in_the_plan(
    options: Options, layers: tuple[int, ...], heads: tuple[int, ...], encoder: Encoder
) -> None:
    planned = plan(treebank(SHORT), encoder, options)
    assert (planned.layers, planned.heads) == (layers, heads)


@pytest.mark.parametrize(
    ("options", "which"), [(Options(layers=(1, 3)), "layers: 3"), (Options(heads=(9,)), "heads: 9")]
)
def test_what_the_encoder_lacks_is_refused(options: Options, which: str, encoder: Encoder) -> None:
    with pytest.raises(StoreError, match=f"{which} is asked for, and the encoder has"):
        plan(treebank(SHORT), encoder, options)


def test_hidden_states_are_those_of_the_layers_asked_for(encoder: Encoder) -> None:
    planned = plan(treebank(SHORT, EXACT), encoder, Options(layers=(2,)), (0, 2))
    assert planned.hidden == Hidden((0, 2), 32)
    assert planned.shapes(0) == {"attention": (1, 4, 4, 4), "hidden": (2, 2, 32)}
    assert plan(treebank(SHORT), encoder, Options()).shapes(0) == {"attention": (2, 4, 4, 4)}
    assert plan(treebank(SHORT), None, Options(), (0, 99)).hidden == Hidden((), 0)


@pytest.mark.parametrize("hidden", [(3,), (0, 3), (-1, 2), (2, 1), (1, 1)])
def test_hidden_states_of_layers_that_there_are_not_are_refused(hidden: tuple[int, ...], encoder: Encoder) -> None:
    with pytest.raises(StoreError) as error:
        plan(treebank(SHORT), encoder, Options(), hidden)
    assert str(error.value) == (
        f"hidden: {list(hidden)} is asked for. Give different layers in ascending order, from 0 (the embeddings) to 2 "
        f"(the encoder's last)."
    )


@pytest.mark.parametrize(
    ("save_encoder", "start", "end"),
    [
        (tiny.save_bert, True, True),
        (tiny.save_roberta, True, True),
        (tiny.save_gpt2, False, False),
        (tiny.save_llama, True, False),
    ],
)
def test_delimiters_are_what_the_tokenizer_writes(
    save_encoder: Callable[[Path], Path], start: bool, end: bool, tmp_path: Path
) -> None:
    other = Encoder(resolve(EncoderSpec(str(save_encoder(tmp_path)))))
    assert plan(treebank(SHORT), other, Options()).delimiters == {"start": start, "end": end}


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9])
def test_shards_part_the_sentences(count: int, encoder: Encoder) -> None:
    with small_shards():
        planned = plan(treebank(*[SHORT] * count), encoder, Options())
        parts = [list(planned.items(shard)) for shard in range(planned.shards)]
    assert [item for part in parts for item in part] == list(range(count))
    assert all(len(part) == 4 for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= 4


@pytest.mark.parametrize("hidden", [(), (1,), (0, 1, 2)])
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_the_estimate_is_the_size_on_disk(
    precision: Precision, hidden: tuple[int, ...], encoder: Encoder, tmp_path: Path
) -> None:
    options = Options(precision=precision, too_long="window")
    planned: Plan = plan(tiny.treebank((*LENGTHS, 30, 40, 35)), encoder, options, hidden)
    announced = shapes(planned, 0)
    zeros = ((name, torch.zeros(shape, dtype=options.dtype)) for name, shape in announced.items())
    write_shard(tmp_path / "shard", announced, options.dtype, zeros)
    size = (tmp_path / "shard").stat().st_size
    assert size <= planned.bytes(0, options) <= 1.01 * size
