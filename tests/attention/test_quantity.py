import pytest

from attention.antecedent import WindowPlan
from attention.options import Options
from attention.plan import SentencePlan
from attention.quantity import ATTENTION, Antecedent, Attention
from tests import tiny
from tests.documents import corpus


def test_attention_is_of_sentences() -> None:
    treebank = tiny.treebank((3, 4))
    planned = ATTENTION.plan(treebank, None, Options())
    assert isinstance(planned, SentencePlan)
    assert planned.sentences == treebank.sentences
    assert (planned.quantity, planned.unit, len(planned)) == ("attention", "sentences", 2)


def test_hidden_states_want_an_encoder() -> None:
    planned = Attention((1,)).plan(tiny.treebank((3, 4)), None, Options())
    assert planned.hidden.layers == ()
    assert planned.shapes(0).keys() == {"attention"}


def test_antecedents_are_sought_in_windows() -> None:
    documents = corpus([(3, 4, 5, 6), (5, 6, 4, 8)])
    for quantity, all_words in ((Antecedent(), False), (Antecedent("words"), True)):
        planned = quantity.plan(documents, None, Options())
        assert isinstance(planned, WindowPlan)
        assert planned.all_words == all_words
        assert (planned.quantity, planned.unit, len(planned)) == ("antecedent", "windows", 2)


def test_each_wants_its_own_kind_of_corpus() -> None:
    with pytest.raises(TypeError, match="attention is taken of a treebank, not of Documents"):
        ATTENTION.plan(corpus([(3, 4)]), None, Options())
    with pytest.raises(TypeError, match="antecedent is taken of documents, not of Treebank"):
        Antecedent().plan(tiny.treebank((3, 4)), None, Options())


def test_the_identities_differ() -> None:
    assert ATTENTION.identity == {"quantities": ["attention"]}
    assert Attention((0, 2)).identity == {"quantities": ["attention", "hidden"], "hidden": [0, 2]}
    assert Antecedent().identity == {"quantities": ["antecedent"], "candidates": "mentions"}
