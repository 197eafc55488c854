"""Explanations made elsewhere: importance of the words of each text, read from a file.

Each line is a JSON object with three keys: `id`, the id of a text in the test split; `words`, its words; and `scores`,
one number for each word. Two more keys are optional. `word_ids` is for scores of pieces: the 0-based word of each
piece, null for delimiters, as `BatchEncoding.word_ids` of transformers returns it. `checkpoint` is the name of the only
classifier that the line explains.
"""

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from attention_probing.corpora.records import numbered_objects
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.results import Floats
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError, misfit, near, pluralize
from attention_probing.results.files import check_regular, write_atomically

FILE = "file:"
"""Beginning of a ranking that is read from a file."""

_LINE: Mapping[str, Any] = {
    "id": str | int, "words": list[str], "scores": list[float], "word_ids": list[int | None] | None,
    "checkpoint": str | None,
}  # fmt: skip
"""Types of the values of a line."""

_LONGEST = 1 << 27  # bytes of a file of inseq
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
_BYTES = dict(zip(map(chr, (*_PRINTABLE, *range(256, 324))), (*_PRINTABLE, *_OTHERS), strict=True))
"""Bytes of the characters in pieces of byte-level tokenizers (GPT-2, Llama 3)."""


@dataclass(frozen=True, eq=False)
class Explanations:
    """Importance of the tokens of texts.

    Attributes:
        path: The file.
        sha256: SHA-256 of the file.
        scores: Importance of the tokens of a text, `[tokens]`, 0 for delimiters. The keys are pairs: name of the
            classifier ("" for all), and index of the text in the split.
    """

    path: Path
    sha256: str
    scores: Mapping[tuple[str, int], Floats]

    def of(self, classified: ClassifiedBatch) -> Tensor:
        """Return the importance of each position, the sum of its tokens, float64 `[batch, positions]`."""
        batch, name = classified.batch, classified.checkpoint.name
        found = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        for row, text in enumerate(batch.index.tolist()):
            own = self.scores[(name, text) if (name, text) in self.scores else ("", text)]
            found[row, : len(own)] = torch.from_numpy(own)
        return classified.to_positions(found.to(batch.tokens.device))


def read_explanations(
    path: Path, data: ClassificationDataModule, checkpoints: Sequence[str], texts: Iterable[int] | None = None
) -> Explanations:
    """Read the importance of words of the texts of the test split.

    The words must be those that the classifier reads (in lower case or not), or its tokens. If pieces have scores
    (`word_ids`), a word has the sum over its pieces. If the classifier reads pieces and words have scores, the score
    of a word is divided evenly among its pieces.

    Args:
        path: The file; see this module.
        data: Datamodule of the texts, set up.
        checkpoints: Names of the classifiers.
        texts: Indices of the texts of test that are read and need scores; None for all.

    Raises:
        UserError: There is no such file; a line is no such JSON object, belongs to no text or classifier, has other
            words than its text, or has a score that is not a finite number (path and line are named); or a text of
            two words or more has no scores.
    """
    split, found = data.splits["test"], dict[tuple[str, int], Floats]()
    places = {str(name): place for place, name in enumerate(split.ids)}
    for number, read in numbered_objects(path):
        where = f"{path}:{number}"
        _check_line(read, where)
        name, checkpoint = str(read["id"]), read.get("checkpoint") or ""
        if name not in places:
            raise UserError(f"{where}: the test split has no text {name!r}{near(name, places)}.")
        if checkpoint and checkpoint not in checkpoints:
            raise UserError(
                f"{where}: there is no checkpoint {checkpoint!r}{near(checkpoint, checkpoints)}; there are "
                f"{', '.join(map(repr, checkpoints))}."
            )
        key = checkpoint, places[name]
        if key in found:
            raise UserError(f"{where}: text {name!r} has scores in an earlier line too. Keep one of them.")
        found[key] = _by_token(read, data, places[name], f"{where}: text {name!r}")
    missing = [
        f"{split.ids[text]!r} under {checkpoint}"
        for checkpoint, text in product(checkpoints, range(len(split)) if texts is None else texts)
        if split.word_counts[text] > 1 and not {(checkpoint, text), ("", text)}.intersection(found)
    ]
    if missing:
        raise UserError(
            f"{path} has no scores of {pluralize(len(missing), 'text')}, the first of them {missing[0]}. Add them, or "
            f"remove the ranking {FILE}{path}."
        )
    return Explanations(path, file_digest(path), found)


def write_explanations(path: Path | str, texts: Iterable[Mapping[str, Any]]) -> None:
    """Write the importance of words to a file that the ranking `file:PATH` reads.

    Args:
        path: The file; an existing one is replaced.
        texts: For each text a mapping with the keys `id`, `words` and `scores`, and optionally `word_ids` and
            `checkpoint`; see the docstring of this module. `scores` may be a list, an array or a tensor.

    Raises:
        UserError: A score is not a finite number; nothing is written.
    """
    lines = []
    for number, text in enumerate(texts, 1):
        given = text["scores"]
        scores = given.detach().double().cpu().numpy() if isinstance(given, Tensor) else np.array(given, np.float64)
        if not np.isfinite(scores).all():
            raise UserError(f"Text {number} ({text['id']}) has a score that is not a finite number.")
        plain = {**text, "id": str(text["id"]), "words": list(map(str, text["words"])), "scores": scores.tolist()}
        if (owners := text.get("word_ids")) is not None:
            plain["word_ids"] = [None if owner is None else int(owner) for owner in owners]
        lines.append(json.dumps(plain, ensure_ascii=False) + "\n")
    write_atomically(Path(path), *lines)


def from_inseq(path: Path | str, texts: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return the texts of a file of inseq (`FeatureAttributionOutput.save`) for `write_explanations`.

    The score of a piece is the sum over all generated tokens that were attributed, and over the dimensions, layers and
    heads that inseq has kept. Pieces of a prompt around the text, and special tokens, are dropped. If the
    text occurs several times in a prompt, the last occurrence counts. A piece belongs to the word that
    contains its first letter.

    Args:
        path: The file, not compressed.
        texts: Words of each text by its id, in the order of the file, spelled as inseq read them.

    Raises:
        UserError: The file is not inseq's, has another number of texts, or a prompt does not contain its text.
    """
    try:
        found = json.loads(check_regular(Path(path), _LONGEST).read_bytes())["attributes"]["sequence_attributions"]
        read = [_of_sequence(one["attributes"]) for one in found]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise UserError(
            f"{path} is not a file that inseq wrote ({type(error).__name__}: {error}). Write it by `save(path)` of "
            "inseq's output, without compress."
        ) from None
    if len(read) != len(texts):
        raise UserError(
            f"{path} has {pluralize(len(read), 'text')}, but `texts` has {len(texts)}. Give the words of each of them."
        )
    lines: list[dict[str, Any]] = []
    for (name, words), (pieces, scores) in zip(texts.items(), read, strict=True):
        owners = _owners(pieces, words)
        if owners is None:
            raise UserError(f"{path}: text {name!r}: the pieces {' '.join(pieces)!r} do not spell {' '.join(words)!r}.")
        inside = [place for place, owner in enumerate(owners) if owner is not None]
        kept = {"scores": scores[inside], "word_ids": [owners[place] for place in inside]}
        lines.append({"id": name, "words": list(words), **kept})
    return lines


def _of_sequence(sequence: Mapping[str, Any]) -> tuple[list[str], Tensor]:
    """Return the pieces of the input and their scores, float64 `[pieces]`."""
    is_encoder = sequence["source_attributions"] is not None
    tokens = sequence["source"] if is_encoder else sequence["target"][: sequence["attr_pos_start"]]
    stored = load(base64.b64decode(sequence["source_attributions" if is_encoder else "target_attributions"]))
    # The rest are generated tokens, of which later steps are nan.
    values = stored["attribution"].double()[: len(tokens)]
    if len(values) != len(tokens):
        raise ValueError(f"it has scores of {len(values)} of {len(tokens)} tokens")
    return [str(token["attributes"]["token"]) for token in tokens], values.flatten(1).sum(1)


def _owners(pieces: Sequence[str], words: Sequence[str]) -> list[int | None] | None:
    """Return the word index of each piece (None outside the text), or None if the pieces do not spell the text."""
    text = "".join(words).encode()
    spelled = [piece.replace("▁", "").encode() for piece in pieces]
    if text not in b"".join(spelled):  # pieces of bytes, each written as a character
        spelled = [
            bytes(_BYTES[one] for one in piece).strip() if _BYTES.keys() >= {*piece} else own
            for piece, own in zip(pieces, spelled, strict=True)
        ]
    letters = [word for word, form in enumerate(words) for _ in form.encode()]
    place = -b"".join(spelled).rfind(text) or 0
    if place > 0:
        return None
    owners: list[int | None] = []
    for form, piece in zip(pieces, spelled, strict=True):
        # A blank alone belongs to the word behind it; before the text, "Ġ" is the prompt's.
        is_blank = "▁" in form or ("Ġ" in form and place > 0)
        inside = -len(piece) < place < len(letters) if piece else is_blank and 0 <= place < len(letters)
        owners.append(letters[max(place, 0)] if inside else None)
        place += len(piece)
    return owners


def _check_line(read: Mapping[str, Any], where: str) -> None:
    """Raise a UserError if the values of a line have wrong types or lengths."""
    if not {"id", "words", "scores"} <= read.keys() <= _LINE.keys():
        raise UserError(f"{where}: a line must have the keys id, words and scores; word_ids and checkpoint may follow.")
    for key, value in read.items():
        if wanted := misfit(value, _LINE[key]):
            raise UserError(f"{where}: {key} must be {wanted}.")
    name, words, scores, owners = read["id"], read["words"], read["scores"], read.get("word_ids")
    if len(scores) != len(words if owners is None else owners):
        what = pluralize(len(words), "word") if owners is None else pluralize(len(owners), "piece")
        raise UserError(f"{where}: text '{name}' has {pluralize(len(scores), 'score')}, but {what}.")
    for place, score in enumerate(scores, 1):
        if not abs(score) <= sys.float_info.max:  # nan too
            raise UserError(f"{where}: score {place} of text '{name}' is {score}, not a finite number.")


def _by_token(read: Mapping[str, Any], data: ClassificationDataModule, text: int, where: str) -> Floats:
    """Return the score of each token of a text."""
    split = data.splits["test"]
    owner, forms, tokens = map(np.array, (split.places(text), split.forms(text), data.text("test", text)[1]))
    inside = owner >= 0
    _, first, number, pieces = np.unique(owner[inside], return_index=True, return_inverse=True, return_counts=True)
    expected, of_tokens = forms[inside][first].tolist(), tokens[inside].tolist()
    as_read = [word for word, is_inside in zip(split.readable(text), inside, strict=True) if is_inside]
    words, given, scores = read["words"], np.array(read["scores"], np.float64), np.zeros(len(owner))
    if (owners := read.get("word_ids")) is not None:
        if wrong := [one for one in owners if one is not None and not 0 <= one < len(words)]:
            raise UserError(f"{where} has the word id {wrong[0]}, but word ids go from 0 to {len(words) - 1}.")
        of_words = np.array([owner is not None for owner in owners], np.bool_)
        sums = np.bincount(np.array(owners)[of_words].astype(np.int64), given[of_words], len(words))
        given = sums.astype(np.float64)
    if words in (of_tokens, as_read) and words != expected:
        scores[inside] = given
    else:
        _check_words(words, expected, where)
        scores[inside] = (given / pieces)[number]
    return scores


def _check_words(given: Sequence[str], expected: Sequence[str], where: str) -> None:
    remedy = "Give the words that `probing predict` writes for the text, in the column `words`."
    for place, (one, other) in enumerate(zip(given, expected, strict=False), 1):
        if other not in (one, one.lower()):
            raise UserError(f"{where}: word {place} is {one!r}, but the classifier reads {other!r}. {remedy}")
    if len(given) != len(expected):
        raise UserError(
            f"{where} has {pluralize(len(given), 'word')} in the file, but the classifier reads "
            f"{pluralize(len(expected), 'word')} (see `punctuation` and `max_length` of the data). {remedy}"
        )
