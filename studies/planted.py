"""Transformers with attention heads written by hand, on which the answers of experiments are known beforehand.

A planted head attends from every token with weight `mass` to its target, and with the rest of the weight to the start
delimiter. If the token has no target, the start delimiter gets everything. All other heads have small random scores,
so that a seed draws one model of a distribution. A model without planted heads is the null model.

How the weights are made: the residual stream has one dimension (a *feature*) for each fact about a token, such as its
position or the relations that it can be the dependent of. One dimension more, the ballast, and another that balances
it, give all tokens the same mean and norm, so that a layer normalisation changes the features by less than 1 %. The
score is 0 for the target, log((1 - mass) / mass) for the start delimiter, and below -11 for other tokens. So the norm
hardly changes the weights, and the length of the sentence does not change them at all.

A score depends on two tokens only, but the nearest candidate to one side depends on the tokens between. So a model
with a head of the target `relation` has another head in layer 1, the *counter*. It attends evenly to the token and to
all tokens before it, and its output gives the number of candidates among them, from which the feed-forward network of
layer 1 makes features. The candidate to attend to is the one with the right number. Heads of the target `same_word`
of a Llama need it too, because it gives them the absolute position.

Decoys are made of the same parts:

- a head with attention and no output: `PlantedHead("2-1", "relation", 0.9, relation="obj", values=False)`;
- a head that finds a relation and is not needed: a planted head that is not the `decision` of the classifier;
- a head that is needed and that no largest weight shows: the decision read from `PlantedHead("3-1", "evenly")`, or from
  `PlantedHead("3-1", "opinion", 0.2)`, whose largest weight is on the start delimiter;
- attention at words that the decision does not use: beside them, `PlantedHead("3-2", "opinion", 0.9, values=False)`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from attention_probing.attention.heads import Head, parse_heads
from attention_probing.corpora.sample_grammar import sample_vocabulary
from attention_probing.results.errors import UserError, one_of
from attention_probing.results.options import Bounds, Positive, checked
from studies.blank import SPECIAL, Architecture, WordModel, blank_model, set_weights

Target = Literal["offset", "same_word", "relation", "delimiter", "evenly", "opinion"]

LABELS = ("negative", "positive")
"""Classes of the classifier, in the order of their numbers: those of the sample reviews."""
LONGEST = 64
"""Largest number of pieces of an input, delimiters included."""

PRAISE, BLAME = frozenset({"GOOD", "FINE", "LIKED"}), frozenset({"BAD", "POOR", "HATED"})
"""Symbols of the sample grammar for words that count as praise, and as blame."""

_HEADS, _HIDDEN = 4, 512
_DIM: Mapping[Architecture, int] = {"bert": _HIDDEN // _HEADS, "llama": 160}  # of a head
_NORM = 32.0  # of a token in the residual stream
_FAR = 20.0  # distance of other scores from the scores of the target and the start delimiter
_MOST_ODDS = 9.0  # a mass of 1 is 0.9999
_CODE = 31  # prime; word codes have twice as many dimensions
_COUNTED = 10  # candidates in front of a token; farther ones are never a target
_FLAG, _COUNT = 0.2, 0.25  # size of a feature made by the feed-forward network, and by the counter
_STEEP = 768.0  # slope of a step: 3 at half a candidate in LONGEST tokens
_CLOSED = 256.0  # more than _STEEP times the largest output of the counter
_SCORES, _OUTPUTS = 0.7, 0.3  # standard deviation of the random weights of queries and keys; size of random outputs
_NOISE = 1e-5  # weight of a random output in the classifier, relative to that of the decision
_ROTARY, _FIXED = 4, 16  # pairs of dimensions of RoPE that encode offsets; the first pair that hardly rotates
_BASE = 1e38  # of RoPE: the frequencies go from 1 to 3e-38
_PEAK = 0.52  # by how much the peak of a sum of 1 for each rotary pair exceeds its value at other offsets, at least

_NAMES: Mapping[Architecture, Mapping[str, str]] = {
    "bert": {
        "words": "bert.embeddings.word_embeddings.weight",
        "query": "bert.encoder.layer.{}.attention.self.query.weight",
        "key": "bert.encoder.layer.{}.attention.self.key.weight",
        "value": "bert.encoder.layer.{}.attention.self.value.weight",
        "output": "bert.encoder.layer.{}.attention.output.dense.weight",
        "up": "bert.encoder.layer.0.intermediate.dense.weight",
        "down": "bert.encoder.layer.0.output.dense.weight",
    },
    "llama": {
        "words": "model.embed_tokens.weight",
        "query": "model.layers.{}.self_attn.q_proj.weight",
        "key": "model.layers.{}.self_attn.k_proj.weight",
        "value": "model.layers.{}.self_attn.v_proj.weight",
        "output": "model.layers.{}.self_attn.o_proj.weight",
        "up": "model.layers.0.mlp.gate_proj.weight",
        "down": "model.layers.0.mlp.down_proj.weight",
    },
}


class Rule(NamedTuple):
    """The syntactic head of a word, as the nearest candidate to one side.

    Attributes:
        dependents: Words that have such a head, in lower case.
        candidates: Words that can be the head, in lower case.
        side: 1 for candidates after the dependent, -1 for candidates before it.
    """

    dependents: frozenset[str]
    candidates: frozenset[str]
    side: Literal[1, -1]


@cache
def relation_rules() -> Mapping[str, Rule]:
    """Return the rule of each dependency relation of the sample grammar that has one.

    The share of the gold arcs of a relation that its rule finds is measured in `tests/models/test_planted.py`.
    """
    symbols = sample_vocabulary()

    def words_of(*tags: str) -> frozenset[str]:
        return frozenset(word for word, of_word in symbols.items() if not of_word.isdisjoint(tags))

    auxiliaries = words_of("MD") | {"was", "were", "is", "had", "did"}
    nouns = words_of("NN", "NNS") - words_of("KIN") - {"yesterday"}  # nouns of compounds precede their heads
    names = words_of("NNP")
    pronouns = words_of("PRP")
    adjectives = words_of("JJ")
    verbs = words_of("VB", "VBD", "VBN", "VBG", "VBZ", "VBP") - auxiliaries - nouns
    entities = nouns | names | pronouns
    return {
        "det": Rule(words_of("DT"), nouns, 1),
        "amod": Rule(adjectives, nouns, 1),
        "nummod": Rule(words_of("CD"), nouns, 1),
        "nmod:poss": Rule(nouns | names | words_of("PRP$"), nouns, 1),
        "nsubj": Rule(entities | {"who"}, verbs, 1),
        "aux": Rule(auxiliaries, verbs, 1),
        "cop": Rule(frozenset({"was", "were"}), adjectives, 1),
        "obj": Rule(entities, verbs, -1),
        "iobj": Rule(entities, verbs, -1),
        "obl": Rule(entities, verbs, -1),
        "nmod": Rule(nouns | names, nouns, -1),
        "xcomp": Rule(verbs, verbs, -1),
    }


@checked
@dataclass(frozen=True)
class PlantedHead:
    """An attention head that is written by hand.

    The targets of a token are:

    - `offset`: the token `offset` positions after it, or before it if the number is negative;
    - `same_word`: the other occurrences of its word in the sentence, in a Llama those before it. With k of them, each
      has weight mass / (k · mass + 1 - mass), so that the sum is `mass` for one of them and more for several;
    - `relation`: the syntactic head that `relation_rules` give to it;
    - `delimiter`: the end delimiter in a BERT. In a Llama, whose tokenizer writes none, it is the start delimiter, and
      the token itself gets the rest;
    - `evenly`: every token that it may attend to, with the same weight;
    - `opinion`: the words of praise and blame of the sample reviews, in a Llama those up to this token. Several of
      them share the weight as in `same_word`.

    Args:
        head: Name of the head: layer and head, both from 1, such as `2-3`.
        target: Kind of target.
        mass: Attention weight of the target, exact to 0.001; must be 1 for `evenly`.
        offset: Distance of the target, for `offset` only.
        relation: Dependency relation, for `relation` only.
        values: True if the head has an output; else its value and output weights are zero.

    Raises:
        UserError: A value is unknown or out of bounds, or does not go with the target.
    """

    head: str
    target: Target
    mass: Annotated[float, Bounds(least=0, most=1)] = 1.0
    offset: int = 0
    relation: str = ""
    values: bool = True

    def __post_init__(self) -> None:
        if self.target == "evenly" and self.mass != 1:
            raise UserError(f"PlantedHead {self.head}: mass is {self.mass}, but `evenly` leaves no rest. Give mass 1.")
        if (self.target == "offset") != (self.offset != 0):
            raise UserError(
                f"PlantedHead {self.head}: offset is {self.offset}, but must be a number other than 0 with the target "
                "`offset`, and 0 with other targets."
            )
        if (self.target == "relation") != bool(self.relation):
            raise UserError(
                f"PlantedHead {self.head}: relation is {self.relation!r}, but must be given with the target `relation`,"
                " and with no other target."
            )
        if self.relation and self.relation not in relation_rules():
            raise UserError(
                f"PlantedHead {self.head}: relation is {self.relation!r}, but must be "
                f"{one_of(self.relation, relation_rules())}."
            )


@dataclass(frozen=True, eq=False)
class PlantedModel(WordModel):
    """A classifier with planted heads, and its tokenizer; `save` writes them to a folder.

    Attributes:
        counter: Name of the head that counts candidates; None if no planted head needs it.
    """

    counter: str | None = None


@checked
def planted_model(
    kind: Architecture,
    heads: Sequence[PlantedHead] = (),
    seed: int = 0,
    *,
    layers: Positive = 3,
    decision: str | None = None,
) -> PlantedModel:
    """Make a BERT or Llama with four heads in each layer, some of which are written by hand.

    The model is a sequence classifier of the labels `negative` and `positive`. It reads the output of one head, the
    `decision`, at the start delimiter of a BERT and at the last token of a Llama: the words of praise in the sample
    reviews count 1, the words of blame -1, other words 0, each weighted by the attention of the head. If the sum is
    positive, the label is `positive`. If it is 0, the label is noise, with logits below 0.001. So the decision needs
    this head and no other, except the counter if the head is one that depends on it. In a BERT, a head of the target
    `relation` that is read attends from the start delimiter to words of opinion, and from all others to its target.

    The vocabulary has the words of the sample corpora, in lower case.

    Args:
        kind: `bert` (absolute positions, layer normalisation after each block) or `llama` (RoPE, RMS normalisation
            before each block, causal).
        heads: The planted heads.
        seed: Seed of the random weights and of the codes of words.
        layers: Number of layers.
        decision: Name of the planted head that the classifier reads; None for a classifier without knowledge.

    Raises:
        UserError: A head does not exist or is planted twice; a Llama would attend to later tokens; layer 1 has no head
            left for the counter, or has a head that needs it; or the head of the decision is not planted, or has no
            values.
    """
    planted = _by_place(kind, heads, layers)
    if decision is not None and not any(one.head == decision and one.values for one in heads):
        raise UserError(f"planted_model: the decision is read from {decision}, which is no planted head with values.")
    needing = [one for one in heads if one.target == "relation" or (one.target == "same_word" and kind == "llama")]
    counter = _counter_head(needing, planted) if needing else None
    relations = sorted({one.relation for one in needing if one.relation})
    writer = _Writer(kind, relations, seed, counts=counter is not None)
    weights = writer.embeddings()
    if counter:
        weights |= writer.counting()
    for layer in range(layers):
        drawn = []
        for head in range(_HEADS):
            weights_of_head = writer.head(planted.get((layer, head)), decision)
            drawn.append(writer.counter() if (layer, head) == counter else weights_of_head)
        weights |= writer.layer(layer, drawn)
    blank = blank_model(kind, list(sample_vocabulary()), writer.sizes(layers), LABELS)
    for name, parameter in blank.model.named_parameters():
        if "norm" in name.lower() and name.endswith("weight"):
            weights[name] = torch.full_like(parameter, _NORM / math.sqrt(_HIDDEN))
    set_weights(blank.model, weights | writer.classifier())
    counter_name = f"{counter[0] + 1}-{counter[1] + 1}" if counter else None
    return PlantedModel(blank.model, blank.tokenizer, counter_name)


def unigram_decoder(planted: PlantedModel, log_odds: Mapping[str, float]) -> WordModel:
    """Return a planted Llama as a language model by which no word depends on the words before it.

    Its heads attend as before, and no probability depends on them.

    Args:
        planted: The Llama; it is not changed.
        log_odds: Logits of words, in lower case; those of all others are 0.
    """
    config = deepcopy(planted.model.config)
    config.tie_word_embeddings = False
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.base_model.load_state_dict(planted.model.base_model.state_dict())
    rows = torch.zeros(len(planted.tokenizer), _HIDDEN)
    [one] = _features("llama", (), counts=False)["one"]  # every token has it, in the same dimension of every model
    for word, logit in log_odds.items():
        rows[planted.tokenizer.convert_tokens_to_ids(word)] = logit * one
    set_weights(model, {"lm_head.weight": rows})
    return WordModel(model.eval(), planted.tokenizer)  # type: ignore[no-untyped-call]


def _by_place(kind: Architecture, heads: Sequence[PlantedHead], layers: int) -> dict[Head, PlantedHead]:
    """Return the planted heads by 0-based layer and head.

    Raises:
        UserError: A head does not exist or is planted twice, or a Llama would attend to later tokens.
    """
    by_place: dict[Head, PlantedHead] = {}
    for one in heads:
        places = parse_heads([one.head], layers, _HEADS, "heads")
        if len(places) > 1:
            raise UserError(f"planted_model: {one.head} is a whole layer. Name one head, such as {one.head}-1.")
        [place] = places
        if place in by_place:
            raise UserError(f"planted_model: head {one.head} is planted twice.")
        is_later = one.offset > 0 or (one.relation != "" and relation_rules()[one.relation].side > 0)
        if kind == "llama" and is_later:
            raise UserError(
                f"planted_model: head {one.head} would attend to later tokens ({one.relation or one.offset}), which a "
                "Llama does not. Give a negative offset or another relation, or make a BERT."
            )
        by_place[place] = one
    return by_place


def _counter_head(needing: Sequence[PlantedHead], planted: Collection[Head]) -> Head:
    """Return a 0-based head of layer 1 for the counter.

    Args:
        needing: Planted heads that need the counter.
        planted: All planted heads, by 0-based layer and head.

    Raises:
        UserError: A head that needs the counter is in layer 1, or layer 1 has no other head left.
    """
    need = f"{needing[0].head} needs another head in layer 1 that counts tokens"
    for one in needing:
        if one.head.startswith("1-"):
            raise UserError(f"planted_model: {one.head} is in layer 1, but {need}. Move {one.head} to a higher layer.")
    free = [head for head in range(_HEADS) if (0, head) not in planted]
    if not free:
        raise UserError(
            f"planted_model: all heads of layer 1 are planted, but {need}. Move one of them to a higher layer."
        )
    return 0, free[-1]


@cache
def _features(kind: Architecture, relations: tuple[str, ...], counts: bool) -> dict[str, Tensor]:
    """Return the dimensions of each feature of the residual stream, as unit rows `[width, hidden]`."""
    single = ("one", "ballast", "balance", "start", "end", "opinion", "polarity", "decision")
    widths = dict.fromkeys(single, 1)
    widths["position"] = LONGEST if kind == "bert" or counts else 0
    widths["word"] = 2 * _CODE
    widths["before"] = 1 if counts else 0
    for name in relations:
        # Static, by word; `both` is a dependent that is a candidate, and `dependent` any other.
        widths[f"{name} candidate"] = 1
        widths[f"{name} dependent"] = 1
        widths[f"{name} both"] = 1
        # Made by layer 1.
        widths[f"{name} count"] = 1
        widths[f"{name} key"] = _COUNTED
        widths[f"{name} query"] = _COUNTED
    widths["free"] = _HIDDEN - sum(widths.values())
    rows = torch.split(torch.eye(_HIDDEN), list(widths.values()))
    return dict(zip(widths, rows, strict=True))


def _word_codes(seed: int, words: int) -> Tensor:
    """Return shuffled unit vectors `[words, 2 * _CODE]`, whose inner products are at most 0.18.

    They are chirps of a prime length (Alltop 1980, Complex sequences with low periodic correlations).
    """
    number = torch.randperm(2 * _CODE**2, generator=torch.Generator().manual_seed(seed))[:words, None]
    n = torch.arange(_CODE)
    chirp = number % _CODE
    shift = number // _CODE % _CODE
    quarter = number // _CODE**2
    phase = 2 * math.pi * ((chirp * n * n + shift * n) % _CODE / _CODE + quarter / 4)
    return torch.cat([phase.cos(), phase.sin()], 1) / math.sqrt(_CODE)


class _HeadWeights(NamedTuple):
    """Weights of one head: query, key and value `[dim, hidden]`, output `[hidden, dim]`."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


class _Writer:
    """Makes the weights of a model, by the names of its parameters."""

    def __init__(self, kind: Architecture, relations: Sequence[str], seed: int, counts: bool) -> None:
        self.kind = kind
        self.relations = tuple(relations)
        self.seed = seed
        self.at = _features(kind, self.relations, counts)
        self.names = _NAMES[kind]
        self.dim = _DIM[kind]
        self.random = torch.Generator().manual_seed(seed)
        # Dimensions of a head that RoPE leaves as they are.
        self.fixed = [*range(self.dim)]
        if kind == "llama":
            half = self.dim // 2
            pairs = range(_FIXED, half)
            self.fixed = [*pairs, *(half + pair for pair in pairs)]
        # Steps of layer 1: their input weights, bias and output weights.
        self.steps: list[tuple[Tensor, float, Tensor]] = []

    def sizes(self, layers: int) -> dict[str, object]:
        """Return the options of the config."""
        sizes: dict[str, object] = {
            "hidden_size": _HIDDEN,
            "num_hidden_layers": layers,
            "num_attention_heads": _HEADS,
            "intermediate_size": max(len(self.steps), 1),
            "hidden_act": "relu",
            "max_position_embeddings": LONGEST,
        }
        if self.kind == "llama":
            sizes["head_dim"] = self.dim
            sizes["mlp_bias"] = True
            sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": _BASE}
        return sizes

    def embeddings(self) -> dict[str, Tensor]:
        """Return the embeddings of words and, in a BERT, of positions."""
        symbols = sample_vocabulary()
        special = list(SPECIAL[self.kind].values())
        rows = self.at["one"].repeat(len(special) + len(symbols), 1)
        rows[len(special) :] += _word_codes(self.seed, len(symbols)) @ self.at["word"]
        for row, piece in zip(rows, special, strict=False):
            if piece in ("[CLS]", "<s>"):
                row += self.at["start"][0]
            if piece == "[SEP]":
                row += self.at["end"][0]
        for row, (word, symbols_of_word) in zip(rows[len(special) :], symbols.items(), strict=True):
            sign = (not symbols_of_word.isdisjoint(PRAISE)) - (not symbols_of_word.isdisjoint(BLAME))
            row += abs(sign) * self.at["opinion"][0] + sign * self.at["polarity"][0]
            for name in self.relations:
                dependents, candidates, _ = relation_rules()[name]
                if word in candidates:
                    row += self.at[f"{name} candidate"][0]
                if word in dependents:
                    feature = "both" if word in candidates else "dependent"
                    row += self.at[f"{name} {feature}"][0]

        # In a BERT, the feature of the position adds 1 to both sums of a token.
        position = 1 if self.kind == "bert" else 0
        total = rows.sum(1) + position
        square = rows.square().sum(1) + position
        ballast = ((2 * (_NORM**2 - square) - total.square()).sqrt() - total) / 2
        rows += ballast[:, None] * self.at["ballast"] - (ballast + total)[:, None] * self.at["balance"]
        embeddings = {self.names["words"]: rows}
        if self.kind == "bert":
            embeddings["bert.embeddings.position_embeddings.weight"] = self.at["position"]
        return embeddings

    def head(self, planted: PlantedHead | None, decision: str | None) -> _HeadWeights:
        """Return the weights of a planted head, or of a random one."""
        features = [self.at["word"], self.at["free"]]
        if self.kind == "bert":
            features.append(self.at["position"])
        read = torch.cat(features)
        query = self._draw(self.dim, len(read)) @ read * _SCORES
        key = self._draw(self.dim, len(read)) @ read * _SCORES
        value = self._draw(self.dim, len(read)) @ read / math.sqrt(self.dim)
        free = self.at["free"]
        output = free.T @ self._draw(len(free), self.dim) * (_OUTPUTS / math.sqrt(len(free)))
        if planted is None:
            return _HeadWeights(query, key, value, output)
        query, key = self._scores(planted, read=planted.head == decision)
        if planted.head == decision:
            value[0] = self.at["polarity"][0]
            output[:, 0] = self.at["decision"][0] / 2
        return _HeadWeights(query, key, value * planted.values, output * planted.values)

    def _draw(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.random)

    def _scores(self, planted: PlantedHead, *, read: bool) -> tuple[Tensor, Tensor]:
        """Return queries and keys `[dim, hidden]` of a planted head; `read` if the classifier reads its output."""
        one, start = self.at["one"], self.at["start"]
        odds = math.log(max(1 - planted.mass, 1e-9) / max(planted.mass, 1e-9))
        rest = min(max(odds, -_MOST_ODDS), _MOST_ODDS)
        if planted.target == "evenly":
            return self._look_up([])
        if planted.target == "opinion":
            return self._look_up([(one, _FAR * (self.at["opinion"] - one) + (_FAR + rest) * start)])
        if planted.target == "delimiter" and self.kind == "bert":
            return self._look_up([(one, _FAR * (self.at["end"] - one) + (_FAR + rest) * start)])
        if self.kind == "llama" and planted.target in ("offset", "delimiter"):
            return self._rotate(planted.offset, rest)
        if planted.target == "offset":
            position = self.at["position"]
            zeros = torch.zeros(LONGEST, _HIDDEN)
            shifted = torch.cat([zeros, position, zeros])[LONGEST - planted.offset :][:LONGEST]
            return self._look_up([(one, (_FAR + rest) * start - _FAR * one), (_FAR * shifted, position)])
        if planted.target == "same_word":
            far = _FAR / (1 - _CODE**-0.5)
            word = self.at["word"]
            position = self.at["position"] if self.kind == "bert" else self.at["position"] / _FLAG
            to_start = (one, (far + rest) * start - far * one)
            return self._look_up([to_start, (far * word, word), (-2 * far * position, position)])
        wanted = self.at[f"{planted.relation} query"] / _FLAG
        offered = self.at[f"{planted.relation} key"] / _FLAG
        pairs = [(one, (_FAR + rest) * start - _FAR * one), (_FAR * wanted, offered)]
        if read:
            pairs.append((_FAR * start, self.at["opinion"]))
        return self._look_up(pairs)

    def _look_up(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose score is the sum of the inner products of the pairs, `[width, hidden]` each."""
        query = torch.zeros(self.dim, _HIDDEN)
        key = torch.zeros(self.dim, _HIDDEN)
        if pairs:
            wanted, offered = zip(*pairs, strict=True)
            rows = torch.cat(wanted)
            dimensions = self.fixed[: len(rows)]
            query[dimensions] = rows
            key[dimensions] = torch.cat(offered)
        return query * math.sqrt(self.dim), key

    def _rotate(self, offset: int, rest: float) -> tuple[Tensor, Tensor]:
        """Return queries and keys of a Llama that attends to an offset; with offset 0 to itself as the rest."""
        one = self.at["one"]
        start = self.at["start"]
        size = _FAR / _PEAK
        base = _ROTARY * size * (start - one) + rest * (start if offset else one - start)
        query, key = self._look_up([(one, base)])
        for pair in range(_ROTARY):
            angle = offset * _BASE ** (-2 * pair / self.dim)
            query[pair] = size * math.sqrt(self.dim) * math.cos(angle) * one[0]
            query[pair + self.dim // 2] = size * math.sqrt(self.dim) * math.sin(angle) * one[0]
            key[pair] = one[0] - start[0]
        return query, key

    def counter(self) -> _HeadWeights:
        """Return the weights of the head that attends evenly up to a token, and counts the candidates there."""
        query, key = self._look_up([])
        if self.kind == "bert":
            position = self.at["position"]
            later = torch.ones(LONGEST, LONGEST).triu(1)  # [from, to]
            query, key = self._look_up([(-_FAR * later.T @ position, position)])
        count_of = {"start": "before"}
        for name in self.relations:
            count_of[f"{name} candidate"] = f"{name} count"
        value = torch.zeros(self.dim, _HIDDEN)
        output = torch.zeros(_HIDDEN, self.dim)
        for place, (feature, count) in enumerate(count_of.items()):
            value[place] = self.at[feature][0]
            output[:, place] = _COUNT * self.at[count][0]
        return _HeadWeights(query, key, value, output)

    def layer(self, layer: int, heads: Sequence[_HeadWeights]) -> dict[str, Tensor]:
        """Return the weights of the attention of a layer."""
        weights = {
            "query": torch.cat([head.query for head in heads]),
            "key": torch.cat([head.key for head in heads]),
            "value": torch.cat([head.value for head in heads]),
            "output": self._balance(torch.cat([head.output for head in heads], 1)),
        }
        return {self.names[part].format(layer): weight for part, weight in weights.items()}

    def _balance(self, output: Tensor) -> Tensor:
        """Return output weights `[hidden, …]` that leave the mean of the residual stream unchanged."""
        free = self.at["free"]  # spread over many dimensions, which adds less to the norm than one of them
        return output - free.sum(0)[:, None] * output.sum(0, keepdim=True) / len(free)

    def counting(self) -> dict[str, Tensor]:
        """Return the feed-forward network of layer 1, which makes features of the outputs of the counter."""
        before, one = self.at["before"][0], self.at["one"][0]
        for name in self.relations:
            side = relation_rules()[name].side
            self._flag(name, "candidate", "key", 0)
            # Of the candidates up to a dependent that is one itself, the last is the dependent.
            self._flag(name, "dependent", "query", -1 if side > 0 else 0)
            self._flag(name, "both", "query", -1 if side > 0 else 1)
        if self.kind == "llama":
            position = torch.cat([self.at["position"], torch.zeros(1, _HIDDEN)])
            for place in range(LONGEST + 1):  # at least `place` tokens before it: before is _COUNT / (number + 1)
                least = one * _COUNT / (place + 0.5) - before
                self._step(least * (3 * (place + 1) ** 2 / _COUNT), 0, position[place] - position[place - 1])
        rows, biases, outputs = zip(*self.steps, strict=True)
        up = torch.stack(rows)
        bias = torch.tensor(biases)
        weights = {self.names["down"]: self._balance(torch.stack(outputs, 1))}
        if self.kind == "bert":  # the feature shrinks with the others, so that their ratio is exact
            weights[self.names["up"]] = up + bias[:, None] * one
        else:
            weights[self.names["up"]] = up
            weights[self.names["up"].replace("weight", "bias")] = bias
            weights["model.layers.0.mlp.up_proj.bias"] = torch.ones(len(bias))
        return weights

    def _flag(self, name: str, gate: str, feature: str, shift: int) -> None:
        """Add steps that set number k of a feature if a token is in a class and has counted k + shift candidates."""
        flags = torch.cat([torch.zeros(1, _HIDDEN), self.at[f"{name} {feature}"], torch.zeros(1, _HIDDEN)])
        for number in range(1, _COUNTED + 2):
            excess = self.at[f"{name} count"][0] - (number + shift - 0.5) * self.at["before"][0]
            row = _STEEP * excess + _CLOSED * self.at[f"{name} {gate}"][0]
            self._step(row, -_CLOSED, flags[number] - flags[number - 1])

    def _step(self, row: Tensor, bias: float, output: Tensor) -> None:
        """Add a step from 0 to `output` where row · x + bias exceeds 0; it is a ramp from -0.5 to 0.5."""
        self.steps.append((row, bias + 0.5, _FLAG * output))
        self.steps.append((row, bias - 0.5, -_FLAG * output))

    def classifier(self) -> dict[str, Tensor]:
        """Return the weights of the classification head; the logit of `negative` is 0.

        It also reads all outputs of random heads, with weights too small to change a decision: a head that reads
        nothing of a text has no gradient, so that `TransformerClassifier` does not find the position that it reads.
        """
        free = self.at["free"]
        second = torch.tensor([[0.0], [1.0]])
        row = self.at["decision"] + _NOISE * self._draw(1, len(free)) @ free
        if self.kind == "llama":
            return {"score.weight": 16 * second * row}
        first = torch.eye(_HIDDEN)[:1]  # the only one of the pooler's outputs that is not 0
        return {"bert.pooler.dense.weight": 2 * first.T @ row, "classifier.weight": 8 * second * first}
