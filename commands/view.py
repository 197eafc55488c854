"""Write a page of attention between words.

Texts are given by `--text`, or are sentences or documents of a corpus by their ids. Sentences of a treebank come with
their gold arcs, documents with their clusters. `--checkpoints` adds the words by which trained classifiers decide, and
prints their decisions with and without the first of these words. The command prints the path of the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import get_args

import numpy as np
from jsonargparse import ArgumentParser, Namespace

from attention_probing.attention import Encoder, EncoderSpec, Options
from attention_probing.attention.alignment import split_words
from attention_probing.attention.quantities import QuantityName
from attention_probing.commands import parser_of
from attention_probing.corpora.conll2012 import read_documents
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.document import Document, cut_window
from attention_probing.corpora.registry import CORPORA, locate
from attention_probing.corpora.sentence import Sentence
from attention_probing.datamodules import DependencyDataModule
from attention_probing.fidelity.checkpoints import load_one
from attention_probing.fidelity.single_text import DEFAULT_RANKINGS, Explanation, explain, spaced
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.files import check_writable, write_atomically
from attention_probing.results.view import Arc, Span, View, view_page

MEGABYTE = 1_000_000
SENTENCES = 5  # sentences shown of a document if no part is named
TITLE = 70  # most letters of a text in a title


@dataclass(frozen=True)
class AnnotatedText:
    """Text to show, with annotations of its words; positions of words count from 1.

    Attributes:
        title: Title of the text.
        words: The words.
        arcs: Arcs as (from, to, label).
        clusters: Mentions of each coreference cluster as (first word, word after the last).
        saliency: Value of each word, by ranking.
        notes: Sentences to show under the figure.
    """

    title: str
    words: tuple[str, ...]
    arcs: tuple[Arc, ...] = ()
    clusters: tuple[tuple[Span, ...], ...] = ()
    saliency: dict[str, list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_words(cls, words: Sequence[str], name: str = "") -> "AnnotatedText":
        """Create a text without annotations, titled by the beginning of the text.

        Args:
            words: The words.
            name: Name of the text, put before its beginning in the title; empty for none.
        """
        title = " ".join(words)
        if len(title) > TITLE:
            title = f"{title[: TITLE - 1]}…"
        if name:
            title = f"{name}: {title}"
        return cls(title, tuple(words))

    @classmethod
    def from_item(cls, item: Sentence | Document) -> "AnnotatedText":
        """Create a text from a sentence of a treebank or from a document with mentions.

        A sentence gives its arcs, from each dependent to its syntactic head. A document gives its
        coreference clusters of two or more mentions.
        """
        if isinstance(item, Sentence):
            text = cls.from_words(item.words, item.id)
            return replace(text, arcs=_arcs(item))
        text = cls.from_words([*chain.from_iterable(item.sentences)], item.id)
        return replace(text, clusters=_clusters(item))


def _arcs(sentence: Sentence) -> tuple[Arc, ...]:
    """Return the arcs of a sentence, without that of the root."""
    arcs = []
    pairs = zip(sentence.heads, sentence.relations, strict=True)
    for word, (governor, relation) in enumerate(pairs, start=1):
        if governor:
            arcs.append((word, governor, relation))
    return tuple(arcs)


def _clusters(document: Document) -> tuple[tuple[Span, ...], ...]:
    """Return the mentions of each cluster of a document that has two or more."""
    starts = list(accumulate(map(len, document.sentences), initial=1))  # position of the first word of each sentence
    clusters: dict[int, list[Span]] = {}
    for mention in document.mentions:
        start = starts[mention.sentence]
        span = (start + mention.start, start + mention.end)
        clusters.setdefault(mention.cluster, []).append(span)
    return tuple(tuple(spans) for spans in clusters.values() if len(spans) > 1)


ItemsById = Mapping[str, Sentence | Document]


def read_items(name: str, split: str) -> tuple[Path, ItemsById]:
    """Read a split of a corpus, which is a treebank or has documents with mentions.

    Args:
        name: Registered name or file of the corpus, also with `{split}` in the place of the split; or `sample`.
        split: Name of the split; ignored for a file without `{split}`.

    Returns:
        The path of the file, and the sentences of the treebank, or the documents, by id.

    Raises:
        CorpusError: There is no such corpus or file, or it cannot be read.
        UserError: There is no such split, or the corpus has only labelled texts.
    """
    path = Path(name.replace("{split}", split))
    files = None
    if name == "sample":
        files = DependencyDataModule(name).files()
    elif name in CORPORA or not (path.suffix or path.exists()):
        files = locate(name, None)
    if files is not None:
        if split not in files and "all" not in files:
            raise UserError(f"--split {split}: {name} has no {split} split. Choose {' or '.join(files)}.")
        path = files.get(split) or files["all"]
    if _has_documents(path):
        return path, {document.id: document for document in read_documents(path).documents}
    if path.is_file() and path.suffix.lower() not in (".conllu", ".conll", ".conllx"):
        raise UserError(
            f"{path}: this is neither a treebank (.conllu, .conllx) nor a CoNLL-2012 file, so it has no arcs and no "
            "clusters to show. Give single texts with --text."
        )
    return path, {sentence.id: sentence for sentence in read_treebank(path).sentences}


def from_corpus(name: str, split: str, ids: Sequence[str] = ()) -> list[AnnotatedText]:
    """Read some sentences of a treebank, or some documents, with their annotations.

    Args:
        name: Registered name or file of the corpus.
        split: Name of the split; ignored for a file.
        ids: Ids of the sentences or documents. `ID:N` is sentence N of a document, `ID:FIRST-LAST`
            several sentences, counted from 1. If empty, the first sentence of the treebank is read, or
            the first `SENTENCES` sentences of the first document.

    Raises:
        CorpusError: There is no such corpus or file, or it cannot be read.
        UserError: There is no such split or id, or the corpus has only labelled texts.
    """
    path, items = read_items(name, split)
    if not ids:
        first, item = next(iter(items.items()))
        if isinstance(item, Document):
            first = f"{first}:1-{min(SENTENCES, len(item.sentences))}"
        ids = [first]
    texts = []
    for item_id in ids:
        texts.append(AnnotatedText.from_item(_find_item(items, item_id, path)))
    return texts


def _has_documents(path: Path) -> bool:
    """Return True for a file in CoNLL-2012 format; two formats use the suffix `.conll`."""
    if not path.is_file():
        return False  # the reader of treebanks reports what is missing
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.strip():
                return line.startswith("#begin document")
    return False


def _find_item(items: ItemsById, item_id: str, path: Path) -> Sentence | Document:
    """Return an item by its id, or the sentences of a document that an id such as `ID:2-4` names."""
    if item_id in items:
        return items[item_id]
    name, _, bounds = item_id.rpartition(":")
    first, _, last = bounds.partition("-")
    last = last or first
    document = items.get(name)
    if not isinstance(document, Document) or not (first.isdecimal() and last.isdecimal()):
        raise UserError(f"--id {item_id}: {path} has no such id{near(item_id, items)}; --list shows all of them.")
    if not 1 <= int(first) <= int(last) <= len(document.sentences):
        raise UserError(
            f"--id {item_id}: {name} has sentences 1 to {len(document.sentences)}. Give one of them, or a range such "
            f"as {name}:1-{len(document.sentences)}."
        )
    part = cut_window(0, document, int(first) - 1, int(last))
    return replace(part.text, id=item_id)


def list_items(corpus: str, split: str) -> list[str]:
    """Return a line for each sentence or document of a corpus, with its id and the beginning of its text.

    Args:
        corpus: Registered name or file of the corpus.
        split: Name of the split; ignored for a file.
    """
    _, items = read_items(corpus, split)
    lines = []
    for item in items.values():
        line = AnnotatedText.from_item(item).title
        if isinstance(item, Document):
            line += f" ({pluralize(len(item.sentences), 'sentence')})"
        lines.append(line)
    return lines


def attention_views(
    texts: Sequence[AnnotatedText], encoder: Encoder, options: Options, *, pieces: bool = False
) -> list[View]:
    """Return one view for each text, of the attention of an encoder between its words.

    Args:
        texts: The texts.
        encoder: The encoder.
        options: Options of the attention, such as layers and heads.
        pieces: True to include the attention between subword pieces.

    Raises:
        UserError: A text is too long for the encoder, or there is no such layer or head.
    """
    sentences = [text.words for text in texts]
    for text, split in zip(texts, split_words(encoder.tokenizer, sentences), strict=True):
        if len(split) > encoder.max_length:
            raise UserError(
                f"{text.title} has {len(split)} pieces, but {encoder.source.spec.name} reads at most "
                f"{encoder.max_length}. Show a part of it; for a document: `--id ID:FIRST-LAST`, with the numbers of "
                "sentences from 1."
            )
    _check_numbers("layers", options.layers, encoder.layers)
    _check_numbers("heads", options.heads, encoder.heads)
    words = encoder.attention(sentences, options=options)
    between_pieces = None
    if pieces:
        between_pieces = encoder.attention(sentences, options=options, over="pieces")
    views = []
    for place, text in enumerate(texts):
        view = View.from_attention(
            words,
            place,
            title=text.title,
            arcs=text.arcs,
            clusters=text.clusters,
            saliency=text.saliency,
            pieces=between_pieces,
            notes=[f"Encoder: {words.encoder['name']}.", *text.notes],
        )
        views.append(view)
    return views


def _check_numbers(option: str, numbers: Sequence[int] | None, most: int) -> None:
    """Raise UserError if a layer or a head is given that the encoder does not have."""
    if numbers is not None and max(numbers) > most:
        raise UserError(f"--{option} {max(numbers)}: the encoder has {most} {option}, counted from 1.")


def with_saliency(text: AnnotatedText, explanation: Explanation, path: Path, *, prefix: str = "") -> AnnotatedText:
    """Return a text with the importance of each word for the decision of a classifier, by every ranking.

    A word has the sum of the values of its tokens, or 0 if all its tokens were cut. The notes of the text have the
    decision, and what the classifier does not read.

    Args:
        text: The text.
        explanation: The decision of the classifier on the same text.
        path: Checkpoint of the classifier, for messages.
        prefix: Beginning of the name of each ranking on the page.

    Raises:
        UserError: The classifier's tokens cannot be aligned with the words of the text.
    """
    words = explanation.words
    owners = _owners(text, words["number"].tolist(), words["word"].tolist(), path)
    saliency = dict(text.saliency)
    for ranking in explanation.rankings:
        sums = np.zeros(len(text.words))
        np.add.at(sums, owners, words[ranking].to_numpy())
        saliency[f"{prefix}{spaced(ranking)}"] = sums.tolist()
    return replace(text, saliency=saliency, notes=(*text.notes, explanation.answer, *explanation.notes))


def _owners(text: AnnotatedText, numbers: Sequence[int], forms: Sequence[str], path: Path) -> np.ndarray:
    """Return the 0-based word of the text for each token of a classifier, by counting letters.

    Args:
        text: The text.
        numbers: Number of the classifier's word of each token.
        forms: This word.
        path: Checkpoint of the classifier, for messages.
    """
    ends = np.cumsum([len(word) for word in text.words])
    owners = []
    # Letters before the current word of the classifier, and up to its end.
    start = 0
    end = 0
    last = -1
    for number, form in zip(numbers, forms, strict=True):
        if number != last:
            last = number
            start = end
            end += len(form)
        owners.append(int(np.searchsorted(ends, start, side="right")))
    if end > ends[-1]:
        raise UserError(
            f"{text.title}: the tokenizer of {path} gives words that cannot be aligned with it. Leave out "
            "--checkpoints."
        )
    return np.array(owners)


def add_explanations(
    texts: Sequence[AnnotatedText], paths: Sequence[Path], rankings: Sequence[str]
) -> tuple[list[AnnotatedText], list[Explanation]]:
    """Return texts with the importance of their words for trained classifiers, and the explanations, text by text.

    Args:
        texts: The texts.
        paths: Checkpoints, runs or Hugging Face models; of several, the rankings have their names.
        rankings: Names of the rankings.

    Raises:
        UserError: A classifier cannot be read, or cannot explain one of the texts; see `fidelity.explain`.
    """
    checkpoints = [load_one(path) for path in paths]
    explained = []
    explanations = []
    for text in texts:
        with_values = text
        for checkpoint in checkpoints:
            explanation = explain(" ".join(text.words), checkpoint, rankings)
            explanations.append(explanation)
            prefix = f"{checkpoint.name}: " if len(checkpoints) > 1 else ""
            with_values = with_saliency(with_values, explanation, checkpoint.path, prefix=prefix)
        explained.append(with_values)
    return explained, explanations


def _check(options: Namespace) -> None:
    """Raise UserError for options that do not fit each other."""
    if bool(options.corpus) == bool(options.text):
        raise UserError("Nothing to show is given, or two things are. Give either --text or --corpus.")
    if not options.corpus and (options.list or options.id):
        raise UserError("--list and --id need a corpus. Give --corpus NAME or FILE.")
    if options.rankings and not options.checkpoints:
        raise UserError("--rankings needs a classifier. Give --checkpoints.")
    least = min([1, *(options.layers or ()), *(options.heads or ())])
    if least < 1:
        raise UserError(f"--layers and --heads count from 1, but {least} is given.")
    for text in options.text:
        if not text.split():
            raise UserError(f"--text {text!r} contains no word.")


def _make_views(options: Namespace) -> tuple[list[View], list[Explanation]]:
    """Return the views that the parsed options of a command line ask for, and the explanations of classifiers."""
    texts = [AnnotatedText.from_words(text.split()) for text in options.text]
    if options.corpus is not None:
        texts = from_corpus(options.corpus, options.split, options.id)
    texts, explanations = add_explanations(texts, options.checkpoints, options.rankings or DEFAULT_RANKINGS)
    attention_options = Options(
        layers=_sorted_numbers(options.layers),
        heads=_sorted_numbers(options.heads),
        precision="float32",
        quantity=options.quantity,
    )
    encoder = Encoder(EncoderSpec(options.encoder, trust_remote_code=options.trust_remote_code))
    views = attention_views(texts, encoder, attention_options, pieces=options.pieces)
    return views, explanations


def _sorted_numbers(numbers: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the layers or heads that are given, each once; None for all."""
    if not numbers:
        return None
    return tuple(sorted(set(numbers)))


def _make_parser() -> ArgumentParser:
    """Return the parser of the command."""
    parser: ArgumentParser = parser_of("view")
    parser.add_argument("--encoder", default=EncoderSpec().name, metavar="NAME", help="folder or name (%(default)s)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run the code in the files of the encoder")
    source = parser.add_argument_group("texts")
    source.add_argument("--text", action="append", default=[], help="a text, cut at blanks; may be repeated")
    source.add_argument("--corpus", metavar="NAME|FILE", help="treebank (gold arcs) or documents (clusters)")
    source.add_argument("--split", default="dev", help="of a corpus by name or with {split} (%(default)s)")
    source.add_argument("--id", nargs="+", action="extend", default=[], help="texts (the first); ID:N, ID:FIRST-LAST")
    source.add_argument("--list", action="store_true", help="say what there is in the corpus, and leave")
    page = parser.add_argument_group("what is shown")
    page.add_argument("--layers", nargs="+", type=int, metavar="N", help="from 1 (all)")
    page.add_argument("--heads", nargs="+", type=int, metavar="N", help="of each layer, from 1 (all)")
    names = get_args(QuantityName)
    use = f"one of {', '.join(names)} (%(default)s)"
    page.add_argument("--quantity", choices=names, default="attention", metavar="NAME", help=use)
    page.add_argument("--pieces", action="store_true", help="also between the pieces of words")
    use = "text classifiers to explain: checkpoints, runs, Hugging Face folders"
    page.add_argument("--checkpoints", nargs="+", type=Path, default=[], metavar="PATH", help=use)
    use = f"of words, for --checkpoints ({' '.join(DEFAULT_RANKINGS)})"
    page.add_argument("--rankings", nargs="+", default=[], metavar="NAME", help=use)
    page.add_argument("--budget", type=float, default=40, metavar="MB", help="most of the page (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("view.html"), metavar="FILE", help="the page (%(default)s)")
    return parser


def main(args: Sequence[str]) -> int:
    """Run the command: write a page, print explanations and its path, or print what can be shown; return the exit code.

    Raises:
        UserError: The input cannot be shown.
    """
    options = _make_parser().parse_args(args)
    _check(options)
    if options.list:
        print("\n".join(list_items(options.corpus, options.split)))
        return 0
    if not options.out.absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder {options.out.absolute().parent}. Create it first.")
    check_writable(options.out.absolute().parent, "--out")
    views, explanations = _make_views(options)
    page = view_page(*views, budget=int(options.budget * MEGABYTE))
    for explanation in explanations:
        print(f"{explanation}\n")
    print(write_atomically(options.out, page))
    return 0
