from pathlib import Path

import pytest

from corpora.labelled import LabelledText
from corpora.sentence import CorpusError
from datamodules.classification import find_labels, label_numbers

FILE = Path("some.tsv")


def texts(labels: str) -> list[LabelledText]:
    return [LabelledText(str(line), "a", label, line) for line, label in enumerate(labels.split(), start=2)]


def test_labels_are_sorted_and_one_of_two_is_positive() -> None:
    assert find_labels(FILE, texts("yes no yes"), "yes") == (("no", "yes"), 1)
    assert find_labels(FILE, texts("yes no yes"), "no") == (("no", "yes"), 0)


def test_none_of_three_is_positive_even_where_its_name_occurs() -> None:
    assert find_labels(FILE, texts("2 10 1"), "1") == (("1", "10", "2"), None)


def test_two_labels_without_the_positive_one_are_named() -> None:
    message = (
        r"some.tsv: the labels are 'no' and 'yes', and neither is the positive label '1'.*--data.init_args.positive"
    )
    with pytest.raises(CorpusError, match=message):
        find_labels(FILE, texts("yes no"), "1")


def test_one_class_alone_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"some.tsv: every text has the label '1'.*--data.init_args.columns.label"):
        find_labels(FILE, texts("1 1 1"), "1")


def test_numbers_are_places_among_the_labels() -> None:
    assert label_numbers(FILE, texts("c a b a"), ("a", "b", "c")).tolist() == [2, 0, 1, 0]


def test_a_label_that_train_lacks_is_named_with_its_line() -> None:
    with pytest.raises(CorpusError, match=r"some.tsv:4: no text of train has the label 'x'; there are a, b\. "):
        label_numbers(FILE, texts("a b x a y"), ("a", "b"))


def test_of_many_labels_a_message_names_some() -> None:
    """As when the column of the labels is taken from the texts."""
    labels = tuple(f"label{number}" for number in range(1000))
    with pytest.raises(CorpusError, match=r"the label 'x'; there are label0, .*, label19 and 980 more\. ") as caught:
        label_numbers(FILE, texts("label7 x"), labels)
    assert len(str(caught.value)) < 500


def test_nearly_as_many_labels_as_texts_are_refused() -> None:
    """The column of the labels is another."""
    with pytest.raises(CorpusError, match=r"some.tsv: 40 texts have 21 labels, less than two .*columns.label\.$"):
        find_labels(FILE, texts(" ".join(f"l{min(number, 20)}" for number in range(40))), "1")
    labels, positive = find_labels(FILE, texts(" ".join(f"l{number % 20}" for number in range(40))), "1")
    assert (len(labels), positive) == (20, None)
