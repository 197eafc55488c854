"""Reader of FrameNet: exemplars of its lexical units, with links from the target of a frame to its core elements.

The layout is that of the releases 1.5 to 1.7: `luIndex.xml` lists the lexical units, and `lu/lu<ID>.xml` has the
annotated sentences of one, those of full texts among them.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import intern
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from attention_probing.corpora.lines import read_lines
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import Half, Link, Passage, Text
from attention_probing.results.files import check_regular

_SEED = 0  # of the order in which sentences are drawn
_LARGEST = 1 << 23  # bytes of a file; those of the releases have at most a few MB
_NAMESPACE = "{http://framenet.icsi.berkeley.edu}"
_WORD = re.compile(r"\S+")  # blanks separate the words of a sentence, as in FrameNet's own part-of-speech layers
_NUMBER = re.compile("[0-9]{1,9}")
_RELEASE = "Unpack the release of FrameNet again"

Characters = tuple[int, int]
"""Characters from the first to the one behind the last."""


def read_framenet(path: Path, audit: Counter[str], half: Half | None = None) -> Iterator[Text]:
    """Yield annotated sentences, with links from the target of a frame to the frame elements that are core.

    Links are read from the first layer of frame elements. Blanks separate words; a word that a label covers in part
    belongs to it. Core is what the file of the lexical unit calls `Core`.

    Sentences come in a random order that is always the same, so that the first ones are a sample of all frames: first
    one sentence of one lexical unit of each frame, then one of each other lexical unit, then all others. Kovaleva et
    al. (2019, §4.2) took sample sentences of every lexical unit. A sentence occurs once for each lexical unit for which
    it is annotated. `Passage.line` is the number of the sentence in the file of its lexical unit, from 1, and
    `Passage.id` names the file and the sentence.

    Args:
        path: `frameIndex.xml`; `luIndex.xml` and `lu` lie in the same folder.
        audit: Receives the counts of what is left out: `missing_files` of lexical units with annotation;
            `unlinked_sentences`; `null_elements`, core elements that are not in the text; `elements_not_core`;
            `repeated_links`, labels that stand twice; and `misplaced_labels`, which cover no word.
        half: Half of the sentences to read, see `Passage.half`; None reads all.

    Raises:
        CorpusError: A file is missing, malformed, too large, has a document type, or is not FrameNet's.
    """
    units = _units(path, audit)
    drawing = random.Random(_SEED)
    others: list[Passage] = []
    for file in _in_drawn_order(units, drawing):
        passages = list(_exemplars(file, audit, half))
        drawing.shuffle(passages)
        others += passages[1:]
        for passage in passages[:1]:
            yield (passage,)
    drawing.shuffle(others)
    for passage in others:
        yield (passage,)


def framenet_files(path: Path) -> list[Path]:
    """Return the files that are read: the index of lexical units, and the file of each unit with annotation.

    Args:
        path: `frameIndex.xml` in the folder of the data.

    Raises:
        CorpusError: The index is missing or malformed, none of the files is there, or one is not a regular file or too
            large.
    """
    return [path.parent / _INDEX, *_units(path, Counter())]


_INDEX = "luIndex.xml"


def _units(path: Path, audit: Counter[str]) -> dict[Path, str]:
    """Return the frame of each lexical unit with annotation, by the file of the unit."""
    index = path.parent / _INDEX
    if not index.exists():
        wrong = f"{_INDEX} is missing in the same folder"
        raise CorpusError.at(path, None, wrong, "Name frameIndex.xml in the folder of a release of FrameNet")
    units: dict[Path, str] = {}
    for unit in _parse(index, "luIndex").findall(f"{_NAMESPACE}lu"):
        if unit.get("hasAnnotation") == "true":
            number = _attribute(index, unit, "ID", _NUMBER)
            units[path.parent / "lu" / f"lu{number}.xml"] = _attribute(index, unit, "frameName")
    missing = [file for file in units if not file.exists()]
    if len(missing) == len(units):
        wrong = f"none of the files of its {len(units):,} lexical units with annotation is in {path.parent / 'lu'}"
        raise CorpusError.at(index, None, wrong, _RELEASE)
    audit["missing_files"] += len(missing)
    for file in missing:
        del units[file]
    for file in units:
        _check_size(file)
    return units


def _in_drawn_order(units: Mapping[Path, str], drawing: random.Random) -> list[Path]:
    """Return the files in a random order, in which one of each frame comes before the second of any frame."""
    files = list(units)
    drawing.shuffle(files)
    first = {units[file]: file for file in reversed(files)}
    return sorted(files, key=lambda file: first[units[file]] != file)


def _exemplars(file: Path, audit: Counter[str], half: Half | None) -> Iterator[Passage]:
    """Yield the sentences of a lexical unit that have a link."""
    unit = _parse(file, "lexUnit")
    elements = unit.iterfind(f"{_NAMESPACE}header/{_NAMESPACE}frame/{_NAMESPACE}FE")
    kinds = {_attribute(file, element, "name"): _attribute(file, element, "type") for element in elements}
    for number, sentence in enumerate(unit.iter(f"{_NAMESPACE}sentence"), start=1):
        text = sentence.findtext(f"{_NAMESPACE}text") or ""
        words = tuple(map(intern, text.split()))  # one string for all occurrences of a word
        passage = Passage("", words, number, document=sentence.get("docID"))
        if half is not None and passage.half != half:
            continue
        spans = [word.span() for word in _WORD.finditer(text)]
        links: list[Link] = []
        for annotation in sentence.iterfind(f"{_NAMESPACE}annotationSet"):
            links += _links(file, annotation, spans, kinds, audit)
        unique = tuple(dict.fromkeys(links))
        audit["repeated_links"] += len(links) - len(unique)
        audit["unlinked_sentences"] += not unique
        if unique:
            name = f"{file.stem}/{_attribute(file, sentence, 'ID')}"
            yield replace(passage, id=name, links=unique)


def _links(
    file: Path, annotation: Element, spans: Sequence[Characters], kinds: Mapping[str, str], audit: Counter[str]
) -> Iterator[Link]:
    """Yield the links of one annotation, to the core elements of its first layer that are in the text."""
    layers: dict[tuple[str | None, str | None], list[Element]] = defaultdict(list)
    for layer in annotation.iterfind(f"{_NAMESPACE}layer"):
        layers[layer.get("name"), layer.get("rank")] += layer.findall(f"{_NAMESPACE}label")
    target = _words(file, layers["Target", "1"], spans)
    for label in layers["FE", "1"]:
        name = _attribute(file, label, "name")
        places = _words(file, [label], spans)
        if kinds.get(name) != "Core":
            audit["elements_not_core"] += 1
        elif label.get("start") is None:
            audit["null_elements"] += 1
        elif not target or not places:
            audit["misplaced_labels"] += 1
        else:
            yield Link(intern(name), target, places)


def _words(file: Path, labels: Sequence[Element], spans: Sequence[Characters]) -> tuple[int, ...]:
    """Return the positions of the words that overlap one of the labels; labels of null elements have no place."""
    places: set[int] = set()
    for label in labels:
        if label.get("start") is None:
            continue
        first = int(_attribute(file, label, "start", _NUMBER))
        last = int(_attribute(file, label, "end", _NUMBER))
        for place, (start, end) in enumerate(spans):
            if start <= last and first < end:
                places.add(place)
    return tuple(sorted(places))


def _parse(path: Path, root: str) -> Element:
    """Return the root element of an XML file, of which the name is known.

    Raises:
        CorpusError: The file is no regular file, too large, not in UTF-8 or malformed, has a document type, or
            another root element.
    """
    _check_size(path)
    text = "\n".join(line for _, line in read_lines(path, longest=_LARGEST + 1))
    if "<!DOCTYPE" in text:  # can define entities that fill the memory; no file of the releases has one
        raise CorpusError.at(path, None, "the file has a document type (<!DOCTYPE)", _RELEASE)
    try:
        element = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise CorpusError.at(path, error.position[0], f"the XML is malformed ({error.msg})", _RELEASE) from None
    if element.tag != f"{_NAMESPACE}{root}":
        wrong = f"the root element is {element.tag[:80]!r}, not {root} of FrameNet"
        raise CorpusError.at(path, None, wrong, "Check that it is a file of FrameNet")
    return element


def _check_size(path: Path) -> None:
    """Raise a CorpusError if what is there is not a regular file, or too large to be parsed."""
    try:
        check_regular(path, _LARGEST)
    except OSError as error:
        raise CorpusError.at(path, None, f"the file cannot be read ({error.strerror})", _RELEASE) from None


def _attribute(path: Path, element: Element, name: str, pattern: re.Pattern[str] | None = None) -> str:
    """Return an attribute of an element, which must have it, and in this form."""
    value = element.get(name)
    if value is None or (pattern is not None and not pattern.fullmatch(value)):
        kind = element.tag.removeprefix(_NAMESPACE)
        there = "nothing" if value is None else repr(value[:40])
        wrong = f"the attribute {name!r} of an element {kind!r} is {there}"
        raise CorpusError.at(path, None, wrong, _RELEASE)
    return value
