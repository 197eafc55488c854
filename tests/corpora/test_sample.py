import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path

import conllu
import pytest

from corpora.conllu import read_treebank
from corpora.grammar import Mood, Nominal, attach_to_pronoun, verb_chain, word
from corpora.lexicon import FRAMES, KINDS, PATTERNS, WORDS, s_form, verb_of
from corpora.reviews import REVIEWS_VERSION, write_sample_reviews
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
from corpora.sentence import Treebank
from corpora.tables import words

RELATIONS = {
    *words("root det amod compound nsubj obj iobj obl case aux cop mark advcl acl:relcl conj cc nmod:poss xcomp punct"),
    *words("nsubj:pass aux:pass obl:agent advmod nmod ccomp acl compound:prt flat nummod expl discourse obl:unmarked"),
}


@dataclass
class Row:
    """One word of the sample, as a reader of the file that knows nothing of the grammar sees it."""

    form: str
    lemma: str
    upos: str
    head: int
    relation: str

    @property
    def plural(self) -> bool:
        return self.form.lower() != self.lemma


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sample_treebank(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def treebanks(files: dict[str, Path]) -> dict[str, Treebank]:
    return {split: read_treebank(path) for split, path in files.items()}


@pytest.fixture(scope="module")
def sentences(files: dict[str, Path]) -> list[list[Row]]:
    """The words of all sentences, as the conllu library parses the files."""
    return [
        [
            Row(token["form"], token["lemma"], token["upos"], token["head"], token["deprel"])
            for token in tokens
            if isinstance(token["id"], int)
        ]
        for path in files.values()
        for tokens in conllu.parse(path.read_text(encoding="utf-8"))
    ]


def below(rows: list[Row], head: int) -> list[Row]:
    """The dependents of the word at a position counted from 1."""
    return [row for row in rows if row.head == head]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "name", "version", "digest"),
    [
        (write_sample_treebank, "sample-{}.conllu", (SAMPLE_VERSION, 1), "8eeae5e0c4be3d644a29af3c9934a5d3"),
        (write_sample_reviews, "reviews-{}.tsv", (REVIEWS_VERSION, 2), "7413a0dade2c91b90040e1be5775a50d"),
    ],
)
def test_a_seed_gives_the_same_bytes_everywhere(
    write: Callable[..., dict[str, Path]], name: str, version: tuple[int, int], digest: str, tmp_path: Path
) -> None:
    """The digest changes with the grammar and its words: raise the version, then write down the new ones."""
    folder = tmp_path / "new" / "deeper"
    found = write(folder)
    assert found == {split: folder / name.format(split) for split in ("train", "dev", "test")}
    assert sorted(folder.iterdir()) == sorted(found.values())
    assert version[0] == version[1]
    assert hashlib.sha256(b"".join(path.read_bytes() for path in found.values())).hexdigest()[:32] == digest
    assert write(tmp_path / "other", seed=1)["train"].read_bytes() != found["train"].read_bytes()


def test_splits_have_their_sizes_and_share_no_text(treebanks: dict[str, Treebank]) -> None:
    texts: list[str] = []
    for treebank in treebanks.values():
        assert treebank.audit["range_rows"] > 40
        assert not any(treebank.audit[name] for name in ("multiple_roots", "duplicates", "generated_ids"))
        texts += [" ".join(sentence.words).lower() for sentence in treebank.sentences]
    assert {split: len(treebank) for split, treebank in treebanks.items()} == {"train": 2000, "dev": 250, "test": 250}
    assert len(set(texts)) == 2500


def test_every_relation_is_in_train_and_the_common_ones_in_every_split(treebanks: dict[str, Treebank]) -> None:
    found = {
        split: Counter(relation for sentence in treebank.sentences for relation in sentence.relations)
        for split, treebank in treebanks.items()
    }
    assert set(found["train"]) == RELATIONS
    assert min(found["train"].values()) >= 25
    assert RELATIONS - {"discourse", "acl"} <= set(found["dev"]) & set(found["test"])


def test_no_fixed_offset_solves_it(treebanks: dict[str, Treebank]) -> None:
    arcs = Counter(
        (relation, head - i if head else 0)
        for sentence in treebanks["train"].sentences
        for i, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True), start=1)
        if relation != "punct"
    )
    total = sum(arcs.values())
    assert max(sum(n for (_, by), n in arcs.items() if by == offset) for offset in range(-5, 6)) < 0.4 * total
    for relation in ("nsubj", "obj", "obl", "conj", "acl:relcl", "advcl", "case", "nmod:poss", "mark"):
        offsets = {by: n for (name, by), n in arcs.items() if name == relation}
        assert max(offsets.values()) < 0.6 * sum(offsets.values()), relation


def test_text_is_what_the_tokens_spell(files: dict[str, Path]) -> None:
    for tokens in conllu.parse(files["train"].read_text(encoding="utf-8")):
        text, inside = "", 0
        for token in tokens:
            if isinstance(token["id"], tuple):
                inside = token["id"][2]
                first, last = (next(t for t in tokens if t["id"] == token["id"][k]) for k in (0, 2))
                assert token["form"] == first["form"] + last["form"]
            elif token["id"] <= inside:
                assert token["misc"] is None  # the spacing is that of the multiword token
                continue
            text += token["form"] + ("" if (token["misc"] or {}).get("SpaceAfter") == "No" else " ")
        assert text.rstrip() == tokens.metadata["text"]


def test_trees_have_one_root_no_crossing_arcs_and_leaves_that_are_leaves(treebanks: dict[str, Treebank]) -> None:
    leaves = set(words("det case cc punct aux aux:pass cop mark compound compound:prt expl flat"))
    for sentence in treebanks["train"].sentences:
        assert sentence.heads.count(0) == 1
        arcs = [(min(i, head), max(i, head)) for i, head in enumerate(sentence.heads, start=1)]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs if a)
        heads = set(sentence.heads)
        assert not any(relation in leaves and i in heads for i, relation in enumerate(sentence.relations, start=1))
        assert sentence.words[-1] in ".?"
        assert sentence.heads[-1] == sentence.heads.index(0) + 1


def tags_of(table: str) -> dict[str, set[str]]:
    """The parts of speech of each relation."""
    return {relation: set(tags) for relation, *tags in map(words, words(table, "|"))}


def test_arcs_join_the_parts_of_speech_they_may(sentences: list[list[Row]]) -> None:
    dependent = tags_of(
        "det DET | amod ADJ | compound NOUN | case ADP PART | aux AUX | aux:pass AUX | cop AUX | expl PRON | "
        "iobj NOUN PROPN PRON | nmod:poss NOUN PROPN PRON | mark SCONJ PART | nummod NUM | flat PROPN | "
        "cc CCONJ | ccomp VERB ADJ NOUN PROPN | acl:relcl VERB | punct PUNCT"
    )
    head = tags_of(
        "det NOUN | amod NOUN | compound NOUN | iobj VERB | obj VERB | aux:pass VERB | nsubj:pass VERB | "
        "cop NOUN PROPN ADJ | acl:relcl NOUN PROPN"
    )
    for rows in sentences:
        for row in rows:
            assert row.upos in dependent.get(row.relation, {row.upos}), row
            if row.head:
                assert rows[row.head - 1].upos in head.get(row.relation, {rows[row.head - 1].upos}), (row, rows)


def test_the_article_goes_by_the_sound_that_follows(sentences: list[list[Row]]) -> None:
    seen: Counter[str] = Counter()
    for rows in sentences:
        for row, after in pairwise(rows):
            if row.lemma == "a" and row.upos == "DET":
                vowel = after.form[0] in "aeio" or after.form.startswith(("honest", "ug", "um", "un", "us"))
                vowel = vowel and not after.form.startswith(("university", "useful", "union"))
                assert row.form.lower() == ("an" if vowel else "a"), after.form
                seen[row.form.lower()] += 1
    assert seen["an"] > 100 < seen["a"]


def test_determiners_agree_in_number(sentences: list[list[Row]]) -> None:
    singular, plural = {"a", "an", "another", "every", "this", "that"}, {"these", "those", "many", "several"}
    for rows in sentences:
        for row in rows:
            if row.relation in ("det", "amod", "nummod") and row.upos != "PRON":
                noun = rows[row.head - 1]
                if row.form.lower() in singular:
                    assert not noun.plural, (row.form, noun.form)
                elif row.form.lower() in plural or row.upos == "NUM":
                    assert noun.plural, (row.form, noun.form)


def test_pronouns_have_the_case_of_their_relation(sentences: list[list[Row]]) -> None:
    nominative, accusative = {"I", "he", "she", "we", "they"}, {"me", "him", "us", "them"}
    seen: Counter[str] = Counter()
    for rows in sentences:
        for row in rows:
            form = row.form if row.form == "I" else row.form.lower()
            if form in nominative:
                assert row.relation in ("nsubj", "nsubj:pass"), rows
            elif form in accusative:
                assert row.relation in ("obj", "iobj", "obl", "obl:agent"), rows
            elif form in ("my", "your", "his", "our", "their"):
                assert row.relation == "nmod:poss", rows
            elif form == "her":
                assert row.lemma == ("her" if row.relation == "nmod:poss" else "she"), rows
            seen[form] += 1
    assert all(seen[form] > 10 for form in nominative | accusative)


def number_of(rows: list[Row], subject: Row) -> str:
    """`singular`, `plural`, or for a pronoun the person that its verb shows."""
    position = rows.index(subject) + 1
    if any(child.relation == "conj" for child in below(rows, position)):
        return "plural"
    if subject.form.lower() in ("who", "which", "that") and subject.relation.startswith("nsubj"):
        clause = rows[subject.head - 1]
        return number_of(rows, rows[clause.head - 1]) if clause.relation == "acl:relcl" else "singular"
    if subject.upos == "PRON":
        forms = {"i": "I", "you": "plural", "we": "plural", "they": "plural"}
        return forms.get(subject.form.lower(), "singular")
    return "plural" if subject.upos == "NOUN" and subject.plural else "singular"


def test_verbs_agree_with_their_subjects(sentences: list[list[Row]]) -> None:
    be = {"singular": {"is", "was", "'s"}, "plural": {"are", "were", "'re"}, "I": {"am", "was", "'m"}}
    checked: Counter[tuple[bool, str]] = Counter()
    for rows in sentences:
        for subject in rows:
            if not subject.relation.startswith("nsubj"):
                continue
            chain = [row for row in below(rows, subject.head) if row.relation in ("aux", "aux:pass", "cop")]
            finite = chain[0] if chain else rows[subject.head - 1]
            number = number_of(rows, subject)
            form = finite.form.lower()
            if finite.lemma == "be":
                assert form in be[number], (form, number, rows)
            elif finite.lemma in ("have", "do") and form in ("have", "has", "do", "does"):
                assert form.endswith("s") == (number == "singular"), (form, number, rows)
            elif not chain and finite.upos == "VERB" and form in (finite.lemma, s_form(finite.lemma)):
                past = form == finite.lemma and form in ("put", "read")
                assert past or (form != finite.lemma) == (number == "singular"), (form, number, rows)
            checked[finite.lemma in ("be", "have", "do"), number] += 1
    assert all(checked[auxiliary, number] > 25 for auxiliary in (True, False) for number in ("singular", "plural"))


def test_frames_are_complete(sentences: list[list[Row]]) -> None:
    for rows in sentences:
        for position, verb in enumerate(rows, start=1):
            relations = [row.relation for row in below(rows, position)]
            if "iobj" in relations:
                assert {"obj", "xcomp", "ccomp"} & set(relations), rows
            assert relations.count("obj") <= 1
            assert sum(relation.startswith("nsubj") for relation in relations) <= 1
            assert ("aux:pass" in relations) == ("nsubj:pass" in relations), rows
            if "obl:agent" in relations:
                assert "aux:pass" in relations or verb.relation == "acl", rows


# Inflection and the tables of the grammar

NOUNS = {name for name, kind in KINDS.items() if kind.nouns}


@pytest.mark.parametrize(
    ("pronoun", "mood", "contract", "expected"),
    [
        ("she", Mood("future", modal="will", negative=True), True, "wo n't write"),
        ("she", Mood("present", modal="may", negative=True), True, "may not write"),
        ("I", Mood("present", progressive=True, negative=True), True, "'m not writing"),
        ("they", Mood("present", negative=True), True, "do n't write"),
        ("she", Mood("present", progressive=True, negative=True), True, "is n't writing"),
        ("she", Mood("present", progressive=True), False, "'s writing"),
        ("they", Mood("future", modal="will"), False, "'ll write"),
        ("she", Mood("present", perfect=True), False, "has written"),
        ("she", Mood("present"), False, "writes"),
    ],
)
def test_not_and_auxiliaries_contract_where_english_lets_them(
    pronoun: str, mood: Mood, contract: bool, expected: str
) -> None:
    person, plural = {"I": (1, False), "she": (3, False), "they": (3, True)}[pronoun]
    subject = Nominal(word(pronoun, "PRON", "nsubj"), "person", person, plural)
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject, contract=contract)
    attach_to_pronoun(subject, chain)
    assert " ".join(node.form for node in chain) == expected
    assert [node.lemma for node in chain if node.upos == "PART"] == ["not"] * mood.negative


FORMS = {
    "bake": "bake bakes baked baked baking",
    "carry": "carry carries carried carried carrying",
    "watch": "watch watches watched watched watching",
    "agree": "agree agrees agreed agreed agreeing",
    "plan": "plan plans planned planned planning",
    "put/put": "put puts put put putting",
    "buy/bought": "buy buys bought bought buying",
    "write/wrote/written": "write writes wrote written writing",
}


def test_words_follow_the_spelling_rules() -> None:
    assert {entry: " ".join(astuple(verb_of(entry))) for entry in FORMS} == FORMS
    bases = "dog box watch story key go house dress"
    assert " ".join(map(s_form, bases.split())) == "dogs boxes watches stories keys goes houses dresses"


def test_frames_speak_of_known_patterns_kinds_and_verbs() -> None:
    assert {frame.pattern for frame in FRAMES} == set(PATTERNS)
    assert len({frame.verb for frame in FRAMES}) == len({frame.verb.base for frame in FRAMES})
    for frame in FRAMES:
        assert frame.subjects
        assert set(frame.subjects) <= NOUNS, frame
        assert set(frame.objects) <= NOUNS | {"city"}, frame
        needs_link = frame.pattern in ("motion", "ditransitive", "prepositional", "particle", "object infinitive")
        assert bool(frame.link) == needs_link, frame


def test_nouns_are_listed_once_and_tables_speak_of_known_kinds() -> None:
    singulars = [noun.singular for kind in KINDS.values() for noun in kind.nouns]
    assert len(singulars) == len(set(singulars)) > 150
    assert {name for name, kind in KINDS.items() if kind.predicates} == NOUNS
    assert {other for kind in KINDS.values() for _, other in kind.links} <= NOUNS | {"city"}
    listed = ("roles", "relatives", "free", "at", "on", "plans")
    assert {noun for name in listed for noun in WORDS[name]} <= set(singulars)
