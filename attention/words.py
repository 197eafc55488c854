"""`Encoder`: attention of a few sentences in memory as arrays with named axes, for notebooks and scripts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, cast, overload

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from attention_probing.attention.alignment import AlignedPieces, name_positions, readable
from attention_probing.attention.capture import LayerCall
from attention_probing.attention.cross import DecoderAttention, DecoderPart
from attention_probing.attention.encoder import LoadedEncoder
from attention_probing.attention.extraction import extract
from attention_probing.attention.quantities import QUANTITIES, QuantityName
from attention_probing.attention.source import EncoderError
from attention_probing.attention.specification import Extraction, Items, Options, cut_sentences
from attention_probing.attention.store import unpack_weights
from attention_probing.corpora.sentence import Sentence, Treebank
from attention_probing.results import AttentionLines
from attention_probing.results.errors import UserError, new_items, pluralize
from attention_probing.results.options import Positive, checked

DIMS = ("layer", "head", "from", "to")
Over = Literal["words", "pieces"]


class WordAttention(Sequence[xr.DataArray]):
    """Attention of several sentences: a sequence with one array for each sentence, in the given order.

    An array is float32 `[layer, head, from, to]`, with rows that sum to one. Its coordinates are layers
    and heads from 1, and the forms of words or pieces, with the tokenizer's delimiters. The coordinates
    `from_word` and `to_word` give the number of the word at each position, from 1; the pieces of a word
    share its number. The start delimiter has number 0, and the end delimiter n + 1 in a sentence of n
    words.

    Attributes:
        encoder: Description of the encoder: name, architecture, weights, layers, heads.
        audit: Counts of what was found, replaced, cut or left out, by name.
        sentences: Words of each sentence.
    """

    def __init__(
        self,
        arrays: Sequence[xr.DataArray],
        sentences: Sequence[tuple[str, ...]],
        encoder: Mapping[str, object],
        audit: Mapping[str, int],
    ) -> None:
        self._arrays = tuple(arrays)
        self.sentences = tuple(sentences)
        self.encoder = encoder
        self.audit = audit

    def __len__(self) -> int:
        return len(self._arrays)

    @overload
    def __getitem__(self, sentence: int) -> xr.DataArray: ...

    @overload
    def __getitem__(self, sentence: slice) -> "WordAttention": ...

    def __getitem__(self, sentence: int | slice) -> "xr.DataArray | WordAttention":
        if isinstance(sentence, slice):
            return WordAttention(self._arrays[sentence], self.sentences[sentence], self.encoder, self.audit)
        return self._arrays[sentence]

    def __repr__(self) -> str:
        shapes = "; ".join(f"{dict(array.sizes)}" for array in self._arrays[:3])
        if len(self) > 3:
            shapes = f"{shapes}; …"
        return f"<WordAttention of {self.encoder['name']}: {len(self)} sentences, {shapes}>"

    def place(self, sentence: int | str | Sequence[str]) -> int:
        """Return the 0-based index of a sentence, which is given by its index, text or words.

        Raises:
            IndexError: There is no such sentence.
        """
        if isinstance(sentence, int):
            if not -len(self) <= sentence < len(self):
                raise IndexError(f"There is no sentence {sentence}: indices go from 0 to {len(self) - 1}.")
            return sentence % len(self)
        words = _words(sentence)
        if words not in self.sentences:
            raise IndexError(
                f"No sentence has exactly the words {' '.join(words)!r}. Give all words of one of the {len(self)} "
                "sentences, or its index from 0."
            )
        return self.sentences.index(words)

    def lines(
        self, sentence: int | str | Sequence[str], layer: int, head: int, arcs: Iterable[tuple[int, int]] = ()
    ) -> AttentionLines:
        """Return a figure of the attention of one head in one sentence, as lines between its words.

        `draw(attention.lines(0, 3, 9)).savefig("a.pdf")` draws and saves it.

        Args:
            sentence: 0-based index, text or words of the sentence.
            layer: Number of the layer, from 1.
            head: Number of the head in the layer, from 1.
            arcs: Pairs (from, to) of 0-based positions, delimiters included, whose lines are coloured.

        Raises:
            IndexError: There is no such sentence, layer or head.
        """
        array = _of_one_text(self[self.place(sentence)])
        for name, number in (("layer", layer), ("head", head)):
            if number not in array[name]:
                there = ", ".join(map(str, array[name].to_numpy()))
                raise IndexError(f"{name} {number} is missing; available: {there}.")
        array = array.sel(layer=layer, head=head)
        words = tuple(str(word) for word in array["to"].to_numpy())
        name = str(self.encoder["name"]).rpartition("/")[2]
        weights, title = drawable(array.to_numpy(), str(array.name))
        return AttentionLines(f"Head {layer}-{head} of {name}{title}", words, weights, frozenset(arcs))

    def to_bertviz(self, sentence: int | str | Sequence[str] = 0) -> tuple[tuple[Tensor, ...], list[str]]:
        """Return the attention in one sentence as `head_view` and `model_view` of BertViz take it.

        `head_view(*attention.to_bertviz())` shows it. BertViz counts the returned layers and heads from 0.

        Args:
            sentence: 0-based index, text or words of the sentence.

        Returns:
            Attention of each layer, float32 `[1, heads, from, to]`; and the names of the words or pieces, delimiters
            included.

        Raises:
            IndexError: There is no such sentence.
            UserError: The attention goes from one text to another.
        """
        array = _of_one_text(self[self.place(sentence)])
        layers = torch.from_numpy(array.to_numpy().copy())
        tokens = [str(name) for name in array["from"].to_numpy()]
        return layers[:, None].unbind(), tokens


def _of_one_text(array: xr.DataArray) -> xr.DataArray:
    """Return the attention within a text; raise UserError if it goes from one text to another."""
    if array["from"].to_numpy().tolist() != array["to"].to_numpy().tolist():
        raise UserError("This attention goes from one text to another. Plot the array itself, `attention[0]`.")
    return array


def _title_of(quantity: str) -> str:
    """Return the name of a quantity in running text."""
    return quantity.replace("_", " ")


def unit_of_quantity(quantity: str) -> str:
    """Return the unit of a quantity by its name: `fraction` if rows sum to one, else `ratio`."""
    kind = QUANTITIES[cast(QuantityName, quantity)]
    return "fraction" if kind.sums_to_one else "ratio"


def drawable(values: NDArray[np.float32], quantity: str) -> tuple[NDArray[np.float32], str]:
    """Scale the values of one head to 0–1 for `AttentionLines`; return them with a title.

    Values of other quantities than shares are divided by the largest; negative ones are drawn as 0.

    Args:
        values: `[from, to]`.
        quantity: Name of the quantity.
    """
    if quantity == "attention":
        return values, ""
    title = f", {_title_of(quantity)}"
    if unit_of_quantity(quantity) == "fraction":
        return values, title
    largest = max(float(values.max()), float(np.finfo(np.float32).tiny))
    scaled = (values.clip(min=0) / largest).astype(np.float32)
    return scaled, f"{title} relative to the largest"


class Encoder(LoadedEncoder):
    """A loaded encoder that also returns the attention of sentences in memory; constructed like `LoadedEncoder`."""

    @checked
    def attention(
        self,
        sentences: str | Sequence[str | Sequence[str]],
        *,
        options: Options | None = None,
        over: Over = "words",
        quantity: QuantityName | None = None,
        part: Literal["encoder"] | DecoderPart = "encoder",
        targets: Sequence[str | Sequence[str]] | str = (),
    ) -> WordAttention:
        """Return the attention of the encoder to a few sentences, or another quantity, held in memory.

        For a whole corpus use a datamodule.

        Args:
            sentences: Strings, which are split at white space, or sequences of words; or one string.
            options: Layers, heads, precision, and treatment of long sentences and of pieces; by
                default all layers and heads, in single precision.
            over: `words` reduces attention to words (see `attention.alignment`), `pieces` returns it
                unchanged.
            quantity: What is measured between two words, such as `norms`; see `attention.quantities`. It
                overrides that of `options`.
            part: Of an encoder-decoder, `cross` for the attention of the decoder to the sentences while it predicts
                the `targets`, and `decoder` for its attention to the targets; see `attention.cross`. Other options
                but `over: words` are then refused.
            targets: A text for each sentence, for `cross` and `decoder`.

        Returns:
            An `xarray.DataArray` `[layer, head, from, to]` for each sentence, without those that the
            option `too_long: skip` leaves out. For a quantity with one map for each layer, `head` has length 1.

        Raises:
            UserError: There is no sentence, one is empty, a layer or head does not exist, or `over` is
                not allowed.
            AlignmentError: A sentence is too long for the encoder.
        """
        texts = [_words(sentence) for sentence in new_items("sentences", sentences)]
        if part != "encoder":
            if options is not None or quantity is not None or over != "words":
                raise UserError(
                    f"part={part!r} has the attention of all heads over words. Leave out options, quantity, and over."
                )
            words_of_targets = [_words(target) for target in new_items("targets", targets)]
            return self._between(texts, words_of_targets, part)
        if targets:
            raise UserError("`targets` needs part='cross' or part='decoder'. Give one of them, or no targets.")
        if options is None:
            options = Options(precision="float32")
        if quantity is not None:
            options = replace(options, quantity=quantity)
        without_trees = tuple(_without_tree(str(place), words) for place, words in enumerate(texts))
        audit = {"sentences": len(texts), "words": sum(map(len, texts))}
        extraction = Extraction(self.source.folder, {}, self.source, options)
        items = cut_sentences(extraction, Treebank(without_trees, audit), self)
        extracted = items
        if over == "pieces":
            extracted = replace(items, inputs=tuple(map(_each_alone, items.inputs)))
        maps: dict[int, Tensor] = {}
        for _, name, stored in extract(self, extracted, range(len(extracted.shards))):
            item = int(name.rpartition(".")[2])
            maps[item] = unpack_weights(stored)
        words_of_items = [texts[int(place)] for place in items.labels["id"].to_pylist()]
        arrays = []
        for item, words in enumerate(words_of_items):
            names, numbers = self._tokens(items, item, words, over)
            arrays.append(_label_axes(maps[item], items, names, numbers))
        return WordAttention(arrays, words_of_items, self.description, items.audit)

    def _between(
        self, sources: Sequence[tuple[str, ...]], targets: Sequence[tuple[str, ...]], part: DecoderPart
    ) -> WordAttention:
        if len(sources) != len(targets):
            raise UserError(f"{pluralize(len(sources), 'sentence')}, but {len(targets)} targets: give one for each.")
        pairs = zip(sources, targets, strict=True)
        arrays = [self._decoder.attention(source, target, part) for source, target in pairs]
        audit = {"sentences": len(sources), "words": sum(map(len, sources))}
        return WordAttention(arrays, sources, self.description, audit)

    @cached_property
    def _decoder(self) -> DecoderAttention:
        return DecoderAttention(self)

    @checked
    def generated(self, prompt: str, *, tokens: Positive = 30, continuation: str | None = None) -> xr.DataArray:
        """Return the attention with which a decoder generates each token of a continuation.

        A single pass over prompt and continuation gives it, because no token attends to a later one.

        Args:
            prompt: Text before the continuation.
            tokens: Number of tokens to generate, at most, as `generate(do_sample=False)` of transformers does.
            continuation: Text to read as if the decoder had generated it, with the blank before it where the tokenizer
                needs one; None to generate one.

        Returns:
            `xr.DataArray` `[layer, head, from, to]`, float32. A row of `from` belongs to a token of the continuation:
            it is the attention at the token before it, from which it is predicted. `to` are the tokens of the
            prompt and of the continuation but for the last; weights of tokens that come later are 0. The
            coordinate `generated` is True for tokens of the continuation.

        Raises:
            EncoderError: The encoder is no decoder, or its files have no language-modelling head to generate with.
            UserError: Prompt and continuation are longer than the decoder takes, or one of them is empty.
        """
        name = self.source.spec.name
        if not self.causal:
            raise EncoderError(f"{name} is not a decoder, so it cannot generate text. Name a decoder (gpt2, Llama, …).")
        if continuation is None and self.language_model is None:
            raise EncoderError(
                f"{type(self.model).__name__} cannot generate: its files have no language-modelling head. Save it with "
                "one (AutoModelForCausalLM), or give a continuation."
            )
        first = self.tokenizer(prompt)["input_ids"]
        rest = self.tokenizer(continuation or "", add_special_tokens=False)["input_ids"]
        if not first:
            raise UserError("The prompt has no tokens. Give some text.")
        if continuation is not None and not rest:
            raise UserError("The continuation has no tokens. Give some text.")
        length = len(first) + len(rest)
        if continuation is None:
            length = len(first) + tokens
        if length > self.max_length:
            raise UserError(
                f"{name} takes at most {self.max_length} pieces; prompt and continuation have {length}. Shorten them."
            )
        whole = torch.tensor([first + rest], device=self.device)
        if continuation is None:
            assert self.language_model is not None
            whole = self.language_model.generate(  # type: ignore[operator]
                whole,
                attention_mask=torch.ones_like(whole),
                pad_token_id=self.pad_id,
                num_beams=1,
                do_sample=False,
                max_new_tokens=tokens,
            )
        without_last = whole[:, :-1]
        by_layer: list[NDArray[np.float32]] = []

        def receive(_: int, weights: Tensor) -> None:
            by_layer.append(weights[0].cpu().numpy().copy())

        def rows_of_continuation(_: int, call: LayerCall) -> Tensor:
            return call.mixture.rows(slice(len(first) - 1, None))

        inputs = {"input_ids": without_last, "attention_mask": torch.ones_like(without_last)}
        self.capture(inputs, receive, frozenset(self.attending), measure=rows_of_continuation)
        names = readable(self.tokenizer, whole[0].tolist())
        coords = {
            "layer": [layer + 1 for layer in self.attending],
            "head": range(1, self.heads + 1),
            "from": names[len(first) :],
            "to": names[:-1],
            "generated": ("to", np.arange(without_last.size(1)) >= len(first)),
        }
        return xr.DataArray(np.stack(by_layer), coords, DIMS, "attention")

    def _tokens(self, items: Items, item: int, words: Sequence[str], over: Over) -> tuple[list[str], list[int]]:
        """Return the names of the positions with a token, and the number of the word of each."""
        pieces = items.inputs[item]
        if over == "words":
            return name_positions(self.tokenizer, pieces, words)
        return readable(self.tokenizer, pieces.ids.tolist()), pieces.positions.tolist()


def _words(sentence: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(sentence, str):
        return tuple(sentence.split())
    return tuple(sentence)


def _each_alone(pieces: AlignedPieces) -> AlignedPieces:
    """Return the same input with every piece as a separate word."""
    inside = pieces.inside
    count = int(inside.sum())
    ends = np.where(pieces.positions == 0, 0, count + 1)
    positions = np.where(inside, inside.cumsum(), ends).astype(np.int32)
    return replace(pieces, positions=positions, words=count, joined=())


def _without_tree(number: str, words: tuple[str, ...]) -> Sentence:
    """Return a sentence with words alone, as the encoder reads nothing else of it."""
    heads = [0] * len(words)
    blank = ["_"] * len(words)
    return Sentence(number, words, heads, blank, blank, blank)  # type: ignore[arg-type]


def _label_axes(maps: Tensor, items: Items, names: list[str], numbers: list[int]) -> xr.DataArray:
    """Return the maps of an item with named axes.

    Args:
        maps: `[layers, heads, positions, positions]`.
        items: The items, which say the layers, heads and quantity.
        names: Names of the positions with a token.
        numbers: Number of the word of each.
    """
    # Rows and columns of delimiters that the tokenizer does not write are zero.
    first = 0 if items.delimiters["start"] else 1
    end = None if items.delimiters["end"] else -1
    coords = {
        "layer": [layer + 1 for layer in items.layers],
        "head": [head + 1 for head in items.heads],
        "from": names,
        "to": names,
        "from_word": ("from", numbers),
        "to_word": ("to", numbers),
    }
    quantity = items.extraction.options.quantity
    values = maps.numpy()[..., first:end, first:end]
    return xr.DataArray(values, coords, DIMS, quantity, {"unit": unit_of_quantity(quantity)})
