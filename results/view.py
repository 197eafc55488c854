"""HTML page to look at attention between words: all heads small, one head large, several heads over each other.

The page has the values in 8 bits, each head compressed by itself and decoded when it is shown: code q of a head whose
largest value is m stands for m·(q/255)². An error is then at most m/255, and small values are more precise than with
linear codes. The page states the largest error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_probing.results.document import Packed, document, embed_page, render, resource
from attention_probing.results.errors import UserError
from attention_probing.results.files import write_atomically

if TYPE_CHECKING:
    import xarray as xr

BUDGET = 40_000_000
"""Default of the largest size of a page, in bytes."""
NOTEBOOK = 8_000_000
"""Largest size of a view in a notebook, in bytes; the notebook stores a copy each time it is shown."""
THUMBNAIL = 32
"""Largest number of rows and columns of a thumbnail; for longer texts a pixel is the greatest value of a block."""
THRESHOLDS = (0.0, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3)
"""Thresholds of pages, as shares of the greatest value."""

AnyFloats: TypeAlias = NDArray[np.floating[Any]]
Arc: TypeAlias = tuple[int, int, str]
Span: TypeAlias = tuple[int, int]


class WordArrays(Protocol):
    """Attention of several sentences, such as `attention.WordAttention`."""

    sentences: tuple[tuple[str, ...], ...]
    encoder: Mapping[str, object]

    def place(self, sentence: int | str | Sequence[str]) -> int:
        """Return the 0-based index of a sentence."""

    def __getitem__(self, sentence: int) -> "xr.DataArray": ...


@dataclass(frozen=True, eq=False)
class PieceValues:
    """Values between the subword pieces of a text, for instance attention.

    Attributes:
        names: The pieces, delimiters included.
        of: Position of the word that each piece belongs to.
        values: The values, `[layers, heads, from, to]`.
    """

    names: Sequence[str]
    of: Sequence[int]
    values: AnyFloats


@dataclass(frozen=True, eq=False)
class View:
    """Page that shows values between the words of a text, such as attention, with annotations.

    Positions count from 0, delimiters included.

    Attributes:
        title: Title of the text.
        words: The word at each position, delimiters included.
        values: The values, `[layers, heads, from, to]`, not negative. They are not copied.
        layers: 1-based number of each layer.
        heads: 1-based number of each head of a layer.
        quantity: Name of the values.
        unit: Unit of the values, `fraction` if a row sums to at most one.
        delimiters: Positions of delimiters.
        sink: True if the first position takes the weight that heads have no use for, as in decoders. It counts as a
            delimiter, and the page begins with delimiters hidden and rows that sum to one without them.
        steps: Position of the first generated token, from which a slider goes through the steps of generation; 0 for a
            text that was not generated.
        arcs: Arcs as (from, to, label) with positions; gold dependencies go from the dependent to its
            syntactic head.
        clusters: Mentions of each coreference cluster as (first position, position after the last).
        saliency: Value of each position, by measure; negative values speak against the decision of the
            classifier.
        pieces: The same quantity between pieces, which the page shows on demand.
        notes: Sentences to show under the figure.

    Raises:
        UserError: A shape does not fit the layers, heads and words; a position is outside the text; a
            number is not finite; or one of `values` is negative.
    """

    title: str
    words: Sequence[str]
    values: AnyFloats
    layers: Sequence[int]
    heads: Sequence[int]
    quantity: str = "attention"
    unit: str = "fraction"
    delimiters: Sequence[int] = ()
    sink: bool = False
    steps: int = 0
    arcs: Sequence[Arc] = ()
    clusters: Sequence[Sequence[Span]] = ()
    saliency: Mapping[str, Sequence[float]] = field(default_factory=dict)
    pieces: PieceValues | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        n = len(self.words)
        _check_values("values", self.values, len(self.layers), len(self.heads), n)
        _check_positions("delimiters", self.delimiters, n)
        for start, end, _ in self.arcs:
            _check_positions("arcs", (start, end), n)
        for cluster in self.clusters:
            for first, last in cluster:
                _check_positions("clusters", (first, last - 1), n)
        for name, numbers in self.saliency.items():
            if len(numbers) != n or not all(map(isfinite, numbers)):
                raise UserError(f"saliency {name!r} must have {n} finite numbers, one per position (0 for delimiters).")
        if self.pieces is not None:
            _check_values("pieces", self.pieces.values, len(self.layers), len(self.heads), len(self.pieces.of))
            _check_positions("pieces", self.pieces.of, n)

    @classmethod
    def from_attention(
        cls,
        attention: WordArrays,
        sentence: int | str | Sequence[str] = 0,
        *,
        title: str | None = None,
        arcs: Sequence[Arc] = (),
        clusters: Sequence[Sequence[Span]] = (),
        saliency: Mapping[str, Sequence[float]] | None = None,
        pieces: WordArrays | None = None,
        notes: Sequence[str] = (),
    ) -> Self:
        """Create the view of one sentence; words are numbered from 1, as in a treebank.

        Args:
            attention: Attention between words or between pieces, from `attention.Encoder.attention`.
            sentence: 0-based index, text or words of the sentence.
            title: Title of the page; by default the sentence.
            arcs: Labelled arcs (from, to, label) over the words; gold dependencies go from the dependent to its head.
            clusters: Mentions of each cluster as (first word, last word + 1).
            saliency: Saliency of each word, by name of the saliency measure.
            pieces: Attention of the same sentences over pieces, which the page shows on demand.
            notes: Sentences below the figure.

        Raises:
            UserError: The attention goes to another text, or arcs, clusters or saliency name a word that is not there,
                or are given for attention over pieces.
        """
        place = attention.place(sentence)
        array = attention[place]
        words = attention.sentences[place]
        names = _names(array, "from")
        numbers = array["from_word"].to_numpy()
        if names != _names(array, "to"):
            raise UserError("This attention goes from one text to another, which views do not show.")
        if len(set(numbers.tolist())) < len(numbers) and (arcs or clusters or saliency):
            raise UserError(
                "The attention of this sentence is over pieces, but arcs, clusters and saliency refer to words. "
                "Give attention over words, and the attention over pieces as `pieces`."
            )
        values, note = non_negative(array.to_numpy())
        first = int(numbers[0])  # 0 where there is a start delimiter
        before = [0.0] * (1 - first)
        behind = [0.0] * (len(numbers) - len(before) - len(words))
        saliency_of_positions = {}
        for name, saliency_of_words in (saliency or {}).items():
            saliency_of_positions[name] = [*before, *saliency_of_words, *behind]
        piece_values = None
        if pieces is not None:
            piece_values = _between_pieces(pieces[place], first)
        return cls(
            title or " ".join(words),
            names,
            values,
            array["layer"].to_numpy().tolist(),
            array["head"].to_numpy().tolist(),
            quantity=str(array.name).replace("_", " "),
            unit=array.attrs.get("unit", "fraction"),
            delimiters=np.flatnonzero((numbers == 0) | (numbers == len(words) + 1)).tolist(),
            sink="causal" in attention.encoder and array.name == "attention",
            arcs=[(start - first, end - first, label) for start, end, label in arcs],
            clusters=[_move_spans(spans, first) for spans in clusters],
            saliency=saliency_of_positions,
            pieces=piece_values,
            notes=[*notes, *note],
        )

    @classmethod
    def from_generated(cls, attention: "xr.DataArray", title: str | None = None) -> Self:
        """Create the view of the steps of generation; a slider goes through the generated tokens.

        Args:
            attention: Attention of generated tokens, from `attention.Encoder.generated`. The row of a token is the
                attention with which it was generated; the prompt has none.
            title: Title of the page; by default the generated text.
        """
        prompt = int((~attention["generated"]).sum())
        written = _names(attention, "from")
        tokens = [*_names(attention, "to")[:prompt], *written]
        values = np.zeros((*attention.shape[:2], len(tokens), len(tokens)), np.float32)
        values[:, :, prompt:, :-1] = attention.to_numpy()
        layers = attention["layer"].to_numpy().tolist()
        heads = attention["head"].to_numpy().tolist()
        return cls(title or " ".join(written), tokens, values, layers, heads, sink=True, steps=prompt)

    def save(self, path: Path | str) -> Path:
        """Write this view as an HTML page to `path`, atomically; return the path."""
        return write_atomically(Path(path), view_page(self))

    def __repr__(self) -> str:
        heads = f"{len(self.layers)} × {len(self.heads)} heads"
        return f"<View of {self.title!r}: {self.quantity}, {heads}; .save('view.html') writes the page>"

    def _repr_html_(self) -> str:
        return embed_page(self.title, view_page(self, budget=NOTEBOOK), "46rem")


def non_negative(values: AnyFloats) -> tuple[AnyFloats, list[str]]:
    """Return values for a `View`, negative ones as 0, and a note that says how many these are."""
    notes = []
    below = int((values < 0).sum())
    if below:
        notes.append(f"{below} of {values.size} values are negative, and shown as 0.")
    return values.clip(min=0), notes


def _move_spans(spans: Sequence[Span], first: int) -> list[Span]:
    """Return spans of words as positions, from the number of the first word of a view."""
    return [(start - first, end - first) for start, end in spans]


def _names(array: "xr.DataArray", axis: str) -> list[str]:
    return [str(name) for name in array[axis].to_numpy()]


def _between_pieces(array: "xr.DataArray", first: int) -> PieceValues:
    """Return the values between pieces; `first` is the number of the first word of the view, 0 for a delimiter."""
    of = (array["from_word"].to_numpy() - first).tolist()
    values, _ = non_negative(array.to_numpy())
    return PieceValues(_names(array, "from"), of, values)


def _check_values(name: str, values: AnyFloats, layers: int, heads: int, n: int) -> None:
    shape = (layers, heads, n, n)
    if values.shape != shape or not all(shape):
        raise UserError(
            f"{name} has shape {list(values.shape)}, but must have {list(shape)}: [layers, heads, from, to], at least "
            "one of each."
        )
    for layer in values:  # one layer at a time: the values may be mapped from a file that memory cannot hold
        low = float(layer.min())
        high = float(layer.max())
        if not (low >= 0 and isfinite(high)):  # False for nan as well
            value = low if isfinite(high) else high
            raise UserError(f"{name} contains {value:g}; all values must be finite and ≥ 0.")


def _check_positions(name: str, positions: Sequence[int], n: int) -> None:
    for position in positions:
        if not 0 <= position < n:
            raise UserError(f"{name}: position {position} is not among 0 to {n - 1}, delimiters included.")


def view_page(*views: View, budget: int = BUDGET) -> str:
    """Return an HTML page of one view, or of several to choose from.

    Args:
        *views: The views, each of one text.
        budget: Largest size of the page in bytes. If the page would be larger, values below a threshold, a share of
            the greatest value (`THRESHOLDS`), are left out. The page states the threshold, and the share of the sum of
            all values that is left out.

    Raises:
        UserError: There is no view, or the budget is too small even for the largest threshold.
    """
    if not views:
        raise UserError("`views` is empty: give at least one.")
    greatest = max(float(view.values.max()) for view in views)
    for share in THRESHOLDS:
        page = _page(views, float(f"{share * greatest:.2g}"))
        size = len(page.encode())
        if size <= budget:
            return page
    raise UserError(
        f"The page has {size:,} bytes even with only the greatest values, but at most {budget:,} are allowed. Show "
        "fewer texts at once, or allow more with `budget`."
    )


def _encode(values: AnyFloats, top: float) -> NDArray[np.uint8]:
    """Return the codes of values, uint8 of the same shape; `top` is the greatest value."""
    scale = np.float32(1 / top if top else 0)
    scaled = np.sqrt(values.astype(np.float32) * scale)
    codes: NDArray[np.uint8] = np.rint(255 * scaled).astype(np.uint8)
    return codes


def _thumbnail(head: AnyFloats, sink: bool) -> bytes:
    """Return the codes of a small picture of a head `[from, to]`, without its sink."""
    values = head.copy()
    if sink:
        values[0] = 0
        values[:, 0] = 0
    codes = _encode(values, float(values.max()))
    if len(head) > THUMBNAIL:
        starts = np.arange(THUMBNAIL) * len(head) // THUMBNAIL
        rows = np.maximum.reduceat(codes, starts, axis=0)
        codes = np.maximum.reduceat(rows, starts, axis=1)
    return codes.tobytes()


def _packed(values: AnyFloats, sink: bool, threshold: float) -> tuple[dict[str, object], list[Packed]]:
    """Pack the heads of a grid.

    Returns:
        Two values: the fields of the page, and packed bytes.

        - The fields are, for each head, its greatest value (`tops`) and the share of its sum that is left out
          (`dropped`); the share that is left out of all heads together (`droppedOfAll`); and the largest `error`.
        - The bytes are the thumbnails of all heads, and then the codes of each head, 0 below the threshold.
    """
    tops: list[float] = []
    dropped: list[float] = []
    packed: list[Packed] = []
    thumbnails: list[bytes] = []
    error = 0.0
    left_out = 0.0
    total = 0.0
    for layer, head in np.ndindex(values.shape[:2]):
        weights = values[layer, head]
        below = weights < threshold
        top = float(f"{weights.max():.6g}")  # with as many digits as the page has
        codes = _encode(weights, top)
        codes[below] = 0
        decoded = np.float32(top) * (np.arange(256, dtype=np.float32) / 255) ** 2
        errors = np.abs(decoded[codes] - weights)
        error = max(error, float(errors.max(where=~below, initial=0)))
        lost = float(weights.sum(where=below, dtype=np.float64))
        whole = float(weights.sum(dtype=np.float64))
        left_out += lost
        total += whole
        tops.append(top)
        dropped.append(round(lost / whole, 5) if whole else 0.0)
        packed.append(Packed(codes.tobytes(), noisy=True))
        thumbnails.append(_thumbnail(weights, sink))
    share = left_out / total if total else 0.0
    fields = {"tops": tops, "dropped": dropped, "droppedOfAll": share, "error": error}
    return fields, [Packed(b"".join(thumbnails), noisy=True), *packed]


def _page(views: Sequence[View], threshold: float) -> str:
    texts = []
    packed: dict[str, Packed] = {}
    for number, view in enumerate(views):
        grids = {}
        for kind, grid in _grids(view).items():
            name = f"{kind}-{number}"
            fields, (thumbnails, *heads) = _packed(grid.values, view.sink, threshold)
            grids[kind] = {"names": grid.names, "of": grid.of, "id": name, **fields}
            packed[name] = thumbnails
            for place, codes in enumerate(heads):
                packed[f"{name}-{place}"] = codes
        texts.append({**_text(view), "grids": grids})
    title = f"{views[0].quantity.capitalize()} in {len(views)} texts"
    if len(views) == 1:
        title = views[0].title
    described = {"texts": texts, "threshold": threshold, "thumbnail": THUMBNAIL}
    return document(
        title,
        render("view.html", title=title),
        styles=[resource("view.css")],
        scripts=[resource("view.js")],
        data={"view": described, **packed},
    )


def _grids(view: View) -> dict[str, PieceValues]:
    """Return the values of a view between words, and between pieces if it has these."""
    grids = {"words": PieceValues(view.words, range(len(view.words)), view.values)}
    if view.pieces is not None:
        grids["pieces"] = view.pieces
    return grids


def _text(view: View) -> dict[str, object]:
    """Return the fields of a view that the scripts of the page read."""
    delimiters = set(view.delimiters)
    if view.sink:
        delimiters.add(0)
    plain = ("title", "quantity", "unit", "layers", "heads", "sink", "steps", "arcs", "clusters", "saliency", "notes")
    fields: dict[str, object] = {name: getattr(view, name) for name in plain}
    fields["delimiters"] = sorted(delimiters)
    return fields
