"""Generator of the embedded sample corpora in English, for runs without any other corpus.

`sample.yaml` is the grammar and explains its notation. The sentences of a document mention a cast of three persons or
things. They are written as a treebank in the style of Universal Dependencies, as a coreference corpus and as running
text. A review has one opinion of its writer, and the words of this opinion are the rationale. Opinions of others in the
review do not affect the label, so that a bag of words cannot predict all labels. A seed gives the same bytes on every
machine.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, pairwise, product
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import yaml

from attention_probing.corpora.sentence import Sentence
from attention_probing.results.errors import UserError
from attention_probing.results.files import is_whole, set_aside, write_atomically

# Raise it with every change of the generated files, and update their SHA-256.
SAMPLE_VERSION: int = 3
_TREEBANK = "e703a32759a94dc43f91addb6a5dfeb6ef8b013dba1b107860d348db8e33fbe0"
_REVIEWS = "0c7988d8d4bf3a86b07d88f05c0148ff0e894515d129a3e129cce728626d80bb"

DOCUMENTS, SENTENCES = {"train": 400, "dev": 50, "test": 50}, 5  # and sentences in each
REVIEWS = {"train": 3000, "dev": 250, "test": 250}  # half of each label
SHORTEST, LONGEST = 3, 30  # words of a sentence, punctuation included

_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C library may not be there; "no" stays a word
_GRAMMAR = yaml.load(files("attention_probing.corpora").joinpath("sample.yaml").read_text("utf-8"), _LOADER)
_TAGS = {word: tag for tag, words in _GRAMMAR["tags"].items() for word in words.split()}
_KINDS = {kind: {"KIND": kind, **_GRAMMAR["any_kind"], **own} for kind, own in _GRAMMAR["kinds"].items()}
_RULES = {**_GRAMMAR["rules"], **_GRAMMAR["words"], "RELATION": "", "PLURAL": False}
_ITEM = re.compile(
    r"(?:(?P<case>[a-z]+)\+)?(?P<what>[^\s/:@]+)(?:/(?P<tag>[^\s:@]+))?(?::(?P<relation>[a-z:]+))?(?:@(?P<target>\d))?"
)
_GLUED = frozenset({",", ".", "?", "n't", "'s"})  # no blank before them

Scope = dict[str, Any]  # definitions by symbol, and properties of the current phrase
Mention = tuple[str, list["Word"]]  # the pronoun of a member of the cast, and the words that refer to it
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Word:
    """A word of a generated dependency tree.

    Attributes:
        form: Spelling.
        tag: Part-of-speech tag of the Penn Treebank.
        relation: Dependency relation to the head; empty until the word is attached.
        head: Head word; None for the root, and until the word is attached.
    """

    form: str
    tag: str
    relation: str = ""
    head: "Word | None" = None


@cache
def _templates(*alternatives: str) -> list[list[dict[str, str]]]:
    """Return each template as the parts of its items, repeated by its weight."""
    weighed = (one.partition(" ") if one[:1].isdecimal() else ("1", "", one) for one in alternatives)
    return [[found.groupdict("") for found in _ITEM.finditer(text)] for n, _, text in weighed for _ in range(int(n))]


def _with_s(base: str) -> str:
    return f"{base}es" if base.endswith(("s", "x", "ch", "sh", "o")) else f"{base}s"


def _verbs() -> Iterator[dict[str, Any]]:
    """Yield the definitions of each verb, for each kind of subject and object."""
    for subjects, verbs, objects, rest in (map(str.strip, line.split("|")) for line in _GRAMMAR["verbs"]):
        for base, *irregular in (entry.split("/") for entry in verbs.split()):
            stem = base.removesuffix("e")
            past, *_, participle = irregular * 2 or (f"{stem}ed", f"{stem}ed")
            forms = {"VB": base, "VBD": past, "VBN": participle, "VBG": f"{stem}ing"}
            fixed = {"REST": [rest], "VBZ": [f"{_with_s(base)}|{base}/VBZ|VBP"]}
            fixed |= {tag: [f"{form}/{tag}"] for tag, form in forms.items()}
            for kind, of in product(subjects.split(), objects.split() or [""]):
                yield {"KIND": kind, "SUBJECT": [kind], "OF": of, "OBJECT": [of and f"{of}:obj"], **fixed}


_VERBS = list(_verbs())


class Grammar:
    """Seeded generator of documents and reviews by the grammar of the sample corpus.

    No sentence of a document and no review is generated twice. The only source of randomness is
    `Random.random`, whose sequence for a seed is the same in every Python version.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random
        self._cast: list[Mapping[str, str]] = []
        self._mentions: list[Mention] = []
        self._taken: set[str] = set()  # words of the current sentence, and the nouns of the cast
        self._texts: set[str] = set()

    def document(self) -> tuple[list[list[Word]], list[Mention]]:
        """Generate a document; return its sentences, and the mentions of the entities that it is about.

        A sentence is a list of words that are attached to their heads. A mention is a pair: the pronoun of an
        entity (`she`, `he` or `it`), which identifies the entity in the document, and the words of the mention.
        """
        sentences: list[list[Word]] = []
        self._cast, self._mentions, self._taken = [], [], set()
        for member in map(self._pick, _GRAMMAR["cast"]):
            definitions = {"NN": _KINDS[member["KIND"]]["NN"], **member}
            self._cast.append({symbol: self._fresh(words) for symbol, words in definitions.items()})
        while len(sentences) < SENTENCES:
            before, self._taken = len(self._mentions), {member["NN"] for member in self._cast}
            words = self._expand("SENTENCE", {**_RULES, "SAID": set()})
            if SHORTEST <= len(words) <= LONGEST and self._is_new(words):
                sentences.append(words)
            else:
                del self._mentions[before:]
        return sentences, self._mentions

    def review(self, label: str) -> list[Word]:
        """Generate a review, and return its words; the words of its rationale have the relation `rationale`.

        Args:
            label: `positive` or `negative`.
        """
        words: list[Word] = []
        while not words or not self._is_new(words):
            self._taken, domain = set(), self._pick(_GRAMMAR["domains"])
            fixed = {**_GRAMMAR["labels"][label], "NOUN": self._pick(domain["NOUN"].split())}
            words = self._expand("REVIEW", {**_RULES, **_GRAMMAR["reviews"], **domain, **fixed})
        return words

    def _is_new(self, words: list[Word]) -> bool:
        """Spell the words as in a text; return True if the text is new."""
        for before, word in pairwise([Word(".", "."), *words]):
            if before.form.lower() == "a" and word.form[0] in "aeiou":
                before.form += "n"
            if before.form == ".":
                word.form = word.form[0].upper() + word.form[1:]
        known = len(self._texts)
        self._texts.add(_text(words).lower())
        return len(self._texts) > known

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def _fresh(self, words: str) -> str:
        """Return one of the words and mark it as taken; prefers words that are not taken."""
        word = self._pick([word for word in words.split() if word not in self._taken] or words.split())
        self._taken.add(word)
        return word

    def _expand(self, symbol: str, scope: Scope) -> list[Word]:
        """Return the words of a symbol by its definition in the scope; the caller attaches words without a head."""
        outer, _, inner = symbol.partition(".")
        if inner or symbol in _KINDS:
            return self._expand(inner or "NP", self._enter(outer, scope))
        if symbol == "CAST":
            return self._mention(scope)
        definition = scope["NN" if symbol == "NNS" else symbol]
        if isinstance(definition, str):
            word = self._fresh(definition)
            return [Word(_with_s(word) if symbol == "NNS" else word, _TAGS.get(symbol, symbol))]
        return self._fill(self._pick(_templates(*definition)), dict(scope))

    def _enter(self, name: str, scope: Scope) -> Scope:
        """Return the scope with the definitions of a kind, or of a verb for the current kind."""
        if name == "SOME" or name in _KINDS:
            return {**scope, **_KINDS[name if name in _KINDS else self._pick(list(_KINDS))]}
        place = {"ANY": None, "DOES": "KIND", "DONE": "OF"}[name]
        verb = self._pick([verb for verb in _VERBS if place is None or verb[place] == scope["KIND"]])
        return {**scope, **verb, "SAID": set(scope["SAID"]) if place else set()}

    def _mention(self, scope: Scope) -> list[Word]:
        """Return a mention of a member of the cast, once a clause unless it is an owner; else another noun phrase."""
        owner = scope["RELATION"] == "nmod:poss"
        able = [member for member in self._cast if member["KIND"] == scope["KIND"]]
        if not (able := [member for member in able if owner or member["PRP"] not in scope["SAID"]]):
            return self._expand("OWNER" if owner else "NOUN", scope)
        member = self._pick(able)
        scope["SAID"].add(member["PRP"])
        known = any(pronoun == member["PRP"] for pronoun, _ in self._mentions)
        words = self._expand("AGAIN" if known else "FIRST", {**scope, **member})
        self._mentions.append((member["PRP"], list(words)))
        return words

    def _fill(self, items: Sequence[Mapping[str, str]], scope: Scope) -> list[Word]:
        """Return the words of a template, attached by its items; a noun sets the number of words that agree with it."""
        parts: list[list[Word]] = [[] for _ in items]
        # The subject first: words that agree with it may stand before it.
        for place in sorted(range(len(items)), key=lambda place: "nsubj" not in items[place]["relation"]):
            parts[place] = words = self._item(items[place], scope)
            for top in _unattached(words):
                if (not top.relation or "nsubj" in top.relation) and top.tag in ("NN", "NNS", "NNP", "PRP"):
                    joined = any((word.relation, word.head) == ("conj", top) for word in words)
                    scope["PLURAL"] = joined or top.tag == "NNS"
        tops = [_unattached(words) for words in parts]
        attached = list(zip(items, tops, strict=True))
        roots = [top for item, found in attached for top in found if not (item["target"] or top.relation)]
        for item, found in attached:
            governor = tops[int(item["target"]) - 1][0] if item["target"] else roots[0] if len(roots) == 1 else None
            for top in found:
                top.head = governor if top is not governor else None
        return list(chain.from_iterable(parts))

    def _item(self, item: Mapping[str, str], scope: Scope) -> list[Word]:
        """Return the words of an item: a pronoun in its case, an owner with the possessive ending."""
        what, relation = item["what"], item["relation"]
        if len(what) > 1 and what.isupper():
            words = self._expand(what, {**scope, "RELATION": relation} if relation else scope)
        else:
            forms, tags = _forms(item)
            words = [Word(forms[-1], tags[-1]) if scope["PLURAL"] else Word(forms[0], tags[0])]
        for top in _unattached(words):
            top.relation = top.relation or relation
            if top.tag == "PRP" and relation and "nsubj" not in relation:
                accusative, possessive = _GRAMMAR["pronouns"][top.form].split()
                top.form, top.tag = (possessive, "PRP$") if relation == "nmod:poss" else (accusative, "PRP")
            elif relation == "nmod:poss":
                words.append(Word("'s", "POS", "case", top))
            if item["case"]:
                words.insert(0, Word(item["case"], "IN", "case", top))
        return words


def _forms(item: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the forms of a word that stands in a template itself, and their tags."""
    forms = item["what"].split("|")
    return forms, (item["tag"] or _TAGS.get(forms[0], "_")).split("|")


def _unattached(words: Sequence[Word]) -> list[Word]:
    return [word for word in words if word.head is None]


@cache
def sample_vocabulary() -> Mapping[str, frozenset[str]]:
    """Return every word that the grammar can generate, in lower case, in alphabetical order.

    Each word has its tags of the Penn Treebank (`_` for a word without one), and the symbols of the grammar that list
    it, for instance `NN` and `KIN` for a noun of compounds or `GOOD` for a word of praise.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    of_documents = [_RULES, *_KINDS.values(), *_VERBS, *chain(*_GRAMMAR["cast"])]
    scopes = [*of_documents, _GRAMMAR["reviews"], *_GRAMMAR["domains"]]
    for symbol, definition in chain.from_iterable(scope.items() for scope in scopes):
        if isinstance(definition, list):
            _add_literals(definition, found)
        elif isinstance(definition, str) and symbol not in ("KIND", "OF", "RELATION"):
            for word in definition.split():
                found[word.lower()] |= {symbol, _TAGS.get(symbol, symbol)}
                if symbol == "NN":
                    found[_with_s(word)].add("NNS")
    for owner in map(str.split, _GRAMMAR["pronouns"].values()):
        for form, tag in zip(owner, ("PRP", "PRP$"), strict=True):
            found[form].add(tag)
    found["'s"].add("POS")
    found["an"] |= found["a"]
    return {word: frozenset(found[word]) for word in sorted(found)}


def _add_literals(templates: Sequence[str], found: defaultdict[str, set[str]]) -> None:
    """Add the words that stand in templates themselves, with their tags."""
    for item in chain.from_iterable(_templates(*templates)):
        if item["case"]:
            found[item["case"]].add("IN")
        if len(item["what"]) == 1 or not item["what"].isupper():
            forms, tags = _forms(item)
            for place, form in enumerate(forms):
                found[form.lower()].add(tags[min(place, len(tags) - 1)])


def write_sample_treebank(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample documents in three formats, and return the CoNLL-U file of each split.

    The folder gets a CoNLL-U file (dependency trees) and a CoNLL-2012 file (coreference) for each split,
    and one plain-text file with the documents of dev and test.

    Args:
        folder: The folder.
        seed: Seed of the generated documents.
    """
    paths = {split: Path(folder) / f"sample-{split}.conllu" for split in DOCUMENTS}
    contents = {path.with_suffix(suffix): list[str]() for path in paths.values() for suffix in (".conllu", ".conll")}
    contents |= {(text := Path(folder) / "sample.txt"): []}
    if seed == 0 and is_whole(list(contents), _TREEBANK):
        return paths
    grammar = Grammar(seed)
    for split, path in paths.items():
        for number in range(1, DOCUMENTS[split] + 1):
            (sentences, mentions), name = grammar.document(), f"{path.stem}-{number:03}"
            contents[path].append(f"# newdoc id = {name}\n")
            contents[path] += [_conllu(f"{name}-{place}", words) for place, words in enumerate(sentences, 1)]
            contents[path.with_suffix(".conll")].append(_conll2012(name, sentences, mentions))
            if split != "train":
                contents[text].append(" ".join(map(_text, sentences)) + "\n")
    return _write(contents, paths)


def write_sample_documents(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the same files as `write_sample_treebank`, but return the CoNLL-2012 file of each split.

    Args:
        folder: The folder.
        seed: Seed of the generated documents.
    """
    return {split: path.with_suffix(".conll") for split, path in write_sample_treebank(folder, seed=seed).items()}


def write_sample_text(folder: Path, *, seed: int = 0) -> Path:
    """Write all files of `write_sample_treebank`; return the path of the plain-text file, `sample.txt`.

    It has the dev and test documents, one per line.
    """
    return write_sample_treebank(folder, seed=seed)["dev"].with_name("sample.txt")


def write_sample_reviews(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample reviews with labels and rationales into a folder; return the TSV file of each split.

    Args:
        folder: The folder.
        seed: Seed of the generated reviews.
    """
    paths = {split: Path(folder) / f"reviews-{split}.tsv" for split in REVIEWS}
    if seed == 0 and is_whole(list(paths.values()), _REVIEWS):
        return paths
    grammar, contents = Grammar(seed), {path: ["label\ttext\trationale\n"] for path in paths.values()}
    for split, path in paths.items():
        for label in ("positive", "negative") * (REVIEWS[split] // 2):
            words = grammar.review(label)
            places = " ".join(str(place) for place, word in enumerate(words) if word.relation == "rationale")
            contents[path].append(f"{label}\t{' '.join(word.form for word in words)}\t{places}\n")
    return _write(contents, paths)


def _write(contents: Mapping[Path, Sequence[str]], paths: dict[str, Path]) -> dict[str, Path]:
    """Write the files of a sample, and return the paths of its splits.

    Raises:
        UserError: A file cannot be written.
    """
    for path, parts in contents.items():
        text = "".join(parts).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.read_bytes() != text:
                set_aside(path)
            write_atomically(path, text)
        except OSError as error:
            raise UserError(
                f"{path.parent}: the sample corpus cannot be written ({error.strerror or error}). Check permissions "
                "and disk, or name another folder with --data.cache."
            ) from error
    return paths


def _text(words: Sequence[Word]) -> str:
    return "".join(word.form if word.form in _GLUED else f" {word.form}" for word in words).lstrip()


def _conllu(name: str, words: Sequence[Word]) -> str:
    at: dict[Word | None, int] = {word: number for number, word in enumerate([None, *words])}
    relations = tuple(word.relation or "root" for word in words)
    upos = tuple(
        next((upos for key, upos in _GRAMMAR["upos"].items() if key in (word.tag, relation)), "VERB")
        for word, relation in zip(words, relations, strict=True)
    )
    forms, heads = tuple(word.form for word in words), tuple(at[word.head] for word in words)
    misc = ["SpaceAfter=No" if after in _GLUED else "_" for after in (*forms[1:], ".")]
    return Sentence(name, forms, heads, relations, upos, tuple(word.tag for word in words)).conllu(_text(words), misc)


def _conll2012(name: str, sentences: Sequence[Sequence[Word]], mentions: Sequence[Mention]) -> str:
    """Return a document in 12 columns; members of the cast with several mentions are its clusters."""
    members, cells = [member for member, _ in mentions], defaultdict[Word, list[str]](list)
    for cluster, span in ((members.index(member), span) for member, span in mentions if members.count(member) > 1):
        cells[span[0]].append(f"({cluster})" if len(span) == 1 else f"({cluster}")
        cells[span[-1]] += [f"{cluster})"] * (len(span) > 1)
    rows = [f"#begin document ({name}); part 000"]
    for words in sentences:
        for place, word in enumerate(words):
            rows.append("\t".join([name, "0", str(place), word.form, word.tag, *"-" * 6, "|".join(cells[word]) or "-"]))
        rows.append("")
    return "\n".join([*rows, "#end document", ""])
