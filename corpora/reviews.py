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

from corpora.grammar.lexicon import words
from corpora.grammar.phrases import Dice
from results.files import write_atomically

# Raise it with every change that makes a seed give other files.
REVIEWS_VERSION: int = 2

# Texts of each split, half of each label; they are dealt out in turn, so that the splits are alike.
SIZES = {"train": 3000, "dev": 250, "test": 250}
SHORTEST, LONGEST = 5, 60  # tokens, punctuation included

# In a template braces are a slot. Sentences are tokenised: a blank between two tokens.

# Adjectives by what they judge, for (True) and against. Those before the bar can be negated; "not superb" says little.
_ADJECTIVES = {
    "any": {
        True: "good enjoyable memorable impressive | great excellent wonderful superb brilliant fantastic lovely "
        "outstanding marvellous remarkable",
        False: "bad disappointing annoying mediocre | terrible awful dreadful poor horrible lousy forgettable",
    },
    "story": {
        True: "gripping moving clever original convincing touching witty | thrilling",
        False: "dull boring predictable clumsy silly shallow confusing | tedious",
    },
    "food": {True: "tasty fresh savoury | delicious flavourful", False: "bland soggy stale greasy | tasteless"},
    "service": {True: "friendly attentive polite helpful |", False: "rude careless slow grumpy |"},
    "device": {True: "reliable sturdy handy solid | elegant", False: "noisy fragile clunky flimsy | useless"},
}
MILD = {
    kind: {good: words(text.partition("|")[0]) for good, text in both.items()} for kind, both in _ADJECTIVES.items()
}
STRONG = {
    kind: {good: words(text.partition("|")[2]) for good, text in both.items()} for kind, both in _ADJECTIVES.items()
}
# Past form → base form, which follows "did not".
VERBS = {
    True: {"loved": "love", "appreciated": "appreciate", "liked": "like", "admired": "admire", "adored": "adore"},
    False: {"hated": "hate", "disliked": "dislike", "regretted": "regret", "loathed": "loathe"},
}
EVALUATIVE = {
    good: frozenset(
        [word for kind in MILD for word in (*MILD[kind][good], *STRONG[kind][good])]
        + [form for pair in VERBS[good].items() for form in pair]
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


_STORY, _ANY = ("any", "story"), ("any",)
DOMAINS = (
    Domain(
        words("film movie comedy drama thriller documentary"),
        _STORY,
        (
            *(Subject(f"the {part}", _STORY) for part in words("plot story ending script dialogue")),
            *(Subject(f"the {part}", _ANY) for part in ("music", "camera work", "acting", "sound")),
            Subject("the actors", _ANY, True),
            Subject("the jokes", _STORY, True),
        ),
        (
            "the {noun} is set in {city} .",
            "it lasts {number} minutes .",
            "{name} plays {person} who moves to {city} .",
            "{name} directed it in {year} .",
            "we saw it on {day} with {few} other people .",
            "it was shot in {city} and {town} .",
            "I have not read the novel behind it .",
            "{name} did not write the script .",
            "the main part is that of {person} .",
            "it is not on in {town} yet .",
        ),
        ("the first part , from {year} , {was} {adjective} .", "the last {noun} by {name} {was} {adjective} ."),
    ),
    Domain(
        words("book novel thriller memoir biography"),
        _STORY,
        (
            *(Subject(f"the {part}", _STORY) for part in words("plot story ending style")),
            Subject("the first chapter", _STORY),
            Subject("the translation", ("any",)),
            Subject("the characters", _STORY, True),
            Subject("the dialogues", _STORY, True),
        ),
        (
            "the {noun} has {number} pages .",
            "{name} wrote it in {year} .",
            "it is about {person} from {city} .",
            "the story begins in {city} and ends in {town} .",
            "I read it on the train to {town} .",
            "I had never read anything by {name} before .",
            "{person} looks for {person2} in {city} .",
            "it has not been translated into {language} .",
            "the paperback came out in {year} .",
            "our club read it in {month} .",
        ),
        ("the {noun} that {name} wrote before {was} {adjective} .", "last year 's {noun} {was} {adjective} ."),
    ),
    Domain(
        words("restaurant café bistro pizzeria tavern diner"),
        _ANY,
        (
            *(Subject(f"the {dish}", ("any", "food")) for dish in words("food soup fish pasta salad bread")),
            *(Subject(f"the {who}", ("any", "service")) for who in words("waiter staff owner service")),
            Subject("the noodles", ("any", "food"), True),
            Subject("the waiters", ("any", "service"), True),
            Subject("the music", _ANY),
        ),
        (
            "the {noun} is near the station of {town} .",
            "we ordered {dish} and {drink} .",
            "a main course costs {number} euros .",
            "we were there on {day} with {few} friends .",
            "they do not take cards .",
            "the menu changes every month .",
            "it has been there since {year} .",
            "I did not book a table .",
            "the cook comes from {city} .",
            "{dish} came after {number} minutes .",
        ),
        ("the {noun} next door {was} {adjective} .", "what we ate in {city} on {day} {was} {adjective} ."),
    ),
    Domain(
        words("kettle lamp backpack printer keyboard headset toaster heater"),
        ("any", "device"),
        (
            *(Subject(f"the {part}", ("any", "device")) for part in words("handle case cable switch")),
            Subject("the design", _ANY),
            Subject("the manual", ("any", "story")),
            Subject("the colours", _ANY, True),
            Subject("the buttons", ("any", "device"), True),
        ),
        (
            "the {noun} weighs {number} ounces .",
            "I bought it on {day} in {town} .",
            "it comes in {colour} and {colour2} .",
            "it does not come with a plug for {country} .",
            "delivery took {few} days .",
            "it is made in {country} .",
            "the box holds the {noun} , a cable and a manual .",
            "I have not tried the other size .",
            "it costs {number} euros in {town} .",
            "{name} gave it to me in {month} .",
        ),
        ("my old {noun} {was} {adjective} .", "the {noun} that I had before {was} {adjective} ."),
    ),
)
# Those of numbers: the first, and how many.
NUMBERS = {"few": (2, 8), "number": (12, 86), "year": (1985, 39)}
SLOTS = {
    "city": words("Lisbon Vienna Boston Dublin Kyoto Lagos Prague Chicago Naples Oslo"),
    "town": words("Leeds Bergen Tampa Malmö Ghent Perth Salem Trieste"),
    "country": words("Japan Norway Brazil Poland Canada Kenya"),
    "language": words("Danish Korean Polish Greek Hindi"),
    "name": words("Anna David Maria James Elena Robert Laura Peter Nina Omar"),
    "person": ("a detective", "a young teacher", "an old sailor", "a nurse", "an engineer", "a retired judge"),
    "person2": ("a lost brother", "an old friend", "a stolen ring", "a missing child"),
    "day": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "month": words("January March April June August October November"),
    "dish": ("the lamb", "a risotto", "an omelette", "the mussels", "a curry", "the dumplings"),
    "drink": ("a beer", "two glasses of wine", "an apple juice", "some water"),
    "colour": words("red black white green"),
    "colour2": words("blue grey yellow silver"),
    "who": ("my sister", "my brother", "a colleague", "our neighbour", "my father", "the man beside us", "a friend"),
    "source": ("the poster", "the local paper", "the website", "one critic", "the guide"),
}


def write_sample_reviews(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample reviews as `reviews-<split>.tsv`; return the files of `train`, `dev` and `test`.

    The columns are `label` (`positive` or `negative`), `text` and `rationale` (places of words from 0). A seed gives
    the same bytes on every machine, and no two texts of the three files are the same but for case. Each file appears
    whole or not at all.
    """
    folder = Path(folder)
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
    return {
        split: write_atomically(folder / f"reviews-{split}.tsv", "label\ttext\trationale\n" + "".join(found))
        for split, found in rows.items()
    }


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
        past, base = self.dice.pick(tuple(VERBS[praises].items()))
        if negator in ("*not", "*n't"):
            return f"I did {negator} *{base} {subject.phrase} ."
        return f"I {negator} *{past} {subject.phrase} ."

    def ascribed(self, good: bool) -> str:
        """Return an opinion of somebody else."""
        subject = self.dice.pick((self.whole, *self.domain.parts))
        negated = self.dice.chance(0.25)
        adjective = self.adjective(subject, good is not negated, mild=negated)
        judged = f"not {adjective}" if negated else adjective
        verb = self.dice.pick(tuple(VERBS[good]))
        template = self.dice.pick(
            (
                "{who} called {subject} {judged} .",
                "{who} thought that {subject} {was} {judged} .",
                "according to {source} , {subject} {was} {judged} .",
                "{source} says that {subject} {was} {judged} .",
                "{who} {verb} {subject} .",
            )
        )
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
        template = self.dice.pick(("I expected a {adjective} {noun} .", "we {hoped} something {adjective} ."))
        return self.filled(template, adjective=adjective, hoped=hoped)

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
