"""Sources of texts: what the option `corpora` names, the files that are meant, and how each is read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from attention_probing.corpora import registry
from attention_probing.corpora.formats import HALVED, TEXT_FORMATS, TEXT_SUFFIXES, TEXTS
from attention_probing.corpora.framenet import framenet_files
from attention_probing.corpora.labelled import Columns
from attention_probing.corpora.lines import infer_format
from attention_probing.corpora.records import RecordFormat
from attention_probing.corpora.registry import CORPORA, data_root
from attention_probing.corpora.sample import SAMPLE_VERSION
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import HALVES, OPTION, Half, Text, read_texts
from attention_probing.results.digests import Digests, digest
from attention_probing.results.errors import UserError, near, one_of, setting
from attention_probing.results.options import Positive, checked, from_options


@checked
@dataclass(frozen=True)
class TextSource:
    """One corpus of texts, and the options to read it.

    Args:
        corpus: One of three: `sample`, a text that this package generates; a name of
            `probing fetch --list`; or a file. A file is plain text with one paragraph per
            line (`.txt`, `.raw`), labelled texts or pairs of texts (`.tsv`, `.csv`, `.jsonl`), a
            treebank (`.conllu`, `.conllx`, `.conll`), or sentences with labelled links between words.
            With `format: conllu`, `sample` is the test split of the generated treebank.
        name: Name in tables; None for the name in the registry, or the stem of the file.
        split: Split of a corpus of the registry, or of a path with `{split}` in it; None for test. If a
            corpus of the registry has no test split, None stands for dev, or else for the whole corpus. Of
            one file of links (`links`, `framenet`), `dev` and `test` are two halves of the sentences, and None is all.
        format: Format of the file; None for the format in the registry, else the one that the suffix implies. A file
            of word links needs a format: `links` for a TSV file, `enhanced` for column DEPS of a CoNLL-U file,
            `framenet` for `frameIndex.xml` in the folder of a release of FrameNet; see `corpora.texts` and
            `corpora.framenet`.
        columns: Columns of labelled texts, by name or, in a file without a header, by number; None for the
            columns in the registry, else `text` alone. Labels are read if their column is named:
            `{text: text, label: label}`.
        packing: `single` makes each passage a segment; `pairs` packs two consecutive passages into one
            segment, as in BERT's pre-training.
        limit: Largest number of segments; None for all. Those of FrameNet are drawn from all frames; of other
            corpora they are the first of the file.
    """

    corpus: str = "sample"
    name: str | None = None
    split: Literal["train", "dev", "test", "all"] | None = None
    format: str | None = None
    columns: Columns | None = None
    packing: Literal["single", "pairs"] = "single"
    limit: Positive | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in TEXT_FORMATS:
            wanted = one_of(self.format, TEXT_FORMATS)
            raise UserError(f"TextSource: format is {self.format!r}, but must be {wanted}.")


Sources = str | dict[str, Any] | list[Any]
"""Corpora on the command line or in a config: a corpus, the options of a `TextSource`, or a list of these."""


def read_sources(given: Sources | TextSource) -> tuple[TextSource, ...]:
    """Return a `TextSource` for each corpus in the option `corpora` of `TextDataModule`.

    The option is parsed here and not by jsonargparse, which would take a single file name for a config,
    and would merge a list on the command line into the list in the config.

    Args:
        given: Value of the option: a corpus or a list of them. A corpus is a name, a file, or the
            options of a `TextSource`.

    Raises:
        UserError: An option is unknown, or has a value that is not allowed.
    """
    corpora = given if isinstance(given, list) else [given]
    return tuple(_make_source(corpus) for corpus in corpora)


def _make_source(given: object) -> TextSource:
    """Return a `TextSource`; make it from the name of a corpus or from options if needed."""
    if isinstance(given, TextSource):
        return given
    options = {"corpus": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or "corpus" not in options:
        raise CorpusError(
            f"{setting(OPTION)}: {given!r} contains no `corpus`. Give a name, a file, or a mapping such as {{corpus: "
            "my.txt, packing: pairs}."
        )
    columns = options.get("columns")
    if columns is not None:
        options = {**options, "columns": from_options(Columns, columns, setting(f"{OPTION}.columns"), label=None)}
    return from_options(TextSource, options, setting(OPTION))


class SourceFile:
    """A source with its name, its file, and the options that the registry knows filled in.

    Args:
        source: The source.
        root: Folder of the public corpora; None for the default.
        cache: Folder of the sample text.
        limit: Largest number of segments if the source has no limit; None for all.
    """

    def __init__(self, source: TextSource, root: str | Path | None, cache: Path, limit: int | None = None) -> None:
        self.given = source
        self.known = CORPORA.get(source.corpus)
        self.path = self._find_path(root, cache)
        self.source = source
        if self.known is not None and source.columns is None:
            columns = Columns()
            if self.known.columns:
                columns = replace(Columns(label=None), **self.known.columns)
            self.source = replace(source, columns=columns)
        if source.limit is None:
            self.source = replace(self.source, limit=limit)
        if self.known is not None and source.format is None:
            self.source = replace(self.source, format=self.known.format)
        if source.name:
            self.name = source.name
        elif self.known is not None or source.corpus == "sample":
            self.name = source.corpus
        else:
            self.name = self.path.stem

    def _find_path(self, root: str | Path | None, cache: Path) -> Path:
        """Return the path of the file; check the split.

        Raises:
            CorpusError: The corpus is unknown, or has no such split.
        """
        source = self.given
        if self.known is not None:
            return data_root(root) / self._file(self.known)
        if source.split is not None and not can_split(source, source.split):
            if source.format in HALVED:
                raise CorpusError(
                    f"{setting(OPTION)}: one file of the format {source.format} has the splits {', '.join(HALVES)} and "
                    f"all, not {source.split}."
                )
            raise CorpusError(
                f"{source.corpus}: this is neither a corpus of the registry{near(source.corpus, CORPORA)} nor a path "
                f"with `{{split}}` in it, so it has no splits. Correct the name, or leave "
                f"{setting(OPTION + '.split')} out."
            )
        if source.corpus == "sample":
            file = "sample-test.conllu" if source.format == "conllu" else "sample.txt"
            return cache / f"sample-{SAMPLE_VERSION}" / file
        path = Path(source.corpus.replace("{split}", source.split or "test")).expanduser()
        if not path.suffix and not path.exists():
            registry.find(source.corpus)  # raises the error of a name that there is not
        return path

    def _file(self, known: registry.Corpus) -> str:
        """Return the path of the wanted split below the data root."""
        preferred: tuple[registry.SplitOrAll, ...] = ("test", "dev", "all")
        if self.given.split:
            preferred = (self.given.split,)
        for split in preferred:
            if split in known.splits:
                return known.splits[split].path
        raise CorpusError(
            f"{known.name}: the corpus has no split {' or '.join(preferred)}; its splits are "
            f"{', '.join(known.splits)}. Name one of them with {setting(OPTION + '.split')}."
        )

    def texts(self, audit: Counter[str]) -> Iterator[Text]:
        """Yield the texts of the file; count the texts left out."""
        option = setting(OPTION, f"{{corpus: {self.source.corpus}, format: …}}")
        name = self.source.format or infer_format(self.path, TEXT_SUFFIXES, option)
        if name in TEXTS:
            return TEXTS[name](self.path, audit)
        if name in HALVED:
            return HALVED[name](self.path, audit, self._half())
        columns = self.source.columns or Columns(label=None)
        skips = self.known is not None and "malformed" in self.known.skip
        return read_texts(self.path, audit, columns=columns, format=cast(RecordFormat, name), skip_malformed=skips)

    def _half(self) -> Half | None:
        """Return the half of the file to read; None for all, as where each split has a file."""
        if "{split}" in self.source.corpus:
            return None
        return next((half for half in HALVES if half == self.source.split), None)

    def sha256(self, digests: Digests) -> str:
        """Return the SHA-256 of the file; of FrameNet, that of the names and checksums of all files that are read."""
        if self.source.format != "framenet":
            return digests.of_file(self.path)
        checksums = digests.of(framenet_files(self.path))
        lines = [f"{path.name} {sha256}\n" for path, sha256 in checksums.items()]
        return digest("".join(lines).encode())


def can_split(source: TextSource, split: registry.SplitOrAll) -> bool:
    """Return True if the source has this split, by the registry, by `{split}` in its path, or as a half of a file."""
    if source.corpus in CORPORA:
        return split in CORPORA[source.corpus].splits
    if "{split}" in source.corpus:
        return True
    return source.format in HALVED and split in (*HALVES, "all")
