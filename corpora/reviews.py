"""The embedded sample of labelled texts: generated reviews whose deciding words are known.

Reviews of films, books, restaurants and things for the house, one to four tokenised sentences. Facts say nothing about
the label. Evaluative words that stand for somebody else's opinion, for what was expected, or for another thing do not
count either; so no bag of words gets all labels right.

The rule. The rationale of a text holds the words of the writer's own opinions: evaluative words, and the negator
(`not`, `n't`, `never`, `hardly`) of one that is negated. Read the rationale in order: an evaluative word speaks for or
against (`EVALUATIVE`), and the other way if the rationale word before it is a negator; that is
the label. A text has one such opinion, so that its words decide alone: nothing else says the same.
"""

from dataclasses import dataclass
from pathlib import Path

from corpora.grammar import Dice
from corpora.tables import tables, words
from results.files import is_whole, write_atomically

# Raise it with every change that makes a seed give other files, and write down their SHA-256.
REVIEWS_VERSION: int = 2
_REVIEWS = "7413a0dade2c91b90040e1be5775a50d0b440adbe8b3d03ed91ff1f0deaf5201"

# Texts of each split, half of each label; they are dealt out in turn, so that the splits are alike.
SIZES = {"train": 3000, "dev": 250, "test": 250}
SHORTEST, LONGEST = 5, 60  # tokens, punctuation included

_TABLES = tables("reviews.yaml")


def _by_kind(place: int) -> dict[str, dict[bool, tuple[str, ...]]]:
    """Return the adjectives for (True) and against by what they judge: those before or behind the bar."""
    return {
        kind: {sign == "for": words(f"{text}|".split("|")[place]) for sign, text in both.items()}
        for kind, both in _TABLES["adjectives"].items()
    }


MILD, STRONG = _by_kind(0), _by_kind(1)  # the mild ones can be negated
# Past form and base form, for (True) and against.
VERBS = {sign == "for": tuple(words(verb, "/") for verb in words(text)) for sign, text in _TABLES["verbs"].items()}
EVALUATIVE = {
    good: frozenset(
        [word for kind in MILD for word in (*MILD[kind][good], *STRONG[kind][good])]
        + [form for verb in VERBS[good] for form in verb]
        + (["recommend"] if good else [])
    )
    for good in (True, False)
}
NEGATORS = ("not", "n't", "never", "hardly")
_SOUNDS_CONSONANT = frozenset({"useless"})  # "a useless lamp"


@dataclass(frozen=True)
class Subject:
    """What an opinion may be about; `kinds` are those of the adjectives."""

    phrase: str
    kinds: tuple[str, ...]
    plural: bool = False


@dataclass(frozen=True)
class Domain:
    """A kind of thing that is reviewed: its names, its parts, facts about it, and how one speaks of another one."""

    nouns: tuple[str, ...]
    kinds: tuple[str, ...]
    parts: tuple[Subject, ...]
    facts: tuple[str, ...]
    another: tuple[str, ...]


DOMAINS = tuple(
    Domain(
        words(entry["nouns"]),
        words(entry["kinds"]),
        tuple(
            Subject(phrase, words(part["kinds"]), "plural" in part)
            for part in entry["parts"]
            for phrase in words(part["phrases"], "|")
        ),
        tuple(entry["facts"]),
        tuple(entry["another"]),
    )
    for entry in _TABLES["domains"]
)
SLOTS = {name: words(text, "|") for name, text in _TABLES["slots"].items()}
NUMBERS = {name: tuple(map(int, text.split())) for name, text in _TABLES["numbers"].items()}


def write_sample_reviews(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample reviews as `reviews-<split>.tsv`; return the files of `train`, `dev` and `test`.

    The columns are `label` (`positive` or `negative`), `text` and `rationale` (places of words from 0). A seed gives
    the same bytes on every machine, and no two texts of the three files are the same but for case. Each file appears
    whole or not at all.
    """
    folder = Path(folder)
    paths = {split: folder / f"reviews-{split}.tsv" for split in SIZES}
    if seed == 0 and is_whole([*paths.values()], _REVIEWS):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[str]] = {split: [] for split in SIZES}
    turn = 2 * sum(SIZES.values()) // SIZES["dev"]  # two a turn, one of each label
    grammar = Reviews(Dice(seed))
    seen: set[str] = set()
    while len(seen) < sum(SIZES.values()):
        i = len(seen)
        tokens, rationale = grammar.review(good := i % 2 == 0)
        text = " ".join(tokens)
        if not SHORTEST <= len(tokens) <= LONGEST or text.lower() in seen:
            continue
        seen.add(text.lower())
        split = {0: "dev", 1: "test"}.get(i % turn // 2, "train")
        rows[split].append(f"{'positive' if good else 'negative'}\t{text}\t{' '.join(map(str, rationale))}\n")
    header = "label\ttext\trationale\n"
    return {split: write_atomically(path, header + "".join(rows[split])) for split, path in paths.items()}


class Reviews:
    """The grammar of the sample reviews; in a sentence `*` marks a word of the rationale."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice

    def review(self, good: bool) -> tuple[list[str], list[int]]:
        """Return the tokens of a new review with that label, and the places, from 0, of those that decide it."""
        self.domain = self.dice.pick(DOMAINS)
        self.noun = self.dice.pick(self.domain.nouns)
        self.whole = Subject(f"the {self.noun}", self.domain.kinds)
        # One opinion of the writer: of two that say the same neither would decide alone.
        sentences = [self.opinion(good)]
        if self.dice.chance(0.5):
            sentences.append(self.distractor())
        for fact in dict.fromkeys(self.dice.pick(self.domain.facts) for _ in range(4 - len(sentences))):
            if self.dice.chance(0.6):
                sentences.append(self.filled(fact))
        marked = [token for sentence in self.shuffled(sentences) for token in _spelled(sentence)]
        return [token.lstrip("*") for token in marked], [i for i, token in enumerate(marked) if token[0] == "*"]

    def opinion(self, good: bool) -> str:
        """Return a sentence with the writer's own opinion, at times after that of another."""
        own = self.clause(good)
        if self.dice.chance(0.25):
            others = self.dice.chance(0.3) == good  # mostly the contrary
            said = self.ascribed(others).removesuffix(" .")
            return f"{said} , {'and' if others == good else 'but'} {own}"
        opening = self.dice.weigh({"": 8, "to be honest , ": 1, "in the end , ": 1, "in my view , ": 1})
        return opening + own

    def clause(self, good: bool) -> str:
        """Return one opinion of the writer; its deciding words are marked."""
        negator = f"*{self.dice.pick(NEGATORS)}" if self.dice.chance(0.15) else ""
        praises = good is not bool(negator)
        subject = self.dice.pick((self.whole, *self.domain.parts))
        match self.dice.weigh({"predicate": 8, "noun": 4, "found": 4, "verb": 3, "recommend": 1}):
            case "predicate":
                adjective = f"*{self.adjective(subject, praises, mild=bool(negator))}"
                between = negator or self.dice.weigh({"": 4, "really": 1, "simply": 1, "truly": 1})
                tail = self.dice.weigh({"": 5, "this time": 1, "from beginning to end": 1, "in every way": 1})
                return f"{subject.phrase} {_was(subject)} {between} {adjective} {tail} ."
            case "noun":
                adjective = f"*{self.adjective(self.whole, praises, mild=bool(negator))}"
                return f"{self.dice.pick(('it', 'this'))} was {negator} a {adjective} {self.noun} ."
            case "found":
                adjective = f"*{self.adjective(subject, praises, mild=bool(negator))}"
                who = self.dice.pick(("I", "we"))
                match negator:
                    case "*not" | "*n't":
                        return f"{who} did {negator} find {subject.phrase} {adjective} ."
                    case "*never":
                        return f"{who} {negator} found {subject.phrase} {adjective} ."
                return f"{who} found {subject.phrase} {negator} {adjective} ."
            case "recommend":  # there is no opposite to negate: the negator alone goes against it
                against = "" if good else negator or f"*{self.dice.pick(NEGATORS)}"
                return f"I would {against} *recommend {self.dice.pick(('it', self.whole.phrase))} ."
        past, base = self.dice.pick(VERBS[praises])
        if negator in ("*not", "*n't"):
            return f"I did {negator} *{base} {subject.phrase} ."
        return f"I {negator} *{past} {subject.phrase} ."

    def ascribed(self, good: bool) -> str:
        """Return an opinion of somebody else."""
        subject = self.dice.pick((self.whole, *self.domain.parts))
        negated = self.dice.chance(0.25)
        adjective = self.adjective(subject, good is not negated, mild=negated)
        judged = f"not {adjective}" if negated else adjective
        verb, _ = self.dice.pick(VERBS[good])
        template = self.dice.pick(_TABLES["ascribed"])
        return self.filled(template, subject=subject.phrase, was=_was(subject), judged=judged, verb=verb)

    def distractor(self) -> str:
        """Return a sentence with evaluative words that are not the writer's opinion of what is reviewed."""
        good = self.dice.chance(0.5)
        adjective = self.adjective(self.whole, good, mild=False)
        match self.dice.weigh({"ascribed": 3, "another": 3, "expected": 3}):
            case "ascribed":
                return self.ascribed(good)
            case "another":
                return self.filled(self.dice.pick(self.domain.another), was="was", adjective=adjective)
        hoped = "had hoped for" if good else "had feared"
        return self.filled(self.dice.pick(_TABLES["expected"]), adjective=adjective, hoped=hoped)

    def adjective(self, subject: Subject, good: bool, *, mild: bool) -> str:
        """Return an adjective that fits, for or against; `mild` ones alone can be negated."""
        kind = self.dice.pick(subject.kinds)
        return self.dice.pick(MILD[kind][good] if mild else MILD[kind][good] + STRONG[kind][good])

    def filled(self, template: str, **given: str) -> str:
        """Return a template with a word in each slot."""
        slots = {name: self.dice.pick(options) for name, options in SLOTS.items()}
        numbers = {name: str(first + self.dice.pick(range(count))) for name, (first, count) in NUMBERS.items()}
        return template.format(**(slots | numbers | {"noun": self.noun} | given))

    def shuffled(self, sentences: list[str]) -> list[str]:
        """Return the sentences in an order by chance."""
        left = list(sentences)
        return [left.pop(self.dice.pick(range(len(left)))) for _ in sentences]


def _was(subject: Subject) -> str:
    return "were" if subject.plural else "was"


def _spelled(sentence: str) -> list[str]:
    """Return the tokens of a sentence with "an" and a capital where they belong; marks stay."""
    tokens = sentence.split()
    for i, token in enumerate(tokens[:-1]):
        after = tokens[i + 1].lstrip("*")
        if token == "a" and after[0] in "aeiou" and after not in _SOUNDS_CONSONANT:
            tokens[i] = "an"
    first = tokens[0]
    tokens[0] = first[0].upper() + first[1:]
    return tokens
