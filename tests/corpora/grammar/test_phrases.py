from collections import Counter
from itertools import islice

from corpora.grammar import trees
from corpora.grammar.phrases import Dice, Node, comma, word
from corpora.grammar.sentences import Sentences


def test_reading_a_tree_in_order_gives_words_and_heads() -> None:
    dog = word("dogs", "NOUN", "nsubj", "dog")
    dog.left = [word("the", "DET", "det"), word("old", "ADJ", "amod")]
    root = Node("bark", "VERB", "root", "bark", [dog], [comma()])
    assert [(node.form, head.form if head else None) for node, head in root.flatten()] == [
        ("the", "dogs"),
        ("old", "dogs"),
        ("dogs", "bark"),
        ("bark", None),
        (",", "bark"),
    ]


def test_weights_are_probabilities_and_zero_is_never() -> None:
    dice = Dice(0)
    drawn = Counter(dice.weigh({"a": 1, "b": 0, "c": 3}) for _ in range(4000))
    assert drawn["b"] == 0
    assert abs(drawn["c"] / 4000 - 0.75) < 0.03
    assert {dice.pick("xyz") for _ in range(100)} == set("xyz")
    assert abs(sum(dice.chance(0.2) for _ in range(4000)) / 4000 - 0.2) < 0.03


def test_a_seed_gives_its_own_choices() -> None:
    one, same, other = ([dice.pick(range(100)) for _ in range(20)] for dice in (Dice(3), Dice(3), Dice(4)))
    assert one == same != other


def test_a_noun_phrase_repeats_no_word_of_the_sentence() -> None:
    grammar = Sentences(Dice(0))
    nouns = [grammar.common("event", 0, bare=True).node.lemma for _ in range(8)]
    assert len(set(nouns)) == 8


def test_subjects_and_objects_take_the_pronoun_of_their_case_and_person() -> None:
    grammar = Sentences(Dice(0))
    subjects = {grammar.pronoun("person", "nsubj", 3).node.form for _ in range(300)}
    objects = {grammar.pronoun("person", "obj", 1).node.form for _ in range(300)}
    assert subjects == {"I", "you", "he", "she", "we", "they", "someone", "everyone", "nobody"}
    assert objects == {"you", "him", "her", "them"}


def test_owners_have_the_possessive_ending_they_are_spelled_with() -> None:
    grammar = Sentences(Dice(1))
    endings = set()
    for _ in range(200):
        grammar.used = set()
        owner = grammar.possessor(noun=True)
        assert owner.relation == "nmod:poss"
        assert owner.right[-1].relation == "case"
        plural_s = owner.form != owner.lemma and owner.form.endswith("s")
        assert owner.right[-1].form == ("'" if plural_s else "'s")
        endings.add(owner.right[-1].form)
    assert endings == {"'", "'s"}


def test_trees_go_on_and_depend_on_the_seed() -> None:
    def forms(seed: int) -> list[str]:
        return [" ".join(node.form for node, _ in tree.flatten()) for tree in islice(trees(seed), 50)]

    assert forms(0) == forms(0) != forms(1)
