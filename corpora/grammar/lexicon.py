"""Nouns, names and adjectives of the sample treebank, by the kind of thing they speak of.

A noun is written as its lemma, then `/` and the plural where it is irregular, then `:` and the nouns that may stand
before it as a compound: `child/children:school` also gives *school children*.
"""

from dataclasses import dataclass

# The article goes by the sound, which these words do not show.
SOUNDS_CONSONANT = frozenset({"university", "useful", "union"})  # "a", although written with a vowel
SOUNDS_VOWEL = frozenset({"honest"})  # "an", although written with a consonant


@dataclass(frozen=True, slots=True)
class Noun:
    """A countable noun and the nouns that may modify it."""

    singular: str
    plural: str
    modifiers: tuple[str, ...]


def words(text: str) -> tuple[str, ...]:
    """Return the words of a table entry."""
    return tuple(text.split())


def _slots(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(filter(None, map(words, text.split("|"))))


def s_form(base: str) -> str:
    """Return the form in -s, of a noun or of a verb."""
    if base.endswith(("s", "x", "ch", "sh", "o")):
        return base + "es"
    return base[:-1] + "ies" if base.endswith("y") and base[-2] not in "aeiou" else base + "s"


def _nouns(entries: str) -> tuple[Noun, ...]:
    found = []
    for entry in entries.split():
        forms, _, modifiers = entry.partition(":")
        singular, _, plural = forms.partition("/")
        found.append(Noun(singular, plural or s_form(singular), tuple(filter(None, modifiers.split(",")))))
    return tuple(found)


NOUNS = {
    "person": _nouns(
        "teacher:history,music,piano,school doctor:village,family nurse:school,hospital farmer:dairy,fruit "
        "artist uncle student:law,art,exchange lawyer:company engineer:software,railway neighbor "
        "child/children:school woman/women man/men boy girl driver:bus,truck,taxi editor:magazine,newspaper "
        "actor:film,theater pilot:airline,helicopter writer:travel,crime aunt officer:police,army "
        "manager:hotel,bank,office visitor:museum singer:jazz,opera cousin guide:tour,mountain "
        "reporter:news,television tourist scientist:climate,data clerk:shop,hotel friend:school judge "
        "coach:football,tennis librarian gardener sailor baker:village"
    ),
    "animal": _nouns(
        "dog:guard,farm cat:farm horse:race fox owl goose/geese mouse/mice:field wolf/wolves rabbit "
        "goat:mountain cow:dairy pony squirrel elephant:circus donkey"
    ),
    "thing": _nouns(
        "umbrella key:car,office,house knife/knives:kitchen,bread box:tool,lunch camera:video "
        "ticket:train,concert,museum coat:winter map:city,road chair:office,garden bicycle:mountain "
        "bottle:water,wine painting:oil guitar basket:picnic radio/radios:kitchen clock:wall,alarm suitcase "
        "hammer watch:pocket ladder:rope violin blanket:wool scarf/scarves:silk vase:glass phone "
        "bag:paper,travel mirror:bathroom lamp:desk"
    ),
    "surface": _nouns("table:kitchen,garden desk:office shelf/shelves:book bench:park,garden counter:kitchen sofa bed"),
    "text": _nouns(
        "book:history,picture report:tax,weather,police letter:love story:ghost,love "
        "article:newspaper,magazine essay:history poem:love email message:text novel:crime "
        "contract:employment diary"
    ),
    "food": _nouns(
        "apple sandwich:cheese,chicken cake:birthday,chocolate orange omelette:mushroom,cheese "
        "pie:apple,cherry salad:fruit,potato pancake egg:duck cookie:oatmeal pizza:mushroom onion"
    ),
    "building": _nouns(
        "kitchen:hotel office:post,ticket library:school,city,university hotel:airport museum:art,science "
        "school:village,language hospital:city station:train,bus,police airport:city theater:city "
        "restaurant:seafood church:village castle bakery hall:town,concert university factory:car,shoe"
    ),
    "area": _nouns("garden:hotel,school,rose market:fish,flower island village:mountain,fishing park:city,amusement"),
    "organization": _nouns(
        "company:insurance,software committee:ethics,school team:football,rescue bank:investment "
        "council:city,student union:student,trade agency:travel,news orchestra:school,city ministry"
    ),
    "event": _nouns(
        "meeting:board,staff concert:jazz,charity wedding exam:history,chemistry lecture:evening "
        "interview:job festival:film,music match:tennis,football parade ceremony:award trip:school,business"
    ),
    "idea": _nouns(
        "idea:business plan:business,emergency problem:traffic,money question:exam answer:exam decision:court "
        "proposal:budget,peace mistake:spelling rule:traffic,house law:tax,labor secret:family argument"
    ),
}
FIRST_NAMES = words(
    "Anna Maria Peter Ruth Tom Daniel Zoë José Amir Olga Ivan Grace Samuel Ella Hugo Nadia Ravi Clara Omar Julia"
)
LAST_NAMES = words("Lopez Miller Novak Okafor Tanaka Schmidt Rossi Clark Haddad Singh Larsen Moreau")
CITIES = words("London Paris Madrid Oslo Chicago Tokyo Vienna Lisbon Boston Cairo")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NUMERALS = words("two three four five six ten")
RELATIVES = ("aunt", "uncle", "cousin", "neighbor", "friend")
ROLES = ("teacher", "doctor", "nurse", "farmer", "student", "lawyer", "engineer", "artist", "actor", "pilot", "singer")

# Attributive adjectives in the order they stand in before a noun (opinion, size, age or colour); at most one of a slot.
ADJECTIVES = {
    "person": _slots("kind friendly honest clever patient nervous brave polite famous | tall young old"),
    "role": _slots("good excellent famous | | young retired"),
    "animal": _slots("gentle lazy hungry beautiful | enormous small | old young brown white black wild"),
    "thing": _slots("beautiful useful expensive ugly elegant | heavy small | new old red blue yellow"),
    "surface": _slots("elegant dirty | large low narrow | old white wooden"),
    "text": _slots("interesting boring difficult unusual honest | long short detailed | new old recent"),
    "food": _slots("delicious | enormous small | sweet fresh cold"),
    "building": _slots("beautiful quiet crowded famous | large small | modern new old"),
    "area": _slots("beautiful quiet crowded famous | large small"),
    "organization": _slots("important powerful | large small | new old local international"),
    "event": _slots("wonderful terrible unexpected important | long short | annual"),
    "idea": _slots("excellent terrible strange serious simple difficult important obvious | | new old"),
}
PREDICATES = {
    "person": words("tired happy angry ready late busy ill proud hungry afraid nervous famous alone"),
    "animal": words("hungry thirsty asleep calm dangerous tired"),
    "thing": words("broken heavy expensive wet dirty useless dangerous"),
    "surface": words("dirty wet empty"),
    "text": words("interesting long ready famous wrong boring important"),
    "food": words("ready cold delicious fresh expensive sweet"),
    "building": words("closed empty crowded quiet full dark famous"),
    "area": words("beautiful empty crowded quiet dark famous"),
    "organization": words("successful famous ready angry small"),
    "event": words("boring successful long important wonderful dangerous"),
    "idea": words("simple wrong good clear dangerous obvious strange important"),
}
UNGRADABLE = frozenset(
    words(
        "alone annual asleep broken closed delicious enormous excellent international local modern ready "
        "terrible unexpected useless wonderful wooden wrong white black brown red blue yellow obvious"
    )
)
DEGREES = ("very", "quite", "rather", "extremely", "really")

# How often a noun is plural: 0.3 unless its kind is here.
PLURALS = {"building": 0.1, "area": 0.1, "event": 0.2, "organization": 0.2, "idea": 0.2}
# Kinds and nouns that are seldom anybody's own.
PUBLIC = frozenset({"building", "area", "organization", "event", "surface"})
FREE = frozenset({"man", "woman", "boy", "girl", "judge", "tourist", "visitor"})
# Where one is: most places take "in".
AT = frozenset({"station", "airport", "market", "theater", "restaurant", "university", "school", "museum"})
ON = frozenset({"island"})
# Prepositional phrases inside a noun phrase: kind of the head → preposition and kind of the dependent.
LINKS = {
    "person": (("from", "city"), ("with", "thing"), ("from", "organization")),
    "role": (("in", "city"), ("from", "city"), ("near", "city")),
    "animal": (("from", "area"), ("near", "building")),
    "thing": (("on", "surface"), ("under", "surface"), ("from", "city")),
    "surface": (("near", "surface"), ("from", "city")),
    "text": (("about", "idea"), ("about", "city"), ("about", "event"), ("by", "person"), ("from", "person")),
    "food": (("on", "surface"), ("from", "area")),
    "building": (("near", "area"), ("in", "city"), ("behind", "building")),
    "area": (("near", "building"), ("in", "city"), ("behind", "building")),
    "organization": (("in", "city"), ("from", "city")),
    "event": (("in", "city"), ("with", "organization")),
    "idea": (("of", "organization"), ("of", "person"), ("in", "city")),
}
PLANS = frozenset({"plan", "decision", "proposal"})  # may be followed by "to" and a verb
