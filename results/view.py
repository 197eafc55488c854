"""HTML page to look at attention between words: all heads small, one head large, several heads over each other.

The page has the values in 8 bits, each head compressed by itself and decoded when it is shown: code q of a head whose
largest value is m stands for m·(q/255)². An error is then at most m/255, and small values are more precise than with
linear codes. The page states the largest error.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from results.document import Packed, document, render, resource
from results.errors import UserError
from results.files import write_atomically

if TYPE_CHECKING:
    import xarray as xr

BUDGET = 40_000_000
"""Default of the largest size of a page, in bytes."""
NOTEBOOK = 8_000_000
"""Largest size of a view in a notebook, in bytes; the notebook stores a copy each time it is shown."""
THUMBNAIL = 32
"""Largest number of rows and columns of a thumbnail; for longer texts a pixel is the greatest value of a block."""
_THRESHOLDS = [float(f"{digits}e{power}") for power in range(-9, 0) for digits in range(10, 100, 5)]
_SAMPLE = 64  # number of heads whose compression is measured to estimate that of all
_MARGIN = 0.98

Floats: TypeAlias = NDArray[np.floating[Any]]
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
    values: Floats


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
    values: Floats
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
        _check_positions("arcs", [end for start, to, _ in self.arcs for end in (start, to)], n)
        spans = [span for cluster in self.clusters for span in cluster]
        if bad := [span for span in spans if not 0 <= span[0] < span[1] <= n]:
            raise UserError(
                f"clusters: {bad[0]} is not a span of the positions 0 to {n - 1}; give (first position, last position "
                "+ 1)."
            )
        for name, numbers in self.saliency.items():
            wrong = [f"number {place} is {one}" for place, one in enumerate(numbers) if not isfinite(one)]
            if len(numbers) != n or wrong:
                raise UserError(
                    f"saliency {name!r} must have {n} finite numbers, one per position (0 for delimiters); "
                    f"{f'it has {len(numbers)}' if len(numbers) != n else wrong[0]}."
                )
        if self.pieces is not None:
            _check_values("pieces", self.pieces.values, len(self.layers), len(self.heads), len(self.pieces.names))
            _check_positions("pieces", self.pieces.of, n)
            if len(self.pieces.of) != len(self.pieces.names):
                raise UserError(
                    f"pieces: `of` has {len(self.pieces.of)} entries for {len(self.pieces.names)} pieces; give one "
                    f"word position per piece."
                )

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
        array, words = attention[place], attention.sentences[place]
        names, numbers = _names(array, "from"), array["from_word"].to_numpy()
        if names != _names(array, "to"):
            raise UserError("This attention goes from one text to another, which views do not show.")
        if len(set(numbers.tolist())) < len(numbers) and (arcs or clusters or saliency):
            raise UserError(
                "The attention of this sentence is over pieces, but arcs, clusters and saliency refer to words. "
                "Give attention over words, and the attention over pieces as `pieces`."
            )
        values, own = non_negative(array.to_numpy())
        first = int(numbers[0])  # 0 where there is a start delimiter
        last = len(numbers) - 1 + first - len(words)  # 1 where there is one at the end
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
            clusters=[[(start - first, end - first) for start, end in spans] for spans in clusters],
            saliency={
                name: [*[0.0] * (1 - first), *values, *[0.0] * last] for name, values in (saliency or {}).items()
            },
            pieces=None if pieces is None else _between_pieces(pieces[place], first),
            notes=[*notes, *own],
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
        layers, heads = (attention[name].to_numpy().tolist() for name in ("layer", "head"))
        return cls(title or " ".join(written), tokens, values, layers, heads, sink=True, steps=prompt)

    def save(self, path: Path | str) -> Path:
        """Write this view as an HTML page to `path`, atomically; return the path."""
        return write_atomically(Path(path), view_page(self))

    def _repr_html_(self) -> str:
        page = escape(view_page(self, budget=NOTEBOOK), quote=True)
        return (
            f'<iframe title="{escape(self.title, quote=True)}" sandbox="allow-scripts allow-downloads" '
            f'style="width: 100%; height: 46rem; border: 0" srcdoc="{page}"></iframe>'
        )


def non_negative(values: Floats) -> tuple[Floats, list[str]]:
    """Return values for a `View`, negative ones as 0, and a note that says how many these are."""
    below = int((values < 0).sum())
    return values.clip(min=0), [f"{below} of {values.size} values are negative, and shown as 0."] if below else []


def _names(array: "xr.DataArray", axis: str) -> list[str]:
    return [str(name) for name in array[axis].to_numpy()]


def _between_pieces(array: "xr.DataArray", first: int) -> PieceValues:
    """Return the values between pieces; `first` is the number of the first word of the view, 0 for a delimiter."""
    of = (array["from_word"].to_numpy() - first).tolist()
    return PieceValues(_names(array, "from"), of, non_negative(array.to_numpy())[0])


def _check_values(name: str, values: Floats, layers: int, heads: int, n: int) -> None:
    wanted = (layers, heads, n, n)
    if values.shape != wanted:
        raise UserError(
            f"{name} has shape {list(values.shape)}, but must have {list(wanted)}: [layers, heads, from, to]."
        )
    if not all(wanted):
        raise UserError(f"{name} has shape {list(values.shape)}; give at least one layer, one head and one position.")
    for layer in values:  # one layer at a time: the values may be mapped from a file that memory cannot hold
        low, high = float(layer.min()), float(layer.max())
        if not (low >= 0 and isfinite(high)):  # False for nan as well
            raise UserError(f"{name} contains {low if isfinite(high) else high:g}; all values must be finite and ≥ 0.")


def _check_positions(name: str, positions: Sequence[int], n: int) -> None:
    if bad := [position for position in positions if not 0 <= position < n]:
        raise UserError(
            f"{name}: position {bad[0]} is not among the {n} positions, which count from 0, delimiters included."
        )


def view_page(*views: View, budget: int = BUDGET) -> str:
    """Return an HTML page of one view, or of several to choose from.

    Args:
        *views: The views, each of one text.
        budget: Largest size of the page in bytes. If the page would be larger, values below a threshold
            are left out. The threshold is a round number, about the lowest with which the page fits. The
            page states the threshold, and the share of the sum of all values that is left out.

    Raises:
        UserError: There is no view, or the budget is too small even without values.
    """
    if not views:
        raise UserError("`views` is empty: give at least one.")
    grids = [_Grid(values, view.sink) for view in views for values in _values(view)]
    fixed = len(_page(views, [grid.without() for grid in grids], 0.0).encode())
    start = _first_threshold(grids, budget - fixed)
    for threshold in [0.0, *_THRESHOLDS][start:]:
        page = _page(views, [grid.packed(threshold) for grid in grids], threshold)
        if len(page.encode()) <= budget:
            return page
    raise UserError(
        f"The page has {fixed:,} bytes without any values, but only {budget:,} are allowed. Show fewer texts at once, "
        "or allow more with `budget`."
    )


def _values(view: View) -> list[Floats]:
    return [view.values, *([view.pieces.values] if view.pieces else [])]


@dataclass(frozen=True)
class _Packed:
    """A grid in the form that a page stores: codes of each head, thumbnails of all heads, and the share left out."""

    codes: Sequence[Packed]
    thumbnails: Packed
    tops: Sequence[float]
    dropped: Sequence[float]
    """Share of the sum of the values that is left out, per head."""
    dropped_of_all: float
    error: float


class _Grid:
    """A quantity of all heads of a text, over its words or over its pieces; thumbnails without a sink."""

    def __init__(self, values: Floats, sink: bool = False) -> None:
        self._values, self._first = values, int(sink)
        self.heads = values.shape[0] * values.shape[1]
        self.size = values.shape[2]
        tops = (head.max() for head in map(self.head, range(self.heads)))
        self.tops = [float(f"{top:.6g}") for top in tops]  # with as many digits as the page has
        self._thumbnails = Packed(b"".join(map(self._thumbnail, range(self.heads))), noisy=True)

    def head(self, place: int) -> Floats:
        """Return `[from, to]` of one of all heads; heads of the first layer come first."""
        found: Floats = self._values[divmod(place, self._values.shape[1])]
        return found

    def codes(self, place: int, threshold: float) -> NDArray[np.uint8]:
        """Return the codes of a head, 0 for values below the threshold."""
        found = self._encode(self.head(place), self.tops[place])
        found[self.head(place) < threshold] = 0
        return found

    @staticmethod
    def _encode(values: Floats, top: float) -> NDArray[np.uint8]:
        scaled = np.sqrt(values.astype(np.float32) * np.float32(1 / top if top else 0))
        codes: NDArray[np.uint8] = np.rint(255 * scaled).astype(np.uint8)
        return codes

    def _thumbnail(self, place: int) -> bytes:
        values = self.head(place).copy()
        values[: self._first] = values[:, : self._first] = 0
        codes = self._encode(values, float(values.max()))
        if self.size > THUMBNAIL:
            starts = np.arange(THUMBNAIL) * self.size // THUMBNAIL
            codes = np.maximum.reduceat(np.maximum.reduceat(codes, starts, axis=0), starts, axis=1)
        return codes.tobytes()

    def without(self) -> _Packed:
        """Pack the thumbnails alone."""
        zeros = [0.0] * self.heads
        return _Packed([Packed(b"")] * self.heads, self._thumbnails, zeros, zeros, 0.0, 0.0)

    def packed(self, threshold: float) -> _Packed:
        """Pack all values from the threshold on."""
        codes, dropped, error = [], [], 0.0
        left_out = total = 0.0
        for place, top in enumerate(self.tops):
            head, found = self.head(place), self.codes(place, threshold)
            codes.append(Packed(found.tobytes(), noisy=True))
            decoded = np.float32(top) * (np.arange(256, dtype=np.float32) / 255) ** 2
            below = head < threshold
            error = max(error, float(np.abs(decoded[found] - head).max(where=~below, initial=0)))
            lost, whole = float(head.sum(where=below, dtype=np.float64)), float(head.sum(dtype=np.float64))
            dropped.append(lost / whole if whole else 0.0)
            left_out, total = left_out + lost, total + whole
        share = left_out / total if total else 0.0
        return _Packed(codes, self._thumbnails, self.tops, dropped, share, error)


def _first_threshold(grids: Sequence[_Grid], room: int) -> int:
    """Estimate from a sample of heads the lowest threshold with which the page fits; return its index."""
    places = [(grid, place) for grid in grids for place in range(grid.heads)]
    if sum(grid.size**2 for grid, _ in places) * 4 / 3 <= room:  # all values fit even without compression
        return 0
    chosen = [places[int(at)] for at in np.linspace(0, len(places) - 1, min(_SAMPLE, len(places)))]
    share: float = sum(grid.size**2 for grid, _ in chosen) / sum(grid.size**2 for grid, _ in places)

    def fits(threshold: float) -> bool:
        size: float = sum(len(Packed(grid.codes(place, threshold).tobytes(), noisy=True)) for grid, place in chosen)
        return size * 4 / 3 / share <= room * _MARGIN

    return bisect_left([0.0, *_THRESHOLDS], True, hi=len(_THRESHOLDS), key=fits)


def _page(views: Sequence[View], packed: Sequence[_Packed], threshold: float) -> str:
    rest = iter(packed)
    data: dict[str, object] = {}
    texts = []
    for number, view in enumerate(views):
        grids = {}
        for name in ["words", "pieces"][: len(_values(view))]:
            found = next(rest)
            grids[name] = _grid(view, name) | {
                "id": f"{name}-{number}",
                "tops": found.tops,
                "dropped": [round(share, 5) for share in found.dropped],
                "droppedOfAll": found.dropped_of_all,
                "error": found.error,
            }
            data[f"{name}-{number}"] = found.thumbnails
            data |= {f"{name}-{number}-{place}": codes for place, codes in enumerate(found.codes)}
        texts.append(_text(view) | {"grids": grids})
    title = views[0].title if len(views) == 1 else f"{views[0].quantity.capitalize()} in {len(views)} texts"
    described: dict[str, object] = {"view": {"texts": texts, "threshold": threshold, "thumbnail": THUMBNAIL}}
    code = {"styles": [resource("view.css")], "scripts": [resource("view.js")]}
    return document(title, render("view.html", title=title), **code, data=described | data)


def _grid(view: View, name: str) -> dict[str, object]:
    if name == "pieces" and view.pieces is not None:
        return {"names": view.pieces.names, "of": view.pieces.of}
    return {"names": view.words, "of": range(len(view.words))}


def _text(view: View) -> dict[str, object]:
    """Return the fields of a view that the scripts of the page read."""
    plain = ("title", "quantity", "unit", "layers", "heads", "sink", "steps", "arcs", "clusters", "saliency", "notes")
    delimiters = sorted({*view.delimiters, *([0] if view.sink else [])})
    return {name: getattr(view, name) for name in plain} | {"delimiters": delimiters}
