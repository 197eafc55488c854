import pytest

from corpora.grammar.frames import FRAMES
from corpora.grammar.inflection import Mood
from corpora.grammar.phrases import Dice, Nominal, word
from corpora.grammar.sentences import Sentences

ANNA = ("Anna", "PROPN", "nsubj")


@pytest.fixture
def grammar() -> Sentences:
    return Sentences(Dice(0))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("transitive", {("obj",)}),
        ("intransitive", {()}),
        ("motion", {("obl",)}),
        ("ditransitive", {("iobj", "obj"), ("obj", "obl")}),
        ("placing", {("obj", "obl")}),
        ("prepositional", {("obl",)}),
        ("particle", {("obj", "compound:prt"), ("compound:prt", "obj")}),
        ("infinitive", {("xcomp",)}),
        ("object infinitive", {("obj", "xcomp"), ("iobj", "xcomp")}),
        ("clausal", {("ccomp",)}),
        ("told", {("iobj", "ccomp")}),
        ("linking", {("xcomp",)}),
    ],
)
def test_each_pattern_has_its_complements(grammar: Sentences, pattern: str, expected: set[tuple[str, ...]]) -> None:
    found = set()
    for frame in (frame for frame in FRAMES if frame.pattern == pattern):
        for _ in range(4):
            grammar.used = set()
            nodes = grammar.complements(frame, Nominal(word(*ANNA), frame.subjects[0]), "past", 1)
            found.add(tuple(node.relation for node in nodes))
            pronoun_first = pattern == "particle" and any(node.upos == "PRON" for node in nodes)
            assert not pronoun_first or nodes[0].upos == "PRON"  # "pick it up", never "pick up it"
    assert found == expected


def test_a_gap_leaves_the_object_out(grammar: Sentences) -> None:
    frame = next(frame for frame in FRAMES if frame.pattern == "transitive")
    assert grammar.complements(frame, Nominal(word(*ANNA), "person"), "past", 0, gap=True) == []


def test_a_passive_has_its_auxiliary_and_participle(grammar: Sentences) -> None:
    agents = 0
    for _ in range(60):
        grammar.used = set()
        clause = grammar.passive("past", 0)
        relations = [node.relation for node in clause.left]
        assert relations.count("nsubj:pass") == relations.count("aux:pass") == 1
        assert clause.form == next(f.verb.participle for f in FRAMES if f.verb.base == clause.lemma)
        agent = [node for node in clause.right if node.relation == "obl:agent"]
        assert all(node.left[0].form == "by" for node in agent)
        agents += len(agent)
    assert 10 < agents < 35


@pytest.mark.parametrize(("shape", "upos"), [("adjective", {"ADJ"}), ("role", {"NOUN"}), ("place", {"NOUN", "PROPN"})])
def test_the_predicate_of_a_copula_is_the_head(grammar: Sentences, shape: str, upos: set[str]) -> None:
    for _ in range(30):
        grammar.used = set()
        clause = grammar.copular(shape, Mood("present"), 0)
        relations = [node.relation for node in clause.left]
        assert clause.upos in upos
        assert relations[:2] == ["nsubj", "cop"]
        assert ("case" in relations) == (shape == "place")


def test_a_content_clause_needs_that_unless_its_subject_is_short(grammar: Sentences) -> None:
    say = next(frame for frame in FRAMES if frame.verb.base == "say")
    explain = next(frame for frame in FRAMES if frame.verb.base == "explain" and frame.pattern == "clausal")
    bare = 0
    for _ in range(150):
        grammar.used = set()
        assert grammar.content(explain, "past", 1).left[0].form == "that"
        first = grammar.content(say, "past", 1).left[0]
        bare += first.form != "that"
        assert first.form == "that" or (first.upos in ("PRON", "PROPN") and not first.right)
    assert bare > 10


def test_clauses_on_nouns_fit_their_kind(grammar: Sentences) -> None:
    found: dict[str, set[str]] = {}
    for kind, noun in (("person", "nurse"), ("person", ""), ("text", "letter"), ("idea", "plan"), ("role", "nurse")):
        for _ in range(60):
            grammar.used = set()
            clause = grammar.clause_on(Nominal(word(noun, "NOUN", ""), kind), noun, 0)
            found.setdefault(f"{kind} {noun}", set()).add(clause.relation if clause else "none")
            if clause and not noun:
                assert clause.left[0].form == "who"
    assert found == {
        "person nurse": {"acl:relcl"},
        "person ": {"acl:relcl"},
        "text letter": {"acl:relcl", "acl"},
        "idea plan": {"acl:relcl", "acl"},
        "role nurse": {"none"},
    }
