import pytest
import torch
from torch import Tensor

from models.embedding import WordEmbedding
from models.interface import ModelError

WORDS, PAD = 400, 3


def vectors() -> tuple[Tensor, Tensor]:
    """Vectors of size 5 whose entries spread by 0.5, of every second word."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(WORDS, 5, generator=random) * 0.5, torch.arange(WORDS) % 2 == 0


def trained_once(embedding: WordEmbedding) -> tuple[Tensor, Tensor]:
    """The rows before and after a step that moves every embedded word, the padding's too if it can be."""
    before = embedding.rows.weight.detach().clone()
    loss = embedding(torch.arange(WORDS)[None]).square().sum() + embedding(torch.full((1, 4), PAD)).sum()
    if not any(parameter.requires_grad for parameter in embedding.parameters()):
        return before, embedding.rows.weight.detach()
    loss.backward()
    torch.optim.SGD([p for p in embedding.parameters() if p.requires_grad], 0.1).step()
    return before, embedding.rows.weight.detach()


def test_known_words_have_their_vector_and_others_one_of_the_same_spread() -> None:
    torch.manual_seed(0)
    given, known = vectors()
    embedding = WordEmbedding(WORDS, PAD, vectors=given, known=known)
    found = embedding(torch.arange(WORDS)[None])[0].detach()
    assert torch.equal(found[known], given[known])
    drawn = found[~known & (torch.arange(WORDS) != PAD)]
    assert not torch.isclose(drawn, given[~known & (torch.arange(WORDS) != PAD)]).any(dim=1).all()
    assert float(drawn.std()) == pytest.approx(float(given[known].std()), rel=0.1)
    assert float(drawn.mean()) == pytest.approx(0, abs=0.05)
    assert embedding.size == 5


@pytest.mark.parametrize("known_words", [0, 1])
def test_where_hardly_a_word_is_known_the_others_are_numbers_still(known_words: int) -> None:
    torch.manual_seed(0)
    known = torch.zeros(WORDS, dtype=torch.bool)
    known[:known_words] = True
    rows = WordEmbedding(WORDS, PAD, vectors=torch.full((WORDS, 1), 2.0), known=known).rows.weight.detach()
    assert rows.isfinite().all()
    if not known_words:
        assert float(rows.std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(("asked", "size"), [(None, 300), (7, 7)])
def test_without_vectors_rows_are_small_and_of_the_size_asked_for(asked: int | None, size: int) -> None:
    torch.manual_seed(0)
    embedding = WordEmbedding(WORDS, PAD, asked)
    assert embedding.size == size
    assert embedding(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, size)
    assert float(embedding.rows.weight.detach().std()) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("trainable", [True, False])
def test_padding_is_zero_and_stays_so_and_frozen_rows_stay_all(trainable: bool, project: int | None) -> None:
    torch.manual_seed(0)
    given, known = vectors()
    embedding = WordEmbedding(WORDS, PAD, None, given, known, trainable, project)
    before, after = trained_once(embedding)
    moved = (before != after).any(dim=1)
    expected = torch.full((WORDS,), trainable)
    expected[PAD] = False
    assert torch.equal(moved, expected)
    assert (embedding(torch.full((1, 2), PAD)) == 0).all()


def test_a_projection_is_one_linear_map_without_a_bias() -> None:
    torch.manual_seed(0)
    given, known = vectors()
    embedding = WordEmbedding(WORDS, PAD, None, given, known, False, 4)
    assert embedding.size == 4
    (weight,) = (parameter for parameter in embedding.parameters() if parameter.requires_grad)
    found = embedding(torch.tensor([[2, 4]]))[0]
    torch.testing.assert_close(found, torch.stack([weight @ given[2], weight @ given[4]]))


def test_a_projection_begins_as_an_isometry() -> None:
    torch.manual_seed(0)
    given, known = vectors()
    embedded = WordEmbedding(WORDS, PAD, None, given, known, project=12)(torch.arange(WORDS)[None])[0].detach()
    torch.testing.assert_close(embedded[known] @ embedded[known].T, given[known] @ given[known].T)


def test_vectors_of_another_size_than_asked_for_are_refused_by_both_sizes() -> None:
    given, known = vectors()
    with pytest.raises(ModelError, match=r"5 dimensions, and 300 are asked for: leave --model\.init_args\.embedding"):
        WordEmbedding(WORDS, PAD, 300, given, known)
    assert WordEmbedding(WORDS, PAD, 5, given, known).size == 5


def test_the_vectors_that_were_given_are_not_changed() -> None:
    given, known = vectors()
    kept = given.clone()
    trained_once(WordEmbedding(WORDS, PAD, vectors=given, known=known))
    trained_once(WordEmbedding(WORDS, PAD, vectors=given))
    assert torch.equal(given, kept)
