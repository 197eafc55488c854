"""Files of the embedded sample corpora in English, for runs without any other corpus.

The sentences of a document mention a cast of three persons or
things. They are written as a treebank in the style of Universal Dependencies, as a coreference corpus and as running
text. A review has one opinion of its writer, and the words of this opinion are the rationale. Opinions of others in the
review do not affect the label, so that a bag of words cannot predict all labels. A seed gives the same bytes on every
machine.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_probing.corpora.sample_grammar import DOCUMENTS, GLUED, CastMention, Grammar, Word, find_upos, join_words
from attention_probing.corpora.sentence import Sentence
from attention_probing.results.errors import UserError, setting
from attention_probing.results.files import is_whole, set_aside, write_atomically

# Raise it with every change of the generated files, and update their SHA-256.
SAMPLE_VERSION: int = 3
_TREEBANK = "e703a32759a94dc43f91addb6a5dfeb6ef8b013dba1b107860d348db8e33fbe0"
_REVIEWS = "0c7988d8d4bf3a86b07d88f05c0148ff0e894515d129a3e129cce728626d80bb"

REVIEWS = {"train": 3000, "dev": 250, "test": 250}  # half of each label


def write_sample_treebank(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample documents in three formats, and return the CoNLL-U file of each split.

    The folder gets a CoNLL-U file (dependency trees) and a CoNLL-2012 file (coreference) for each split,
    and one plain-text file with the documents of dev and test.

    Args:
        folder: The folder.
        seed: Seed of the generated documents.
    """
    folder = Path(folder)
    treebanks = {split: folder / f"sample-{split}.conllu" for split in DOCUMENTS}
    plain_text = folder / "sample.txt"
    contents: dict[Path, list[str]] = {}
    for path in treebanks.values():
        contents[path] = []
        contents[path.with_suffix(".conll")] = []
    contents[plain_text] = []
    if seed == 0 and is_whole(list(contents), _TREEBANK):
        return treebanks
    grammar = Grammar(seed)
    for split, path in treebanks.items():
        for number in range(1, DOCUMENTS[split] + 1):
            name = f"{path.stem}-{number:03}"
            sentences, mentions = grammar.document()
            contents[path].append(f"# newdoc id = {name}\n")
            for place, words in enumerate(sentences, start=1):
                contents[path].append(_write_conllu(f"{name}-{place}", words))
            contents[path.with_suffix(".conll")].append(_write_conll2012(name, sentences, mentions))
            if split != "train":
                contents[plain_text].append(" ".join(map(join_words, sentences)) + "\n")
    _write_files(contents)
    return treebanks


def write_sample_documents(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the same files as `write_sample_treebank`, but return the CoNLL-2012 file of each split.

    Args:
        folder: The folder.
        seed: Seed of the generated documents.
    """
    treebanks = write_sample_treebank(folder, seed=seed)
    return {split: path.with_suffix(".conll") for split, path in treebanks.items()}


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
    grammar = Grammar(seed)
    contents: dict[Path, list[str]] = {}
    for split, path in paths.items():
        rows = ["label\ttext\trationale\n"]
        for _ in range(REVIEWS[split] // 2):
            for label in ("positive", "negative"):
                words = grammar.review(label)
                text = " ".join(word.form for word in words)
                places = [str(place) for place, word in enumerate(words) if word.relation == "rationale"]
                rows.append(f"{label}\t{text}\t{' '.join(places)}\n")
        contents[path] = rows
    _write_files(contents)
    return paths


def _write_files(contents: Mapping[Path, Sequence[str]]) -> None:
    """Write the files of a sample; a file with other bytes is set aside.

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
                f"and disk, or name another folder with {setting('data.cache')}."
            ) from error


def _write_conllu(name: str, words: Sequence[Word]) -> str:
    """Return a sentence in CoNLL-U."""
    positions: dict[Word | None, int] = {None: 0}
    for position, word in enumerate(words, start=1):
        positions[word] = position
    forms = tuple(word.form for word in words)
    sentence = Sentence(
        id=name,
        words=forms,
        heads=tuple(positions[word.head] for word in words),
        relations=tuple(word.relation or "root" for word in words),
        upos=tuple(map(find_upos, words)),
        xpos=tuple(word.tag for word in words),
    )
    misc = []
    for next_form in (*forms[1:], "."):
        misc.append("SpaceAfter=No" if next_form in GLUED else "_")
    return sentence.conllu(join_words(words), misc)


def _write_conll2012(name: str, sentences: Sequence[Sequence[Word]], mentions: Sequence[CastMention]) -> str:
    """Return a document in 12 columns; members of the cast with several mentions are its clusters."""
    members = [member for member, _ in mentions]
    brackets: dict[Word, list[str]] = defaultdict(list)
    for member, span in mentions:
        if members.count(member) == 1:
            continue
        cluster = members.index(member)
        first = span[0]
        last = span[-1]
        if first is last:
            brackets[first].append(f"({cluster})")
        else:
            brackets[first].append(f"({cluster}")
            brackets[last].append(f"{cluster})")
    rows = [f"#begin document ({name}); part 000"]
    for words in sentences:
        for place, word in enumerate(words):
            coreference = "|".join(brackets[word]) or "-"
            rows.append("\t".join([name, "0", str(place), word.form, word.tag, *"-" * 6, coreference]))
        rows.append("")
    return "\n".join([*rows, "#end document", ""])
