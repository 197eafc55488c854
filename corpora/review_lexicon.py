"""What the sample reviews are made of: the words that judge, what they judge, and templates of sentences about it.

In a template braces are a slot. Sentences are tokenised: a blank between two tokens.
"""

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


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
SOUNDS_CONSONANT = frozenset({"useless"})  # "a useless lamp"


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
