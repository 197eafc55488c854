import math
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import yaml

from corpora.conll2012 import read_documents
from corpora.conllu import read_treebank
from corpora.document import Documents
from corpora.labelled import Columns, LabelledText, read_labelled
from corpora.sample import write_sample_reviews, write_sample_treebank
from corpora.sentence import Treebank
from studies.sample import Grammar, draw_reviews, draw_treebank, sample_vocabulary

RELATIONS = """root det amod compound nsubj obj iobj obl case aux cop mark advcl acl:relcl conj cc nmod:poss xcomp punct
nsubj:pass aux:pass obl:agent advmod nmod ccomp acl compound:prt flat nummod expl obl:unmarked"""
ROOT = Path(__file__).resolve().parents[2]
GRAMMAR = yaml.load((ROOT / "studies" / "sample.yaml").read_text("utf-8"), yaml.CBaseLoader)
WORDS = {name: set(text.split()) for name, text in GRAMMAR["words"].items()}
FREQUENT = {True: WORDS["GOOD"] | WORDS["LIKED"], False: WORDS["BAD"] | WORDS["HATED"]}
EVALUATIVE = {True: FREQUENT[True] | WORDS["FINE"], False: FREQUENT[False] | WORDS["POOR"]}
NEGATORS = WORDS["NEGATOR"]

Texts = dict[str, tuple[LabelledText, ...]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sample_treebank(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def treebanks(files: dict[str, Path]) -> dict[str, Treebank]:
    return {split: read_treebank(path) for split, path in files.items()}


@pytest.fixture(scope="module")
def documents(files: dict[str, Path]) -> dict[str, Documents]:
    return {split: read_documents(path.with_suffix(".conll")) for split, path in files.items()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    files, columns = write_sample_reviews(tmp_path_factory.mktemp("reviews")), Columns(rationale="rationale")
    return {split: read_labelled(path, columns=columns).texts for split, path in files.items()}


def test_the_archive_holds_what_the_grammar_draws_with_seed_0(files: dict[str, Path], tmp_path: Path) -> None:
    for drawn in (draw_treebank(tmp_path, 0), draw_reviews(tmp_path, 0)):
        assert list(drawn) == ["train", "dev", "test"]
    write_sample_reviews(files["train"].parent)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in files["train"].parent.iterdir()
    }


# The treebank


def test_splits_have_their_sizes_and_share_no_text(treebanks: dict[str, Treebank]) -> None:
    for treebank in treebanks.values():
        assert set(treebank.audit.values()) == {0, len(treebank), treebank.audit["words"]}
    texts = {" ".join(one.words).lower() for treebank in treebanks.values() for one in treebank.sentences}
    assert {split: len(treebank) for split, treebank in treebanks.items()} == {"train": 2000, "dev": 250, "test": 250}
    assert len(texts) == 2500


def test_every_relation_is_in_every_split(treebanks: dict[str, Treebank]) -> None:
    for split, least in {"train": 50, "dev": 3, "test": 3}.items():
        found = Counter(chain.from_iterable(sentence.relations for sentence in treebanks[split].sentences))
        assert set(found) == set(RELATIONS.split())
        assert min(found.values()) >= least


def test_no_fixed_offset_solves_it(treebanks: dict[str, Treebank]) -> None:
    arcs = Counter(
        (relation, head - i if head else 0)
        for sentence in treebanks["train"].sentences
        for i, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1)
        if relation != "punct"
    )
    total = sum(arcs.values())
    assert max(sum(n for (_, by), n in arcs.items() if by == offset) for offset in range(-5, 6)) < 0.4 * total
    for relation in ("nsubj", "obj", "obl", "conj", "acl:relcl", "advcl", "case", "nmod:poss", "mark", "det"):
        offsets = {by: n for (name, by), n in arcs.items() if name == relation}
        assert max(offsets.values()) < 0.6 * sum(offsets.values()), relation


# The documents and the text


def test_documents_have_the_sentences_of_the_treebank_and_their_heads(
    documents: dict[str, Documents], treebanks: dict[str, Treebank]
) -> None:
    for split, found in documents.items():
        words = [words for document in found.documents for words in document.sentences]
        assert words == [sentence.words for sentence in treebanks[split].sentences]
        assert found.audit["heads_by_parse"] == found.audit["mentions"] > 3 * len(found)
        assert not any(found.audit[name] for name in ("singletons", "crossing", "spans_in_two_clusters"))


def test_a_cluster_is_one_somebody(documents: dict[str, Documents]) -> None:
    """Whatever the names and nouns, a cluster has one pronoun, and begins with a name or a noun that is new."""
    members = {"her": "she", "him": "he", "his": "he", "its": "it"}
    types, clusters = Counter[str](), Counter[int]()
    for document in documents["train"].documents:
        found: dict[int, list[tuple[str, str]]] = {}
        for mention in document.mentions:
            head = document.sentences[mention.sentence][mention.head].lower()
            found.setdefault(mention.cluster, []).append((mention.type, head))
            types[mention.type] += 1
        clusters[len(found)] += 1
        heads = [{(kind, members.get(head, head)) for kind, head in cluster} for cluster in found.values()]
        assert len(set(chain.from_iterable(heads))) == sum(map(len, heads))  # no word stands for two
        for cluster in heads:
            assert all(count == 1 for count in Counter(kind for kind, _ in cluster).values()), cluster
    assert min(types.values()) > 300
    assert clusters[0] < 80 < clusters[2] + clusters[3]


# The reviews


def tokens(text: LabelledText) -> list[str]:
    return text.text.lower().split()


def decided(text: LabelledText) -> list[str]:
    """The deciding words in their order."""
    assert text.rationale is not None
    return [tokens(text)[place] for place in text.rationale]


def test_reviews_are_balanced_and_share_no_text(texts: Texts) -> None:
    for split, size in {"train": 3000, "dev": 250, "test": 250}.items():
        assert Counter(text.label for text in texts[split]) == {"positive": size / 2, "negative": size / 2}
    assert len({text.text.lower() for split in texts.values() for text in split}) == 3500


def test_the_rationale_alone_gives_every_label(texts: Texts) -> None:
    """One evaluative word, which counts the other way behind a negator."""
    negated = Counter[bool]()
    for text in chain.from_iterable(texts.values()):
        *negator, word = decided(text)
        assert (word in EVALUATIVE[True]) != (word in EVALUATIVE[False]), word
        assert text.label == ("positive" if (word in EVALUATIVE[True]) is not bool(negator) else "negative"), text
        assert set(negator) <= NEGATORS
        negated[bool(negator)] += 1
    assert 0.08 < negated[True] / negated.total() < 0.25
    used = Counter(word for text in texts["train"] for word in decided(text))
    assert min(used[word] for word in FREQUENT[True] | FREQUENT[False]) >= 20
    assert max(used[word] for word in WORDS["FINE"] | WORDS["POOR"]) < 10  # no classifier learns them all


def word_counts(texts: Texts) -> dict[str, Counter[str]]:
    """By label, in how many texts of train a word is."""
    counts = {label: Counter[str]() for label in ("positive", "negative")}
    for text in texts["train"]:
        counts[text.label].update(set(tokens(text)))
    return counts


def test_no_bag_of_words_gets_all_labels_right_but_it_does_better_than_chance(texts: Texts) -> None:
    """Naive Bayes over the words of train; and the balance of evaluative words, were their meaning known."""
    counts = word_counts(texts)
    odds = {
        word: math.log((counts["positive"][word] + 1) / (counts["negative"][word] + 1))
        for word in counts["positive"] | counts["negative"]
    }

    def balance(text: LabelledText) -> int:
        return sum((word in EVALUATIVE[True]) - (word in EVALUATIVE[False]) for word in tokens(text))

    held = texts["dev"] + texts["test"]
    bayes = sum((sum(odds.get(w, 0.0) for w in set(tokens(t))) > 0) == (t.label == "positive") for t in held) / 500
    known = sum((balance(t) > 0) == (t.label == "positive") for t in held) / 500
    assert 0.53 < bayes < 0.8
    assert 0.53 < known < 0.8


def test_the_vocabulary_has_every_word_with_its_tags_and_few_others() -> None:
    grammar, tags = Grammar(7), sample_vocabulary()
    words = [word for _ in range(200) for sentence in grammar.document()[0] for word in sentence]
    assert {(word.form, word.tag) for word in words if word.tag not in tags.get(word.form.lower(), ())} == set()
    reviews = {word.form.lower() for label in ("positive", "negative") * 400 for word in grammar.review(label)}
    assert reviews - tags.keys() == set()
    assert len(tags.keys() - reviews - {word.form.lower() for word in words}) < 0.2 * len(tags)
    assert {"KIN", "NN"} <= tags["school"]
    assert tags["kitchens"] == {"NNS"}
    assert tags["superb"] == {"GOOD"}
