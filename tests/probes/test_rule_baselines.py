from typing import NamedTuple

import pytest

from attention_probing.corpora.document import Mention, MentionType
from attention_probing.probes.rule_baselines import head_match, nearest, sieve

# One sentence a line, as word/tag.
PAGE = """
Mrs./NNP Hart/NNP of/IN Norway/NNP met/VBD the/DT king/NN ./.
She/PRP told/VBD him/PRP that/IN her/PRP$ sons/NNS had/VBD left/VBN it/PRP ./.
They/PRP were/VBD in/IN Paris/NNP with/IN a/DT friend/NN ./.
``/`` We/PRP miss/VBP you/PRP ,/, ''/'' wrote/VBD the/DT sons/NNS to/IN Mrs./NNP Hart/NNP ./.
The/DT king/NN smiled/VBD at/IN his/PRP$ mother/NN ./.
``/`` I/PRP know/VBP your/PRP$ sister/NN ,/, Mr./NNP Hart/NNP 's/POS wife/NN ,/, ''/'' he/PRP said/VBD to/IN \
me/PRP :/: ``/`` you/PRP miss/VBP her/PRP ./. ''/''
Tom/NNP and/CC Ann/NNP saw/VBD Norway/NNP ;/: they/PRP loved/VBD it/PRP ./.
My/PRP$ friends/NNS ,/, the/DT sons/NNS of/IN Mrs./NNP Hart/NNP ,/, met/VBD us/PRP ./.
"""


class Row(NamedTuple):
    """A mention, and what each baseline makes of it; `untagged` where the sieve differs without tags."""

    sentence: int
    span: str
    head: str
    type: MentionType
    cluster: str
    head_match: int | None
    sieve: int | None
    untagged: int | None = None


# The sieve's answers and why. Unless said otherwise passes 1 and 2 find nothing, and pass 3 decides.
ROWS = [
    Row(0, "Mrs. Hart of Norway", "Hart", "proper", "hart", None, None),  # 0: nothing before it
    Row(0, "Norway", "Norway", "proper", "norway", 0, 0),  # 1: a name of unknown gender agrees with Mrs. Hart
    Row(0, "the king", "king", "nominal", "king", 1, 1),  # 2: agrees with Norway
    Row(1, "She", "She", "pronoun", "hart", 2, 1),  # 3: not the king (masculine); Norway's gender is unknown
    Row(1, "him", "him", "pronoun", "king", 3, 2),  # 4: not She
    # 5: a plural, and all before it are singular: pass 4, the nearest. Untagged: agrees with him.
    Row(1, "her sons", "sons", "nominal", "sons", 4, 4),
    Row(1, "her", "her", "pronoun", "hart", 5, 3),  # 6: neither sons nor him, but She
    Row(1, "it", "it", "pronoun", "norway", 6, 1),  # 7: all between are masculine or feminine
    Row(2, "They", "They", "pronoun", "sons", 7, 5),  # 8: not it, not her (singular)
    Row(2, "Paris", "Paris", "proper", "paris", 8, 7, 8),  # 9: a singular: it, not They. Untagged: They
    Row(2, "a friend", "friend", "nominal", "friend", 9, 9),  # 10: Paris agrees
    Row(3, "We", "We", "pronoun", "sons", 10, 10),  # 11: no first person before it: pass 4
    Row(3, "you", "you", "pronoun", "hart", 11, 11),  # 12: no second person before it: pass 4
    Row(3, "the sons", "sons", "nominal", "sons", 5, 5),  # 13: pass 1, "sons" without "the" and "her"
    Row(3, "Mrs. Hart", "Hart", "proper", "hart", 0, 0),  # 14: pass 2, spelt otherwise than 0 but for the head
    Row(4, "The king", "king", "nominal", "king", 2, 2),  # 15: pass 1, in any case
    Row(4, "his mother", "mother", "nominal", "mother", 15, 14),  # 16: not the king; Mrs. Hart is feminine
    Row(4, "his", "his", "pronoun", "king", 16, 15),  # 17: not the mother
    Row(5, "I", "I", "pronoun", "king", 17, 17),  # 18: We is a plural and the rest third persons: pass 4
    Row(5, "your sister", "sister", "nominal", "sister", 18, 16),  # 19: not I, not his, but his mother
    Row(5, "your", "your", "pronoun", "teller", 19, 12),  # 20: the last second person, whoever it was
    Row(5, "Mr. Hart 's wife", "wife", "nominal", "sister", 20, 19),  # 21: feminine by its head, like the sister
    Row(5, "Mr. Hart", "Hart", "proper", "husband", 14, 14),  # 22: pass 2 asks for the head word alone
    Row(5, "he", "he", "pronoun", "king", 22, 22),  # 23: the nearest masculine
    Row(5, "me", "me", "pronoun", "teller", 23, 18),  # 24: the last first person, I
    Row(5, "you", "you", "pronoun", "teller", 12, 20),  # 25: pronouns skip pass 2: your, not the older you
    Row(5, "her", "her", "pronoun", "sister", 6, 21),  # 26: the wife; her of long ago for the same head word
    # 27: a coordination is a plural, whatever the tag of its head: the sons of 13, for all between are singular or of
    # the second person. Untagged: Mr. Hart may be a plural.
    Row(6, "Tom and Ann", "Tom", "proper", "both", 26, 13, 22),
    Row(6, "Tom", "Tom", "proper", "tom", 26, 26),  # 28: 27 has the same head word; her agrees
    Row(6, "Ann", "Ann", "proper", "ann", 28, 28),  # 29: Tom agrees
    Row(6, "Norway", "Norway", "proper", "norway", 1, 1),  # 30: pass 1
    Row(6, "they", "they", "pronoun", "both", 8, 27, 30),  # 31: the coordination; untagged: Norway may be a plural
    Row(6, "it", "it", "pronoun", "norway", 7, 30),  # 32: not they, but Norway
    # 33: "friends" is not spelt like "friend"; they is a plural too. Untagged: it agrees.
    Row(7, "My friends , the sons of Mrs. Hart", "friends", "nominal", "sons", 32, 31, 32),
    Row(7, "My", "My", "pronoun", "teller", 33, 24),  # 34: me
    Row(7, "the sons of Mrs. Hart", "sons", "nominal", "sons", 13, 13),  # 35: pass 2
    Row(7, "Mrs. Hart", "Hart", "proper", "hart", 22, 14),  # 36: pass 1 goes past Mr. Hart, whom the head word finds
    Row(7, "us", "us", "pronoun", "us", 36, 11),  # 37: We; My and me are singular
]


def place(words: list[str], span: str, head: str) -> tuple[int, int, int]:
    """Start, end and head of the last occurrence of a span; the head is the span's first such word."""
    parts = span.split()
    start = max(at for at in range(len(words)) if words[at : at + len(parts)] == parts)
    return start, start + len(parts), start + parts.index(head)


def page() -> tuple[list[list[str]], list[list[str]], list[Mention]]:
    pairs = [[token.rsplit("/", 1) for token in line.split()] for line in PAGE.strip().splitlines()]
    sentences, tags = ([[pair[side] for pair in line] for line in pairs] for side in (0, 1))
    clusters = list(dict.fromkeys(row.cluster for row in ROWS))
    mentions = []
    for row in ROWS:
        start, end, head = place(sentences[row.sentence], row.span, row.head)
        mentions.append(Mention(row.sentence, start, end, head, row.type, clusters.index(row.cluster)))
    return sentences, tags, mentions


def test_the_page() -> None:
    # Always the one before, but for Tom, who stands within Tom and Ann under the same head word.
    assert nearest(*page()) == [None, *range(27), 26, *range(28, 37)]
    assert head_match(*page()) == [row.head_match for row in ROWS]
    assert sieve(*page()) == [row.sieve for row in ROWS]


@pytest.mark.parametrize("universal", [False, True])
def test_sieve_without_penn_tags(universal: bool) -> None:
    sentences, tags, mentions = page()
    names = {"NNP": "PROPN", "NN": "NOUN", "NNS": "NOUN", "PRP": "PRON"}
    other = [[names.get(tag, "X") if universal else "_" for tag in line] for line in tags]
    expected = [row.sieve if row.untagged is None else row.untagged for row in ROWS]
    assert expected != [row.sieve for row in ROWS]
    assert sieve(sentences, other, mentions) == expected
    assert nearest(sentences, other, mentions) == nearest(sentences, tags, mentions)
    assert head_match(sentences, other, mentions) == head_match(sentences, tags, mentions)


def test_every_baseline_names_a_mention_where_there_is_one() -> None:
    sentences, tags, mentions = page()
    assert [baseline(sentences, tags, []) for baseline in (nearest, head_match, sieve)] == [[], [], []]
    # Tom and Ann, Tom: the second has nothing but its own head word before it.
    for baseline in (nearest, head_match, sieve):
        assert baseline(sentences, tags, mentions[27:29]) == [None, None]
        assert baseline(sentences, tags, mentions[27:30]) == [None, None, 1]


Phrase = tuple[str, str, MentionType, str]  # span, head, type, the head's tag


def agree(earlier: Phrase, later: Phrase) -> bool:
    """Whether the sieve prefers `earlier` to a nearer mention that does not agree."""
    decoy = pronoun("thou")
    sentences, tags, mentions = [], [], []
    for index, (span, head, type_, tag) in enumerate((earlier, decoy, later)):
        words = span.split()
        at = words.index(head)
        sentences.append(words)
        tags.append([tag if place == at else "_" for place in range(len(words))])
        mentions.append(Mention(index, 0, len(words), at, type_, 0))
    chosen = sieve(sentences, tags, mentions)[2]
    assert chosen in (0, 1)
    return chosen == 0


def pronoun(word: str) -> Phrase:
    return word, word, "pronoun", "_"


THEY, IT, HE, SHE = (pronoun(word) for word in ("they", "it", "he", "she"))


@pytest.mark.parametrize(
    ("span", "head", "tag", "singular", "plural"),
    [
        ("the old house", "house", "NN", True, False),
        ("old houses", "houses", "NNS", False, True),
        ("the Alps", "Alps", "NNPS", False, True),
        ("the old house", "house", "NOUN", True, True),
        ("old houses", "houses", "_", True, True),
        # Coordinations: the head is the first noun in a treebank, the last without one.
        ("a house and a garden", "house", "NN", False, True),
        ("a house and a garden", "house", "_", False, True),
        ("house , yard and garden", "garden", "_", False, True),
        ("about twenty cats and dogs", "cats", "_", False, True),
        # What stands behind a preposition or a relative pronoun coordinates nothing.
        ("the house of brick and stone", "house", "_", True, True),
        ("the house that stood and fell", "house", "NN", True, False),
        # Before a singular head the tag decides; without one, a modifier is taken for a noun.
        ("a black and white cat", "cat", "NN", True, False),
        ("a black and white cat", "cat", "_", False, True),
    ],
)
def test_number(span: str, head: str, tag: str, singular: bool, plural: bool) -> None:
    mention: Phrase = (span, head, "nominal", tag)
    assert (agree(mention, IT), agree(mention, THEY)) == (singular, plural)


@pytest.mark.parametrize(
    ("span", "head", "type_", "masculine", "feminine"),
    [
        ("Mr. Bennet", "Bennet", "proper", True, False),
        ("Mrs Bennet", "Bennet", "proper", False, True),
        ("Mrs. Bennet", "Mrs.", "proper", False, True),
        ("the Lady Susan", "Susan", "proper", False, True),
        ("poor King Lear", "Lear", "proper", True, False),
        ("Bennet", "Bennet", "proper", True, True),
        ("Mr. Bennet 's Longbourn", "Longbourn", "proper", True, True),
        ("Mr. Bennet ’s eldest daughter", "daughter", "nominal", False, True),
        ("the KING", "KING", "nominal", True, False),
        ("the king size", "size", "nominal", True, True),
        ("the teacher", "teacher", "nominal", True, True),
        ("it", "it", "pronoun", False, False),
        ("who", "who", "pronoun", True, True),
    ],
)
def test_gender(span: str, head: str, type_: MentionType, masculine: bool, feminine: bool) -> None:
    mention = (span, head, type_, "_")
    assert (agree(mention, HE), agree(mention, SHE)) == (masculine, feminine)
    assert not agree(mention, pronoun("I"))


def test_a_couple_has_no_gender() -> None:
    assert agree(("Mr. and Mrs. Bennet", "Bennet", "proper", "_"), THEY)
    assert agree(("Mr. and Mrs. Bennet", "Bennet", "proper", "_"), ("the men", "men", "nominal", "NNS"))
    assert not agree(("Mr. and Mrs. Bennet", "Bennet", "proper", "_"), SHE)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ("I my, myself ME, us our, 's us, they themselves, he himself, its it, these they, this it", True),
        ("whatever they, whatever I", True),  # in no table: unknown, as is everything about it
        ("I we, he I, I he, we they, they we, you he, you they, he her, it he, they it, this they", False),
    ],
)
def test_pronouns(pairs: str, expected: bool) -> None:
    for pair in pairs.split(", "):
        one, other = pair.split()
        assert agree(pronoun(one), pronoun(other)) is expected, pair


def test_second_persons_agree_with_each_other_alone() -> None:
    sentences = [["you", "I", "your", "girl", "yourselves", "she", "thyself"]]
    mentions = [Mention(0, at, at + 1, at, "nominal" if at == 3 else "pronoun", at) for at in range(7)]
    # girl: none but the first two persons stand before her, so the nearest. thyself: yourselves is a plural.
    assert sieve(sentences, [["_"] * 7], mentions) == [None, 0, 0, 2, 2, 3, 2]


def test_a_mention_of_determiners_alone_keeps_them() -> None:
    sentences = [["This"], ["those"], ["it"], ["this"]]
    mentions = [Mention(at, 0, 1, 0, "pronoun" if at == 2 else "nominal", at % 3) for at in range(4)]
    # "this" is spelt like "This", and not like "those": were both empty strings, 1 would be the nearer.
    assert sieve(sentences, [["_"]] * 4, mentions) == [None, 0, 1, 0]
