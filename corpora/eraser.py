"""Reader of the files of ERASER (DeYoung et al. 2020): labelled documents with marked evidence.

A folder holds `train.jsonl`, `val.jsonl` and `test.jsonl`, and the documents: `docs/<docid>`, a file each, or
`docs.jsonl` with `docid` and `document`. A line of a document is a sentence, and blanks separate its tokens. An
annotation has `annotation_id`, `classification`, `query`, and `evidences`: groups of pieces of evidence, each with a
`docid`, `start_token` and `end_token` (exclusive); it may have `docids`, the documents in which evidence may be.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from attention_probing.corpora.labelled import Columns, LabelledFile, LabelledText, LabelledTexts, collect_texts
from attention_probing.corpora.lines import read_lines
from attention_probing.corpora.records import read_objects
from attention_probing.results.files import path_below

ERASER_COLUMNS = Columns(text="evidences", label="classification", pair="query", id="annotation_id")
"""Keys of an annotation. The text is that of the documents; `pair: null` leaves out the query."""


def read_eraser(path: Path, columns: Columns = ERASER_COLUMNS) -> LabelledTexts:
    """Read the annotations of one split as labelled texts; the words of all evidence groups are the rationale.

    The text is the document. Several documents, as the premise and the hypothesis of e-SNLI, are joined to one text, in
    the order of their ids, with hypotheses last. The query, if it is not empty, is the second text of a pair, and has
    no rationale. As in the released code (3ae7641), evidence counts tokens, which are separated by blanks and line
    ends. A token that contains other white space, such as a tab, becomes several words.

    Args:
        path: File of the annotations, in UTF-8; the documents lie in the same folder.
        columns: Keys of the annotations.

    Returns:
        The texts. The audit also has the entry `joined_documents`, the number of texts of several documents.

    Raises:
        CorpusError: A file is missing, malformed or not in UTF-8, a document is missing, evidence lies outside its
            document, or a docid names a file outside the folder; the message names file, line and remedy.
    """
    file = EraserFile(Path(path), columns, "jsonl")
    labelled = collect_texts(file)
    return LabelledTexts(labelled.texts, {**labelled.audit, "joined_documents": file.joined})


class EraserFile(LabelledFile):
    """Annotations of one split of ERASER.

    Attributes:
        joined: Number of the texts read so far that join several documents.
    """

    joined = 0

    def _texts(self, left_out: object) -> Iterator[LabelledText]:
        """Yield the annotations as labelled texts; `left_out` is not used, for every line must be sound."""
        self.joined = 0
        for line, annotation in read_objects(self.path):
            values = self._values(line, annotation)
            ids = annotation.get("docids") or []
            if not isinstance(ids, list):
                raise self._error(line, "docids is not a list", "Give the ids of the documents, or leave it out")
            evidence = self._evidence(line, values["text"])
            names = set(map(str, ids))
            for piece in evidence:
                names.add(str(piece["docid"]))
            if not names:
                names = {str(values.get("id"))}
            documents = sorted(names, key=lambda name: (name.endswith("_hypothesis"), name))
            self.joined += len(documents) > 1
            words, rationale = self._join(line, documents, evidence)
            values["text"] = " ".join(words)
            values["rationale"] = rationale
            if not values.get("pair"):  # an empty query
                values.pop("pair", None)
            yield self._text(line, values)

    def _join(
        self, line: int, documents: Sequence[str], evidence: Sequence[Mapping[str, Any]]
    ) -> tuple[list[str], list[int]]:
        """Return the words of the documents, and the places of those that are evidence."""
        words: list[str] = []
        rationale: list[int] = []
        for name in documents:
            tokens = [token.split() for token in self._document(line, name)]
            starts = list(accumulate(map(len, tokens), initial=len(words)))
            for piece in evidence:
                if str(piece["docid"]) == name:
                    first, end = self._span(line, piece, len(tokens))
                    rationale += range(starts[first], starts[end])
            words += chain.from_iterable(tokens)
        return words, rationale

    def _evidence(self, line: int, groups: object) -> list[Mapping[str, Any]]:
        """Return the pieces of evidence of all groups."""
        pieces: list[Any] = [None]
        if isinstance(groups, list) and all(isinstance(group, list) for group in groups):
            pieces = list(chain.from_iterable(groups))
        for piece in pieces:
            if not isinstance(piece, dict) or not {"docid", "start_token", "end_token"} <= piece.keys():
                wrong = (
                    f"the {self.describe_field('text')} is not a list of lists of objects with docid, start_token and "
                    "end_token"
                )
                raise self._error(line, wrong, "Check that it is a file of ERASER")
        return pieces

    def _span(self, line: int, piece: Mapping[str, Any], tokens: int) -> tuple[int, int]:
        first = piece["start_token"]
        end = piece["end_token"]
        if type(first) is int and type(end) is int and 0 <= first < end <= tokens:
            return first, end
        wrong = f"evidence has the tokens {first} to {end} of document {piece['docid']!r}, which has {tokens} tokens"
        raise self._error(line, wrong, "Count from 0, with the end behind the last token")

    def _document(self, line: int, name: str) -> list[str]:
        """Return the tokens of a document."""
        folder = self.path.parent
        if self._documents is None:
            try:
                path = path_below(folder, Path("docs", name))
                exists = path.is_file()
            except (OSError, ValueError) as error:
                raise self._error(line, f"the docid cannot name a document: {error}", "Name a file in docs") from None
            if not exists:
                wrong = f"there is no document {name!r} in {folder / 'docs'}, and no {folder / 'docs.jsonl'}"
                raise self._error(line, wrong, "Unpack the documents beside the annotations")
            tokens = []
            for _, text in read_lines(path):
                tokens += [token for token in text.strip().split(" ") if token]
            return tokens
        if name not in self._documents:
            wrong = f"{folder / 'docs.jsonl'} has no document {name!r}"
            raise self._error(line, wrong, "Unpack the documents that belong to the annotations")
        # The released code counts the empty tokens of these documents, and not those of the files in docs/.
        tokens = []
        for text in self._documents[name].split("\n"):
            tokens += text.strip().split(" ")
        return tokens

    @cached_property
    def _documents(self) -> dict[str, str] | None:
        """Documents of `docs.jsonl`; None if there is no such file."""
        path = self.path.parent / "docs.jsonl"
        if not path.is_file():
            return None
        lines = LabelledFile(path, Columns("document", None, id="docid"), "jsonl")._objects()
        return {str(values["id"]): str(values["text"]) for _, values in lines}
