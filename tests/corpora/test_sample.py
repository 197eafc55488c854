import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path

import conllu
import pytest

from corpora.conllu import read_treebank
from corpora.grammar import Mood, Nominal, attach_to_pronoun, verb_chain, word
from corpora.lexicon import FRAMES, KINDS, PATTERNS, PRONOUNS, WORDS, Verb, s_form, verb_of
from corpora.reviews import REVIEWS_VERSION, write_sample_reviews
from corpora.sample import SAMPLE_VERSION, write_sample_treebank
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
    found = write(tmp_path / "new" / "deeper")
    assert {split: path.name for split, path in found.items()} == {
        split: name.format(split) for split in ("train", "dev", "test")
    }
    assert sorted((tmp_path / "new" / "deeper").iterdir()) == sorted(found.values())
    assert version[0] == version[1]
    assert hashlib.sha256(b"".join(path.read_bytes() for path in found.values())).hexdigest()[:32] == digest
    other = write(tmp_path / "other", seed=1)
    assert other["train"].read_bytes() != found["train"].read_bytes()


def test_splits_have_their_sizes_and_share_no_text(files: dict[str, Path]) -> None:
    texts: list[str] = []
    sizes = {}
    for split, path in files.items():
        treebank = read_treebank(path)
        sizes[split] = len(treebank)
        assert treebank.audit["words"] == sum(map(len, treebank.sentences))
        assert treebank.audit["range_rows"] > 40
        assert not any(treebank.audit[name] for name in ("multiple_roots", "duplicates", "generated_ids"))
        texts += [" ".join(sentence.words).lower() for sentence in treebank.sentences]
    assert sizes == {"train": 2000, "dev": 250, "test": 250}
    assert len(set(texts)) == 2500


def test_every_relation_is_in_train_and_the_common_ones_in_every_split(files: dict[str, Path]) -> None:
    found = {
        split: Counter(relation for sentence in read_treebank(path).sentences for relation in sentence.relations)
        for split, path in files.items()
    }
    assert set(found["train"]) == RELATIONS
    assert min(found["train"].values()) >= 25
    asked = RELATIONS - {"discourse", "acl"}
    assert asked <= set(found["dev"])
    assert asked <= set(found["test"])


def test_lengths_vary_from_three_to_thirty(sentences: list[list[Row]]) -> None:
    lengths = Counter(map(len, sentences))
    assert (min(lengths), max(lengths)) == (3, 30)
    assert sum(n for length, n in lengths.items() if length >= 20) > 200
    assert max(lengths.values()) < 0.1 * len(sentences)


def test_no_fixed_offset_solves_it(files: dict[str, Path]) -> None:
    arcs = Counter(
        (relation, head - i if head else 0)
        for sentence in read_treebank(files["train"]).sentences
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


def test_trees_have_one_root_no_crossing_arcs_and_leaves_that_are_leaves(files: dict[str, Path]) -> None:
    leaves = set(words("det case cc punct aux aux:pass cop mark compound compound:prt expl flat"))
    for sentence in read_treebank(files["train"]).sentences:
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
            elif not chain and finite.upos == "VERB" and form in (finite.lemma, *third_person(finite.lemma)):
                past = form == finite.lemma and form in ("put", "read")
                assert past or (form != finite.lemma) == (number == "singular"), (form, number, rows)
            checked[finite.lemma in ("be", "have", "do"), number] += 1
    assert all(checked[auxiliary, number] > 25 for auxiliary in (True, False) for number in ("singular", "plural"))


def third_person(lemma: str) -> Iterator[str]:
    yield lemma + "s"
    yield lemma + "es"
    yield lemma[:-1] + "ies"


def test_each_auxiliary_governs_the_form_of_the_next_verb(sentences: list[list[Row]]) -> None:
    checked: Counter[str] = Counter()
    for rows in sentences:
        for position, head in enumerate(rows, start=1):
            chain = [row for row in below(rows, position) if row.relation in ("aux", "aux:pass", "cop")]
            if head.upos == "VERB":
                chain.append(head)
            for auxiliary, verb in pairwise(chain):
                form, kind = verb.form.lower(), "be" if auxiliary.relation == "aux:pass" else auxiliary.lemma
                if auxiliary.relation == "aux:pass" or kind == "have":
                    assert not form.endswith("ing"), rows
                    assert form != verb.lemma or form in ("put", "read", "run", "become"), rows
                elif kind == "be":
                    assert form.endswith("ing"), rows
                else:
                    assert form == verb.lemma, rows
                checked[kind] += 1
    assert min(checked[kind] for kind in ("be", "have", "do", "will", "can")) > 15


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
PERSON = {"I": (1, False), "you": (2, True), "she": (3, False), "we": (1, True), "they": (3, True)}


def subject(pronoun: str) -> Nominal:
    person, plural = PERSON[pronoun]
    return Nominal(word(PRONOUNS[pronoun][0], "PRON", "nsubj", pronoun), "person", person, plural)


@pytest.mark.parametrize(
    ("pronoun", "mood", "expected"),
    [
        ("she", Mood("future", modal="will", negative=True), "wo n't write"),
        ("she", Mood("present", modal="can", negative=True), "ca n't write"),
        ("she", Mood("present", modal="may", negative=True), "may not write"),
        ("I", Mood("present", progressive=True, negative=True), "am not writing"),
        ("they", Mood("present", negative=True), "do n't write"),
    ],
)
def test_not_contracts_where_english_lets_it(pronoun: str, mood: Mood, expected: str) -> None:
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject(pronoun), contract=True)
    assert " ".join(node.form for node in chain) == expected
    assert [node.lemma for node in chain if node.upos == "PART"] == ["not"]


@pytest.mark.parametrize(
    ("pronoun", "mood", "contract", "expected"),
    [
        ("she", Mood("present", progressive=True), False, "'s writing"),
        ("they", Mood("future", modal="will"), False, "'ll write"),
        ("I", Mood("present", progressive=True, negative=True), False, "'m not writing"),
        ("she", Mood("present", progressive=True, negative=True), True, "is n't writing"),
        ("she", Mood("present", perfect=True), False, "has written"),
        ("she", Mood("present"), False, "writes"),
    ],
)
def test_auxiliaries_attach_to_pronouns(pronoun: str, mood: Mood, contract: bool, expected: str) -> None:
    chain = verb_chain(verb_of("write/wrote/written"), mood, subject(pronoun), contract=contract)
    attach_to_pronoun(subject(pronoun), chain)
    assert " ".join(node.form for node in chain) == expected


FORMS = {
    "walk": "walk walks walked walked walking",
    "bake": "bake bakes baked baked baking",
    "carry": "carry carries carried carried carrying",
    "enjoy": "enjoy enjoys enjoyed enjoyed enjoying",
    "watch": "watch watches watched watched watching",
    "agree": "agree agrees agreed agreed agreeing",
    "plan": "plan plans planned planned planning",
    "put/put": "put puts put put putting",
    "buy/bought": "buy buys bought bought buying",
    "write/wrote/written": "write writes wrote written writing",
    "begin/began/begun": "begin begins began begun beginning",
}


def test_a_verb_has_its_five_forms() -> None:
    assert {entry: " ".join(astuple(verb_of(entry))) for entry in FORMS} == FORMS


def test_a_verb_has_the_same_forms_in_every_frame() -> None:
    forms: dict[str, Verb] = {}
    for frame in FRAMES:
        assert forms.setdefault(frame.verb.base, frame.verb) == frame.verb


def test_frames_speak_of_known_patterns_and_kinds() -> None:
    assert {frame.pattern for frame in FRAMES} == set(PATTERNS)
    for frame in FRAMES:
        assert set(frame.subjects) <= NOUNS, frame
        assert set(frame.objects) <= NOUNS | {"city"}, frame
        assert frame.subjects
        needs_link = frame.pattern in ("motion", "ditransitive", "prepositional", "particle", "object infinitive")
        assert bool(frame.link) == needs_link, frame
        assert not (frame.stative and frame.pattern == "transitive" and frame.deliberate), frame


def test_the_s_form_follows_the_spelling_rules() -> None:
    bases = "dog box watch story key go house dress"
    assert " ".join(map(s_form, bases.split())) == "dogs boxes watches stories keys goes houses dresses"


def test_irregular_plurals_are_those_of_the_dictionary() -> None:
    plurals = {noun.singular: noun.plural for kind in KINDS.values() for noun in kind.nouns}
    irregular = [f"{noun}/{plural}" for noun, plural in plurals.items() if plural != s_form(noun)]
    assert " ".join(irregular) == (
        "child/children woman/women man/men goose/geese mouse/mice wolf/wolves knife/knives radio/radios scarf/scarves "
        "shelf/shelves"
    )
    assert all(plural != noun for noun, plural in plurals.items())


def test_nouns_are_listed_once_and_tables_speak_of_known_kinds() -> None:
    singulars = [noun.singular for kind in KINDS.values() for noun in kind.nouns]
    assert len(singulars) == len(set(singulars)) > 150
    assert set(KINDS) == NOUNS | {"role"}
    assert {name for name, kind in KINDS.items() if kind.predicates} == NOUNS
    assert {other for kind in KINDS.values() for _, other in kind.links} <= NOUNS | {"city"}
    assert {word for name in ("roles", "relatives", "free", "at", "on", "plans") for word in WORDS[name]} <= set(
        singulars
    )
