"""Rules for the head word and the type of a mention, from the best evidence available: trees, tags, or word forms.

The parse bits of CoNLL-2012, one for each word, are the bracketed tree of a sentence in which `*` replaces every word
and its tag: `(TOP(S(NP*`, `*)`, `(VP*)))`.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from attention_probing.corpora.conllu import blocks, read_treebank
from attention_probing.corpora.document import MentionType
from attention_probing.corpora.sentence import CorpusError, Sentence
from attention_probing.results.errors import pluralize, setting
from attention_probing.results.progress import warn

HeadMethod = Literal["parse", "constituents", "last_noun", "last_word", "heuristic"]

# Of Universal Dependencies 1 and 2, then of the Penn Treebank with the additions of OntoNotes and EWT (ADD, HYPH, …).
_KNOWN = """ADJ ADP ADV AUX CCONJ CONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X
ADD AFX CC CD DT EX FW GW HYPH IN JJ JJR JJS LS MD NFP NN NNP NNPS NNS PDT POS PRP PRP$ RB RBR RBS RP SYM TO UH VB VBD
VBG VBN VBP VBZ WDT WP WP$ WRB XX # $ . , : ( ) " ' ` `` '' -LRB- -RRB- -LSB- -RSB- -LCB- -RCB-"""
KNOWN_TAGS = frozenset(_KNOWN.split())
"""Tags of Universal Dependencies and of the Penn Treebank."""
FOREIGN = 0.2
"""If a larger share of a file's tags is unknown, its tag set is another one, in which NN may mean something else."""
UNKNOWN = "?"
"""First character of a tag whose meaning is unknown."""

_BIT = re.compile(r"((?:\([^()*\s]*)*)\*(\)*)")
_NP_LIKE = {"NP", "WHNP"}
_NOUN_LIKE = {"NX", "NML"}  # nouns within a noun phrase, grouped
_CLAUSES = {"S", "SBAR", "SBARQ", "SINV", "SQ"}
_POSTMODIFIERS = _CLAUSES | {"PP", "WHPP", "VP", "RRC", "PRN"}
_NOUN_TAGS = {"NN", "NNS", "NNP", "NNPS", "NOUN", "PROPN"}
_NOUNS = {*_NOUN_TAGS, "PRP", "WP", "PRON"}  # a pronoun heads its phrase as a noun does
_PUNCTUATION = {",", ":", ".", "``", "''", "-LRB-", "-RRB-", "HYPH", "POS", "PUNCT"}
_PRONOUN_TAGS = {"PRP", "PRP$", "WP", "WP$", "PRON"}
_PROPER_TAGS = {"NNP", "NNPS", "PROPN"}
# Words for text without parts of speech, older English included.
_DEMONSTRATIVES = {"this", "that", "these", "those"}
# Indefinite pronouns (somebody) are nouns to taggers, and here.
_PRONOUNS = """i me my mine myself we us our ours ourselves ourself you your yours yourself yourselves thou thee thy
thine thyself ye he him his himself she her hers herself it its itself they them their theirs themselves 'em who whom
whose which whoever whomever whosoever"""
# A head stands before the first of these prepositions, relative pronouns and commas. Not among them, because they are
# adjectives, nouns or conjunctions as often: as, like, outside, past, round, than, ….
_STOPS = """about above across after against along amid amidst among amongst around at before behind below beneath
beside besides between beyond by concerning despite down during except for from in into near of off on onto out over
since through throughout till to toward towards under underneath until unto up upon via with within without who whom
whose which that ,"""
_CLITICS = {"'s", "’s"}


@dataclass(slots=True)
class Constituent:
    """A phrase of a constituency tree, or a single word, which is a leaf.

    Attributes:
        label: Category without function tags, such as `NP`; empty for a word and for the root.
        start: 0-based index of the first word.
        end: Index of the last word + 1.
        children: Phrases and words directly below, in order; empty for a word.
    """

    label: str
    start: int
    end: int
    children: list["Constituent"] = field(default_factory=list)


class ParseBitError(ValueError):
    """Error for parse bits (the parse column of CoNLL-2012) that do not form a tree.

    Args:
        word: 0-based position in the sentence of the first wrong bit; also an attribute.
        wrong: Description of the fault, the message of the error.
    """

    def __init__(self, word: int, wrong: str) -> None:
        super().__init__(wrong)
        self.word = word


@dataclass
class TaggedSentence:
    """A sentence of n ≥ 1 words with the columns of a CoNLL-2012 file.

    Attributes:
        words: Word forms; n entries, as in the other columns.
        tags: Part-of-speech tags; `_` for none.
        bits: Parse bits: each word's part of the bracketed tree, such as `(NP*`.
        lines: Line of each word in the file, counted from 1.
        parse: The same sentence with its dependency tree; None without a treebank.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]  # _ for none
    bits: tuple[str, ...]  # the parse column
    lines: tuple[int, ...]  # of the file, counted from 1
    parse: Sentence | None = None  # the dependency tree, if there is one

    @cached_property
    def tree(self) -> Constituent | None:
        """Constituency tree of the sentence, from its parse bits; None if the bits have no bracket.

        Raises:
            ParseBitError: The bits do not form a tree.
        """
        if not any("(" in bit for bit in self.bits):
            return None
        return read_constituents(self.bits)


class MentionHead(NamedTuple):
    """Head word that was found for a span.

    Attributes:
        word: 0-based index of the head word in its sentence.
        method: Method that found it; see `find_head`.
        candidates: For the method `parse`, the number of words in the span whose dependency head is outside the
            span; 1 for other methods.
    """

    word: int
    method: HeadMethod
    candidates: int = 1


def find_meanings(sentences: Sequence[TaggedSentence], mapping: Mapping[str, str]) -> None:
    """Replace each tag of a file's sentences by a tag of `KNOWN_TAGS`; write `?` before a tag without known meaning.

    If more than the share `FOREIGN` of the tags is not in `KNOWN_TAGS`, only tags of the mapping are known. A sentence
    that has a dependency tree and a word with an unknown tag takes the UPOS tags of the tree. `_` stays.

    Args:
        sentences: All sentences of the file; they are changed in place.
        mapping: Tags of `KNOWN_TAGS`, by the tags of the file that they replace.
    """
    known_tags = KNOWN_TAGS.union(mapping)
    for sentence in sentences:
        if sentence.parse is not None and not known_tags.issuperset(sentence.tags):
            sentence.tags = _tags_of_tree(sentence.parse, sentence.tags)
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.tags)
    del counts["_"]
    foreign = sum(counts[tag] for tag in counts.keys() - KNOWN_TAGS)
    if foreign > FOREIGN * counts.total():
        known_tags = frozenset(mapping)
    meanings = {"_": "_"}
    for tag in counts:
        meanings[tag] = UNKNOWN + tag
        if tag in known_tags:
            meanings[tag] = mapping.get(tag, tag)
    for sentence in sentences:
        sentence.tags = tuple(meanings[tag] for tag in sentence.tags)


def _tags_of_tree(parse: Sentence, tags: Sequence[str]) -> tuple[str, ...]:
    """Return the UPOS tags of a dependency tree; where it has none, the tags of the words."""
    merged = []
    for upos, tag in zip(parse.upos, tags, strict=True):
        merged.append(tag if upos == "_" else upos)
    return tuple(merged)


def warn_of_tags(path: Path, audit: Mapping[str, int], tags: Iterable[str]) -> None:
    """Log a warning if heads or types of mentions depend on part-of-speech tags whose meaning is unknown.

    Args:
        path: The corpus file.
        audit: Counts of the reader, see `corpora.conll2012.read_documents`.
        tags: Tag of each word, as `find_meanings` leaves it.
    """
    uncertain_heads = audit.get("heads_by_unknown_tags", 0)
    unknown_types = audit.get("types_unknown", 0)
    if not uncertain_heads and not unknown_types:
        return
    counts = Counter(tag.removeprefix(UNKNOWN) for tag in tags if tag.startswith(UNKNOWN))
    names = ", ".join(tag for tag, _ in counts.most_common(12))
    warn(
        f"{path}: {audit['unknown_tags'] / audit['words']:.0%} of the part-of-speech tags are unknown, as they are "
        f"neither Penn's nor UD's: {names}. The heads of {uncertain_heads} of "
        f"{pluralize(audit['mentions'], 'mention')} are uncertain, and scores by type leave out {unknown_types}. Say "
        f"what the tags mean: {setting('data.tags', '{PPER: PRON, NE: PROPN, NN: NOUN}')}."
    )


def find_head(sentence: TaggedSentence, start: int, end: int) -> MentionHead:
    """Return the head of the words `start` to `end - 1` of a sentence, by the first method that is possible.

    The methods, in order:

    - `parse`, with a dependency tree: the word of the span whose dependency head is outside the span; of several
      such words the leftmost.
    - `constituents`, with a constituency tree: the head word that `constituent_head` finds in it.
    - `heuristic`, without a tree, if a word of the span has no part of speech: the last word before the
      first preposition, relative pronoun or comma that follows the span's first word. Punctuation and a
      possessive 's do not count as words, unless there is nothing else.
    - `last_noun`: the last noun of the span by part of speech; without a noun, the last pronoun.
    - `last_word`: the last word, if the span has neither noun nor pronoun.

    Raises:
        ParseBitError: The constituents are needed, and the parse bits do not form a tree.
    """
    if sentence.parse is not None:
        heads = sentence.parse.heads  # counted from 1; the root's is 0
        free = [word for word in range(start, end) if not start < heads[word] <= end]
        return MentionHead(free[0], "parse", len(free))
    if sentence.tree is not None:
        return MentionHead(constituent_head(sentence.tree, sentence.tags, start, end), "constituents")
    tags = sentence.tags[start:end]
    if "_" in tags:
        return MentionHead(start + _head_by_heuristic(sentence.words[start:end]), "heuristic")
    for nominal in (_NOUN_TAGS, _PRONOUN_TAGS):
        places = [place for place, tag in enumerate(tags, start) if tag in nominal]
        if places:
            return MentionHead(places[-1], "last_noun")
    return MentionHead(end - 1, "last_word")


def find_type(sentence: TaggedSentence, start: int, end: int, head: int) -> tuple[MentionType, bool]:
    """Return the type of a mention, and True if it was found without a part of speech, by a heuristic.

    The part of speech is the tag of the head word. A mention is a pronoun if its head word is a
    personal, possessive or wh-pronoun, or if its only word is a demonstrative. It is proper if its head
    word is a proper noun, of unknown type if its head word has an unknown tag, and otherwise nominal.

    The heuristic calls a mention a pronoun if its head word is in a closed list of pronouns, or if its
    only word is a demonstrative. It calls it proper if its head word is capitalised and does not begin
    the sentence, and otherwise nominal.

    Args:
        sentence: The sentence.
        start: 0-based index of the mention's first word.
        end: Index of its last word + 1.
        head: 0-based index of its head word.
    """
    word = sentence.words[head]
    tag = sentence.tags[head]
    if end - start == 1 and word.lower() in _DEMONSTRATIVES:
        return "pronoun", tag == "_"
    if tag.startswith(UNKNOWN):
        return "unknown", False
    if tag in _PRONOUN_TAGS:
        return "pronoun", False
    if tag in _PROPER_TAGS:
        return "proper", False
    if tag != "_":
        return "nominal", False
    if word.lower() in _PRONOUNS.split():
        return "pronoun", True
    if head > 0 and word[0].isupper():
        return "proper", True
    return "nominal", True


def _head_by_heuristic(words: Sequence[str]) -> int:
    """Return the place of the last word before the first stop; punctuation and clitics count only if alone."""
    stops = _STOPS.split()
    stop = 1
    while stop < len(words) and words[stop].lower() not in stops:
        stop += 1
    for place in reversed(range(stop)):
        if words[place] not in _CLITICS and any(map(str.isalnum, words[place])):
            return place
    return stop - 1


def attach_parses(path: Path, sentences: Sequence[TaggedSentence], parses: Path, *, texts: bool = False) -> None:
    """Set `parse` of every sentence to its dependency tree in a treebank of the same sentences.

    Args:
        path: File of the sentences, for error messages.
        sentences: Sentences to complete, in place.
        parses: Treebank of the same sentences in the same order.
        texts: True to read the text of the sentences too.

    Raises:
        CorpusError: The two files differ in a word.
    """
    trees = read_treebank(parses, texts=texts).sentences
    for number, (sentence, tree) in enumerate(zip_longest(sentences, trees)):
        words = () if sentence is None else sentence.words
        parsed_words = () if tree is None else tree.words
        if words != parsed_words:
            raise _differing_word(path, sentences, parses, trees, number)
        sentence.parse = tree


def _differing_word(
    path: Path, sentences: Sequence[TaggedSentence], parses: Path, trees: Sequence[Sentence], number: int
) -> CorpusError:
    """Return the error for the first word that differs in the sentence of this number, or that one file lacks."""
    words: tuple[str, ...] = ()
    lines = sentences[-1].lines[-1:]  # a missing word is named at the last line before it
    if number < len(sentences):
        words = sentences[number].words
        lines = sentences[number].lines
    parsed_words: tuple[str, ...] = ()
    if number < len(trees):
        parsed_words = trees[number].words
    place = 0
    while words[place : place + 1] == parsed_words[place : place + 1]:
        place += 1
    here = repr(words[place]) if place < len(words) else "missing"
    there = repr(parsed_words[place]) if place < len(parsed_words) else "missing"
    line = lines[min(place, len(lines) - 1)]
    tree = min(number, len(trees) - 1)
    parsed_line = _line_of(parses, tree, min(place, len(trees[tree].words) - 1))
    wrong = f"word {place + 1} of sentence {number + 1} is {here}, but {there} in the parses ({parses}:{parsed_line})"
    remedy = "Correct one of the files: both must have the same sentences and words."
    return CorpusError.at(path, line, wrong, f"{remedy} To use no parses, rename the .conllu file")


def _line_of(treebank: Path, sentence: int, word: int) -> int:
    """Return the line of a word, given by 0-based sentence and word, in a treebank without errors."""
    number = -1
    for block in blocks(treebank):
        rows = [(line, text) for line, text in block if not text.startswith("#")]
        if rows:
            number += 1
        if number == sentence:
            return next(line for line, text in rows if text.partition("\t")[0] == str(word + 1))
    raise IndexError(sentence)


def read_constituents(bits: Sequence[str]) -> Constituent:
    """Parse the parse bits of a sentence; return the tree under one root without a name.

    Function tags are dropped: `NP-SBJ` becomes `NP`.

    Args:
        bits: Parse bits of all words: the bracketed tree with `*` in place of each word and its tag.

    Raises:
        ParseBitError: A bit is malformed, or the brackets do not match.
    """
    root = Constituent("", 0, len(bits))
    path = [root]
    for word, bit in enumerate(bits):
        match = _BIT.fullmatch(bit)
        if match is None:
            form = "it must have brackets around one *, such as (NP* or *) or (S(NP*)"
            raise ParseBitError(word, f"the parse bit {bit!r} is malformed: {form}")
        for label in match[1].split("(")[1:]:
            phrase = Constituent(re.split("[-=]", label, maxsplit=1)[0], word, 0)
            path[-1].children.append(phrase)
            path.append(phrase)
        path[-1].children.append(Constituent("", word, word + 1))
        for _ in match[2]:
            if len(path) == 1:
                raise ParseBitError(word, f"the parse bit {bit!r} closes a constituent that was never opened")
            path.pop().end = word + 1
    if len(path) > 1:
        raise ParseBitError(path[1].start, f"the constituent {path[1].label} that opens here is never closed")
    return root


def constituent_head(tree: Constituent, tags: Sequence[str], start: int, end: int) -> int:
    """Return the 0-based index of a span's head word, by head rules for constituents.

    The search starts at the smallest constituent that contains the span, and follows head children down
    to a word. Children without a word in the span are ignored.

    The rules are a short form of the rules of Collins 1999, "Head-Driven Statistical Models for Natural
    Language Parsing", appendix A. The head child of a phrase is the first of these that it has:

    1. the last noun or pronoun before any postmodifier (PP, S, SBAR, VP, RRC, PRN, …); among nouns
       joined by a conjunction or comma the first (*cats* in *cats and dogs*), as Collins does for
       conjunctions;
    2. the first noun phrase (*lid* in *[the lid] [of the box]*);
    3. the last number before any postmodifier;
    4. among the children before any postmodifier, the last that is not punctuation; if all are
       punctuation, the last.

    For a clause or verb phrase that lies entirely in the span, these rules come before the four: the
    first verb phrase, then (in a clause) the first clause, then the first verb. In a possessive,
    Collins takes the 's for the head; here it is the noun before the 's.

    Args:
        tree: Constituency tree of the sentence.
        tags: Part-of-speech tag of each word of the sentence.
        start: 0-based index of the first word of the span.
        end: Index of its last word + 1.
    """
    node = tree
    while node.children:
        label = ""
        if start <= node.start and node.end <= end:
            label = node.label
        # If one child spans all words, the others have none of them: so the smallest constituent is found.
        inside = [child for child in node.children if child.start < end and start < child.end]
        names = [_name_of(child, tags) for child in inside]
        node = inside[_head_place(label, names)]
    return node.start


def _name_of(node: Constituent, tags: Sequence[str]) -> str:
    """Return the label of a phrase in angle brackets, which distinguish it from the tag of a word; or this tag."""
    if node.children:
        return f"<{node.label}>"
    return tags[node.start]


def _head_place(label: str, names: list[str]) -> int:
    """Return the place of the head child of a phrase by the rules of `constituent_head`.

    Args:
        label: Label of the phrase; empty if a part of it is outside the span.
        names: Label of each child that is a phrase, in angle brackets; tag of each child that is a word.
    """
    if label == "VP" or label in _CLAUSES:
        place = _head_of_clause(label, names)
        if place is not None:
            return place
    stop = 1
    while stop < len(names) and not _is_phrase(names[stop], _POSTMODIFIERS):
        stop += 1
    before = names[:stop]  # the children before any postmodifier
    place = _last_noun(before)
    if place is None:
        place = _first_phrase(names, _NP_LIKE)
    if place is None:
        place = _last_place(before, lambda name: name in {"CD", "NUM", "<QP>"})
    if place is None:
        place = _last_place(before, lambda name: name not in _PUNCTUATION)
    return stop - 1 if place is None else place


def _head_of_clause(label: str, names: list[str]) -> int | None:
    """Return the place of the first verb phrase, else in a clause of the first clause, else of the first verb."""
    place = _first_phrase(names, {"VP"})
    if place is None and label != "VP":
        place = _first_phrase(names, _CLAUSES)
    if place is not None:
        return place
    for place, name in enumerate(names):
        if name.startswith("VB") or name == "VERB":
            return place
    return None


def _is_phrase(name: str, labels: Collection[str]) -> bool:
    """Return True for a phrase with one of these labels; words have names without brackets."""
    return name.startswith("<") and name[1:-1] in labels


def _first_phrase(names: list[str], labels: Collection[str]) -> int | None:
    for place, name in enumerate(names):
        if _is_phrase(name, labels):
            return place
    return None


def _last_place(names: list[str], fits: Callable[[str], bool]) -> int | None:
    for place in reversed(range(len(names))):
        if fits(names[place]):
            return place
    return None


def _last_noun(names: list[str]) -> int | None:
    """Return the place of the last noun; if it ends a list of nouns, the place of the first noun of the list."""
    place = _last_place(names, _is_noun)
    while place is not None:
        before = place - 1
        while before >= 0 and names[before] in {"CC", "CCONJ", "<CONJP>", ","}:
            before -= 1
        if before == place - 1 or before < 0 or not _is_noun(names[before]):
            break
        place = before
    return place


def _is_noun(name: str) -> bool:
    return name in _NOUNS or name[1:-1] in _NOUN_LIKE
