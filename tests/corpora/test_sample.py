import hashlib
import math
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import conllu
import pytest
import yaml

from attention_probing.corpora import sample
from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.document import Documents
from attention_probing.corpora.labelled import Columns, LabelledText, read_labelled
from attention_probing.corpora.sample import (
    SAMPLE_VERSION,
    write_sample_documents,
    write_sample_reviews,
    write_sample_treebank,
)
from attention_probing.corpora.sample_grammar import Grammar, sample_vocabulary
from attention_probing.corpora.sentence import Treebank

RELATIONS = """root det amod compound nsubj obj iobj obl case aux cop mark advcl acl:relcl conj cc nmod:poss xcomp punct
nsubj:pass aux:pass obl:agent advmod nmod ccomp acl compound:prt flat nummod expl obl:unmarked"""
LEAVES = "det case cc punct aux aux:pass cop mark compound compound:prt expl flat"
GRAMMAR = yaml.load(Path(sample.__file__).with_name("sample.yaml").read_text("utf-8"), yaml.CBaseLoader)
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
    return {split: read_documents(path) for split, path in write_sample_documents(files["train"].parent).items()}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    files, columns = write_sample_reviews(tmp_path_factory.mktemp("reviews")), Columns(rationale="rationale")
    return {split: read_labelled(path, columns=columns).texts for split, path in files.items()}


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize(
    ("write", "digest"),
    [
        (write_sample_treebank, "4fbd621917f6bfb3d265d6cd313a2e61"),
        (write_sample_reviews, "0c7988d8d4bf3a86b07d88f05c0148ff"),
    ],
)
def test_a_seed_gives_the_same_bytes_everywhere(
    write: Callable[..., dict[str, Path]], digest: str, tmp_path: Path
) -> None:
    """The digest changes with the grammar and its words: raise the version, then write down the new ones."""
    found = write(tmp_path / "new" / "deeper")
    assert list(found) == ["train", "dev", "test"]
    assert set(found.values()) <= set((tmp_path / "new" / "deeper").iterdir())
    assert SAMPLE_VERSION == 3
    assert hashlib.sha256(b"".join(path.read_bytes() for path in found.values())).hexdigest()[:32] == digest
    assert write(tmp_path / "other", seed=1)["train"].read_bytes() != found["train"].read_bytes()


def test_files_that_are_damaged_are_written_again_and_others_stay(
    files: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = files["dev"].parent
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    write_sample_documents(folder)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before
    files["dev"].with_suffix(".conll").write_text("cut off", encoding="utf-8")
    write_sample_treebank(folder)
    [aside] = folder.glob("*.old-*")
    assert aside.read_text(encoding="utf-8") == "cut off"
    aside.unlink()
    assert {path: path.read_bytes() for path in folder.iterdir()} == {path: one for path, (one, _) in before.items()}
    assert "is damaged, and is made again" in caplog.text


# The treebank


def test_splits_have_their_sizes_and_share_no_text(treebanks: dict[str, Treebank]) -> None:
    for treebank in treebanks.values():
        audit = dict(treebank.audit)
        assert (audit.pop("sentences"), audit.pop("documents")) == (len(treebank), len(treebank) // 5)
        assert audit.pop("words") > 0
        assert set(audit.values()) == {0}
        of_ids = [sentence.id.rpartition("-")[0] for sentence in treebank.sentences]
        places = list(dict.fromkeys(of_ids))
        assert [sentence.document for sentence in treebank.sentences] == [places.index(one) for one in of_ids]
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


def test_text_is_what_the_tokens_spell(files: dict[str, Path]) -> None:
    for tokens in conllu.parse(files["train"].read_text(encoding="utf-8")):
        spelled = (token["form"] + ("" if token["misc"] else " ") for token in tokens)
        assert "".join(spelled).rstrip() == tokens.metadata["text"]


def test_trees_have_one_root_some_crossing_arcs_and_leaves_that_are_leaves(treebanks: dict[str, Treebank]) -> None:
    leaves = set(LEAVES.split())
    crossing = 0
    for sentence in treebanks["train"].sentences:
        arcs = [(min(i, head), max(i, head)) for i, head in enumerate(sentence.heads, start=1)]
        crossing += any(a < c < b < d for a, b in arcs for c, d in arcs)
        heads = set(sentence.heads)
        assert not any(relation in leaves and i in heads for i, relation in enumerate(sentence.relations, start=1))
        assert (sentence.words[-1] in ".?", sentence.heads[-1]) == (True, sentence.heads.index(0) + 1)
    assert 0.03 < crossing / 2000 < 0.1


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


def test_the_text_has_a_document_of_dev_or_test_on_each_line(
    files: dict[str, Path], treebanks: dict[str, Treebank]
) -> None:
    lines = (files["train"].parent / "sample.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(lines)) == len(lines) == 100
    assert lines[0].replace("'s", " 's").startswith(" ".join(treebanks["dev"].sentences[0].words[:-1]))


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


def test_reviews_are_tokenised_and_spelled(texts: Texts) -> None:
    for text in chain.from_iterable(texts.values()):
        words = text.text.split()
        assert " ".join(words) == text.text
        assert not set(text.text) & set("*{}/:")
        for before, word in zip([".", *words], words, strict=False):
            assert before != "." or word[0] == word[0].upper()
            assert word in (".", ",", "n't") or not set(word) & set(".,'"), word
            assert before.lower() not in ("a", "an") or (before.lower() == "an") == (word[0] in "aeiou"), text


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
