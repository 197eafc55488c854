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

from attention_probing.corpora.records import read_objects
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity.classified import ClassifiedBatch
from attention_probing.fidelity.saliency import FILE, Explainer, name_of
from attention_probing.results import Floats
from attention_probing.results.digests import file_digest
from attention_probing.results.errors import UserError, near, pluralize
from attention_probing.results.files import check_regular, write_atomically
from attention_probing.results.options import misfit

_LINE: Mapping[str, Any] = {
    "id": str | int, "words": list[str], "scores": list[float], "word_ids": list[int | None] | None,
    "checkpoint": str | None,
}  # fmt: skip
"""Types of the values of a line."""

_LONGEST = 1 << 27  # bytes of a file of inseq
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_OTHERS = sorted({*range(256)} - {*_PRINTABLE})
_BYTES = {
    **{chr(byte): byte for byte in _PRINTABLE},
    **{chr(256 + place): byte for place, byte in enumerate(_OTHERS)},
}
"""Bytes of the characters in pieces of byte-level tokenizers (GPT-2, Llama 3)."""


@dataclass(frozen=True, eq=False)
class FileExplainer(Explainer):
    """Ranking of words by scores that were read from a file.

    Attributes:
        name: Name in columns, scores and tables.
        path: The file.
        sha256: SHA-256 of the file.
        of_tokens: Importance of the tokens of a text, `[tokens]`, 0 for delimiters. The keys are pairs: name of the
            classifier ("" for all), and index of the text in the split.
    """

    name: str
    path: Path
    sha256: str
    of_tokens: Mapping[tuple[str, int], Floats]

    def scores(self, classified: ClassifiedBatch) -> Tensor:
        """Return the importance of each position, the sum of its tokens, float64 `[batch, positions]`."""
        batch = classified.batch
        scores = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        for row, text in enumerate(batch.index.tolist()):
            of_text = self.of_tokens.get((classified.checkpoint.name, text))
            if of_text is None:
                of_text = self.of_tokens["", text]
            scores[row, : len(of_text)] = torch.from_numpy(of_text)
        return classified.to_positions(scores.to(batch.tokens.device))


def read_explanations(
    path: Path, data: ClassificationDataModule, checkpoints: Sequence[str], texts: Iterable[int] | None = None
) -> FileExplainer:
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
    split = data.splits["test"]
    places = {str(name): place for place, name in enumerate(split.ids)}
    scores: dict[tuple[str, int], Floats] = {}
    for number, line in read_objects(path):
        where = f"{path}:{number}"
        _check_line(line, where)
        name = str(line["id"])
        checkpoint = line.get("checkpoint") or ""
        if name not in places:
            raise UserError(f"{where}: the test split has no text {name!r}{near(name, places)}.")
        if checkpoint and checkpoint not in checkpoints:
            raise UserError(
                f"{where}: there is no checkpoint {checkpoint!r}{near(checkpoint, checkpoints)}; there are "
                f"{', '.join(map(repr, checkpoints))}."
            )
        key = (checkpoint, places[name])
        if key in scores:
            raise UserError(f"{where}: text {name!r} has scores in an earlier line too. Keep one of them.")
        scores[key] = _by_token(line, data, places[name], f"{where}: text {name!r}")
    missing = []
    for checkpoint, text in product(checkpoints, range(len(split)) if texts is None else texts):
        has_scores = (checkpoint, text) in scores or ("", text) in scores
        if split.word_counts[text] > 1 and not has_scores:
            missing.append(f"{split.ids[text]!r} under {checkpoint}")
    if missing:
        raise UserError(
            f"{path} has no scores of {pluralize(len(missing), 'text')}, the first of them {missing[0]}. Add them, or "
            f"remove the ranking {FILE}{path}."
        )
    return FileExplainer(name_of(f"{FILE}{path}"), path, file_digest(path), scores)


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
        values = text["scores"]
        if isinstance(values, Tensor):
            values = values.detach().double().cpu().numpy()
        scores = np.array(values, np.float64)
        if not np.isfinite(scores).all():
            raise UserError(f"Text {number} ({text['id']}) has a score that is not a finite number.")
        line = dict(text)
        line["id"] = str(text["id"])
        line["words"] = [str(word) for word in text["words"]]
        line["scores"] = scores.tolist()
        if text.get("word_ids") is not None:
            line["word_ids"] = [None if owner is None else int(owner) for owner in text["word_ids"]]
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
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
        content = json.loads(check_regular(Path(path), _LONGEST).read_bytes())
        sequences = content["attributes"]["sequence_attributions"]
        explained = [_of_sequence(sequence["attributes"]) for sequence in sequences]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise UserError(
            f"{path} is not a file that inseq wrote ({type(error).__name__}: {error}). Write it by `save(path)` of "
            "inseq's output, without compress."
        ) from None
    if len(explained) != len(texts):
        count = pluralize(len(explained), "text")
        raise UserError(f"{path} has {count}, but `texts` has {len(texts)}. Give the words of each of them.")
    lines: list[dict[str, Any]] = []
    for (name, words), (pieces, scores) in zip(texts.items(), explained, strict=True):
        owners = _owners(pieces, words)
        if owners is None:
            raise UserError(f"{path}: text {name!r}: the pieces {' '.join(pieces)!r} do not spell {' '.join(words)!r}.")
        inside = [place for place, owner in enumerate(owners) if owner is not None]
        word_ids = [owners[place] for place in inside]
        lines.append({"id": name, "words": list(words), "scores": scores[inside], "word_ids": word_ids})
    return lines


def _of_sequence(sequence: Mapping[str, Any]) -> tuple[list[str], Tensor]:
    """Return the pieces of the input and their scores, float64 `[pieces]`."""
    if sequence["source_attributions"] is not None:  # of an encoder–decoder
        tokens = sequence["source"]
        encoded = sequence["source_attributions"]
    else:
        tokens = sequence["target"][: sequence["attr_pos_start"]]
        encoded = sequence["target_attributions"]
    tensors = load(base64.b64decode(encoded))
    # The rest are generated tokens, of which later steps are nan.
    values = tensors["attribution"].double()[: len(tokens)]
    if len(values) != len(tokens):
        raise ValueError(f"it has scores of {len(values)} of {len(tokens)} tokens")
    return [str(token["attributes"]["token"]) for token in tokens], values.flatten(1).sum(1)


def _owners(pieces: Sequence[str], words: Sequence[str]) -> list[int | None] | None:
    """Return the word index of each piece (None outside the text), or None if the pieces do not spell the text."""
    text = "".join(words).encode()
    spelled = [piece.replace("▁", "").encode() for piece in pieces]
    if text not in b"".join(spelled):  # pieces of bytes, each written as a character
        for number, piece in enumerate(pieces):
            if _BYTES.keys() >= set(piece):
                spelled[number] = bytes(_BYTES[character] for character in piece).strip()
    start = b"".join(spelled).rfind(text)
    if start < 0:
        return None
    letters: list[int] = []  # the word of each byte of the text
    for word, form in enumerate(words):
        letters += [word] * len(form.encode())
    owners: list[int | None] = []
    place = -start  # of the piece in the text
    for piece, spelling in zip(pieces, spelled, strict=True):
        if spelling:
            is_inside = -len(spelling) < place < len(letters)
        else:
            # A blank alone belongs to the word behind it; before the text, "Ġ" is the prompt's.
            is_blank = "▁" in piece or ("Ġ" in piece and place > 0)
            is_inside = is_blank and 0 <= place < len(letters)
        owners.append(letters[max(place, 0)] if is_inside else None)
        place += len(spelling)
    return owners


def _check_line(read: Mapping[str, Any], where: str) -> None:
    """Raise a UserError if the values of a line have wrong types or lengths."""
    if not {"id", "words", "scores"} <= read.keys() <= _LINE.keys():
        raise UserError(f"{where}: a line must have the keys id, words and scores; word_ids and checkpoint may follow.")
    for key, value in read.items():
        wanted = misfit(value, _LINE[key])
        if wanted:
            raise UserError(f"{where}: {key} must be {wanted}.")
    name = read["id"]
    scores = read["scores"]
    scored = read["words"]
    noun = "word"
    if read.get("word_ids") is not None:
        scored = read["word_ids"]
        noun = "piece"
    if len(scores) != len(scored):
        raise UserError(
            f"{where}: text '{name}' has {pluralize(len(scores), 'score')}, but {pluralize(len(scored), noun)}."
        )
    for place, score in enumerate(scores, 1):
        if not abs(score) <= sys.float_info.max:  # nan too
            raise UserError(f"{where}: score {place} of text '{name}' is {score}, not a finite number.")


def _by_token(read: Mapping[str, Any], data: ClassificationDataModule, text: int, where: str) -> Floats:
    """Return the score of each token of a text."""
    split = data.splits["test"]
    word_of_token = np.array(split.places(text))
    is_word = word_of_token >= 0
    _, first, number, pieces = np.unique(
        word_of_token[is_word], return_index=True, return_inverse=True, return_counts=True
    )
    forms = np.array(split.forms(text))[is_word]
    expected = forms[first].tolist()
    tokens = np.array(data.text("test", text)[1])[is_word].tolist()
    as_read = np.array(split.readable(text), dtype=object)[is_word].tolist()
    words = read["words"]
    values = np.array(read["scores"], np.float64)
    if read.get("word_ids") is not None:
        values = _sum_pieces(values, read["word_ids"], len(words), where)
    scores = np.zeros(len(word_of_token))
    if words in (tokens, as_read) and words != expected:
        scores[is_word] = values
    else:
        _check_words(words, expected, where)
        scores[is_word] = (values / pieces)[number]
    return scores


def _sum_pieces(scores: Floats, word_ids: Sequence[int | None], words: int, where: str) -> Floats:
    """Return the sum of the scores of the pieces of each word, `[words]`.

    Raises:
        UserError: A word id is none of a word.
    """
    sums = np.zeros(words)
    for score, word in zip(scores, word_ids, strict=True):
        if word is None:
            continue
        if not 0 <= word < words:
            raise UserError(f"{where} has the word id {word}, but word ids go from 0 to {words - 1}.")
        sums[word] += score
    return sums


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
