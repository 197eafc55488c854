"""Verbs of the sample treebank with what each takes: the kinds of its subjects and objects.

A verb is written as its base form, then `/`, past and participle where they are irregular: `write/wrote/written`.
"""

from dataclasses import dataclass

from corpora.grammar.lexicon import s_form, words

_DOUBLED = frozenset(words("admit begin drop forget plan put run"))  # planned, planning


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb's five forms."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


@dataclass(frozen=True, slots=True)
class Frame:
    """A verb with what it takes.

    `pattern` names the complements (see `Clauses.complements`), `subjects` and `objects` the kinds of noun that may
    fill the places, `link` its particle or preposition, `manner` adverbs that fit. A stative verb has no progressive;
    only what is deliberate can be ordered, planned or tried.
    """

    verb: Verb
    pattern: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    link: str
    manner: tuple[str, ...]
    stative: bool
    deliberate: bool


def verb_of(entry: str) -> Verb:
    """Return the five forms of a table entry."""
    base, *irregular = entry.split("/")
    stem = base + base[-1] if base in _DOUBLED else base
    if base.endswith("e"):
        regular = base + "d"
    else:
        regular = base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeiou" else stem + "ed"
    past = irregular[0] if irregular else regular
    gerund = base[:-1] if base.endswith("e") and not base.endswith("ee") else stem
    return Verb(base, s_form(base), past, irregular[-1] if irregular else regular, gerund + "ing")


# Subjects, verbs, objects, and adverbs of manner that fit, for each group.
_TRANSITIVE = (
    ("person", "read/read write/wrote/written translate sign correct publish", "text", "carefully slowly quickly"),
    ("person", "finish forget/forgot/forgotten lose/lost", "text", ""),
    ("person", "eat/ate/eaten bake order prepare share", "food", "quickly happily"),
    ("person", "taste forget/forgot/forgotten burn", "food", ""),
    ("person", "buy/bought sell/sold carry hide/hid/hidden clean borrow", "thing", "carefully quickly"),
    ("person", "find/found lose/lost drop damage steal/stole/stolen", "thing", ""),
    ("person", "help thank call invite follow interview", "person", "quickly politely"),
    ("person", "meet/met recognize see/saw/seen", "person", ""),
    ("person", "feed/fed chase photograph rescue train wash", "animal", "quietly carefully"),
    ("person", "see/saw/seen hear/heard", "animal", ""),
    ("person", "visit leave/left photograph", "building area city", "quietly"),
    ("person", "enter clean paint close", "building", "quietly slowly"),
    ("person", "reach find/found", "building area", ""),
    ("person", "clean paint move repair", "surface", "carefully quickly"),
    ("person", "discuss explain accept reject describe", "idea", "politely calmly"),
    ("person", "forget/forgot/forgotten mention notice", "idea", ""),
    ("person", "attend organize cancel", "event", ""),
    ("person", "miss enjoy", "event", ""),
    ("animal", "chase follow watch", "animal person", "slowly quietly"),
    ("animal", "bite/bit/bitten wake/woke/woken frighten", "person animal", ""),
    ("animal", "eat/ate/eaten steal/stole/stolen", "food", "quickly happily"),
    ("animal", "find/found smell", "food", ""),
    ("organization", "approve reject discuss announce reconsider", "idea", ""),
    ("organization", "hire thank invite", "person", ""),
    ("organization", "build/built close open sell/sold repair", "building", ""),
    ("organization", "organize cancel announce", "event", ""),
    ("organization", "publish translate", "text", ""),
    ("event", "surprise annoy disappoint delight", "person", ""),
    ("idea", "surprise worry confuse interest", "person organization", ""),
    ("text", "surprise worry bore amuse", "person", ""),
)
_STATIVE = (
    ("person", "know/knew/known trust admire love", "person", ""),
    ("person", "need own want", "thing", ""),
    ("person", "understand/understood remember hate support", "idea", ""),
    ("person", "love hate", "food animal", ""),
    ("person", "love know/knew/known", "building area city", ""),
    ("animal", "fear trust", "person animal", ""),
    ("organization", "own need", "building", ""),
    ("organization", "support", "idea event", ""),
)
# Pattern, subjects, verbs, objects, particle or preposition, manner.
_OTHER = (
    ("intransitive", "person", "sing/sang/sung dance rest work wait", "", "", "quietly happily"),
    ("intransitive", "person animal", "sleep/slept run/ran/run", "", "", "quietly happily"),
    ("intransitive", "person", "laugh smile arrive", "", "", "suddenly"),
    ("intransitive", "event", "begin/began/begun end", "", "", "early late suddenly"),
    ("intransitive", "thing", "disappear fall/fell/fallen", "", "", "suddenly"),
    ("motion", "person", "walk hurry drive/drove/driven travel return", "building area city", "to", "slowly"),
    ("motion", "animal", "run/ran/run hurry return", "building area", "to", "slowly quickly"),
    ("motion", "person animal", "walk run/ran/run", "building area", "past", "slowly quickly"),
    (
        "ditransitive",
        "person",
        "give/gave/given send/sent show/showed/shown lend/lent offer hand",
        "thing text",
        "to",
        "",
    ),
    ("ditransitive", "person", "give/gave/given hand offer", "food", "to", ""),
    ("ditransitive", "organization", "give/gave/given send/sent offer", "text", "to", ""),
    ("placing", "person", "put/put leave/left hide/hid/hidden place drop", "thing text food", "", "quietly carefully"),
    ("prepositional", "person", "wait", "person organization", "for", "patiently"),
    ("prepositional", "person", "look point", "thing animal person surface", "at", "suddenly"),
    ("prepositional", "person", "talk complain", "event idea person", "about", "quietly"),
    ("prepositional", "person", "search", "thing animal", "for", "carefully"),
    ("prepositional", "person", "listen", "person", "to", "carefully"),
    ("prepositional", "person", "work", "text idea", "on", "slowly happily"),
    ("prepositional", "organization", "pay/paid", "event thing", "for", ""),
    ("particle", "person", "pick", "thing text", "up", "quickly carefully"),
    ("particle", "person", "throw/threw/thrown", "thing food text", "away", ""),
    ("particle", "person", "write/wrote/written", "idea", "down", "quickly"),
    ("particle", "person organization", "call", "event", "off", ""),
    ("infinitive", "person organization", "try plan decide promise refuse agree manage", "", "", ""),
    ("infinitive", "person", "learn begin/began/begun", "", "", ""),
    ("infinitive", "person organization", "want hope", "", "", ""),
    ("object infinitive", "person organization", "ask/asked tell/told allow persuade", "person", "iobj", ""),
    ("object infinitive", "person organization", "force invite encourage help want", "person", "obj", ""),
    ("clausal", "person organization", "say/said announce admit claim explain", "", "", ""),
    ("clausal", "person", "think/thought know/knew/known believe hear/heard notice hope", "", "", ""),
    ("told", "person organization", "tell/told remind warn assure", "person", "", ""),
    ("linking", "person", "seem look become/became/become feel/felt", "", "", ""),
    ("linking", "animal", "seem look become/became/become", "", "", ""),
    ("linking", "food event", "look seem", "", "", ""),
)
_NO_PROGRESSIVE = frozenset(
    words("want hope know think believe hear seem look notice recognize see find lose forget miss drop")
)
_UNINTENDED = frozenset(
    words(
        "forget lose taste burn find drop damage steal recognize see hear reach mention notice miss fall "
        "disappear begin end arrive laugh smell seem look become feel manage admit claim want hope refuse "
        "know think believe know trust admire love need own hate fear bite bore confuse interest worry "
        "surprise annoy disappoint delight amuse"
    )
)


def _frames() -> tuple[Frame, ...]:
    groups = [
        *(
            ("transitive", subjects, verbs, objects, "", manner, False)
            for subjects, verbs, objects, manner in _TRANSITIVE
        ),
        *(("transitive", subjects, verbs, objects, "", manner, True) for subjects, verbs, objects, manner in _STATIVE),
        *((*group, False) for group in _OTHER),
    ]
    return tuple(
        Frame(
            verb=(verb := verb_of(entry)),
            pattern=pattern,
            subjects=words(subjects),
            objects=words(objects),
            link=link,
            manner=words(manner),
            stative=stative or verb.base in _NO_PROGRESSIVE,
            deliberate=not stative and verb.base not in _UNINTENDED,
        )
        for pattern, subjects, verbs, objects, link, manner, stative in groups
        for entry in verbs.split()
    )


FRAMES = _frames()
