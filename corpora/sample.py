"""The embedded sample treebank: generated English with gold dependencies, for runs without any corpus at hand.

The files are ordinary CoNLL-U in the conventions of Universal Dependencies 2 for English: `n't` and `'s` are words of
their own under a multiword token, and `# text` is what the words spell. `corpora.grammar` writes the trees.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from corpora.grammar import Dice, Node, Sentences
from corpora.lexicon import WORDS
from results.files import is_whole, write_atomically

# Raise it with every change that makes a seed give other files, and write down their SHA-256.
SAMPLE_VERSION: int = 1
_TREEBANK = "8eeae5e0c4be3d644a29af3c9934a5d3fbf58cf0f52efe4259160d5fb0157c4d"
_TEXT = "8d601402447a70c06fa0364ec51b80f8d48a77e2962c88950bc9f1518d2458df"

PARAGRAPHS, SENTENCES = 72, 6  # of the sample text

# Sentences of each split; they are dealt out in turn, so that the splits are alike.
SIZES = {"train": 2000, "dev": 250, "test": 250}
SHORTEST, LONGEST = 3, 30  # words, punctuation included

_CLITICS = frozenset({"n't", "'s", "'", "'m", "'re", "'ll"})  # one token with the word before


def write_sample_treebank(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample treebank; return the files of `train`, `dev` and `test`.

    A seed gives the same bytes on every machine, and no two sentences of the three files have the same text. Each file
    appears whole or not at all. Those of the usual seed that are there undamaged stay.
    """
    folder = Path(folder)
    paths = {split: folder / f"sample-{split}.conllu" for split in SIZES}
    if seed == 0 and is_whole([*paths.values()], _TREEBANK):
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    blocks: dict[str, list[str]] = {split: [] for split in SIZES}
    turn = sum(SIZES.values()) // SIZES["dev"]
    for i, (text, rows) in enumerate(_distinct(seed, sum(SIZES.values()))):
        split = {0: "dev", 1: "test"}.get(i % turn, "train")
        number = len(blocks[split]) + 1
        blocks[split].append(f"# sent_id = sample-{split}-{number:04}\n# text = {text}\n{rows}\n")
    return {split: write_atomically(path, "".join(blocks[split])) for split, path in paths.items()}


def write_sample_text(folder: Path, *, seed: int = 1) -> Path:
    """Write the sample text, a paragraph of sentences of the same grammar on each line; return its file.

    A seed gives the same bytes on every machine. The file appears whole or not at all. That of the usual seed stays if
    it is there undamaged.
    """
    path = Path(folder) / "sample.txt"
    if seed == 1 and is_whole([path], _TEXT):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [text for text, _ in _distinct(seed, PARAGRAPHS * SENTENCES)]
    lines = [" ".join(texts[start : start + SENTENCES]) for start in range(0, len(texts), SENTENCES)]
    return write_atomically(path, "".join(f"{line}\n" for line in lines))


def _distinct(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield text and rows of `count` sentences of fitting length whose texts differ."""
    seen: set[str] = set()
    grammar = Sentences(Dice(seed))
    while len(seen) < count:
        words = _spelled(grammar.sentence())
        text, rows = _render(words)
        if SHORTEST <= len(words) <= LONGEST and text.lower() not in seen:
            seen.add(text.lower())
            yield text, rows


def _spelled(tree: Node) -> list[tuple[Node, Node | None]]:
    """Return the words with their heads as they are written: "an", a capital, no comma before another mark."""
    found = list(tree.flatten())
    words = [
        (node, head)
        for i, (node, head) in enumerate(found)
        if not (node.form == "," and found[i + 1][0].upos == "PUNCT")
    ]
    for (node, _), (after, _) in pairwise(words):
        if node.form == "a" and node.upos == "DET":
            sound = after.form[0].lower() in "aeiou"
            if (sound or after.lemma in WORDS["vowel sound"]) and after.lemma not in WORDS["consonant sound"]:
                node.form = "an"
    first = words[0][0]
    first.form = first.form[0].upper() + first.form[1:]
    return words


def _render(words: list[tuple[Node, Node | None]]) -> tuple[str, str]:
    """Return the text of a sentence and its CoNLL-U rows, which end with a line end each."""
    position = {id(node): i for i, (node, _) in enumerate(words, start=1)}
    nodes = [node for node, _ in words]
    clitic = [node.form in _CLITICS for node in nodes] + [False, False]
    mark = [node.upos == "PUNCT" for node in nodes] + [False, False]
    text = "".join(node.form if i == 0 or clitic[i] or mark[i] else f" {node.form}" for i, node in enumerate(nodes))
    rows = []
    for i, (node, head) in enumerate(words):
        if clitic[i + 1]:
            space = "SpaceAfter=No" if mark[i + 2] else "_"
            rows.append(f"{i + 1}-{i + 2}\t{node.form}{nodes[i + 1].form}\t_\t_\t_\t_\t_\t_\t_\t{space}\n")
        governor = position[id(head)] if head else 0
        space = "SpaceAfter=No" if mark[i + 1] and not clitic[i] else "_"
        rows.append(f"{i + 1}\t{node.form}\t{node.lemma}\t{node.upos}\t_\t_\t{governor}\t{node.relation}\t_\t{space}\n")
    return text, "".join(rows)
