"""A small network as a second opinion on the patterns of attention maps, trained on maps drawn of known pattern.

Kovaleva et al. (2019, §4.1) train one on some 400 maps that they labelled by hand, which are not public. These are
drawn as the paper describes the classes, without the rules of `metrics.patterns`.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from analysis.base import AnalysisError
from attention import Encoder
from metrics.classification import confusion, f1
from metrics.patterns import BLOCK, BOTH, DIAGONAL, PATTERNS, VERTICAL, by_rules, structure
from training import recorded_gradients

Matrix = NDArray[np.float64]
Masks = NDArray[np.bool_]

SHORTEST, LONGEST = 8, 128  # tokens of a drawn map
LEAST = 5  # tokens of each of two segments; smaller blocks are diagonals
SIDE = 32  # of the pictures that the network sees
TRAINING, HELD_OUT = 2000, 500  # maps drawn for each
EPOCHS, BATCH, RATE = 8, 50, 5e-3


class PatternNet(nn.Module):
    """Reads `pictures` of maps, `[batch, heads, 2, SIDE, SIDE]`, and gives logits `[batch, heads, patterns]`."""

    def __init__(self) -> None:
        super().__init__()
        self._layers = nn.Sequential(
            nn.Conv2d(2, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 8) ** 2, len(PATTERNS)),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self._layers(pictures.flatten(0, 1))
        return logits.view(*pictures.shape[:2], -1)


def pictures(weights: Tensor, lengths: Tensor, segments: Tensor) -> Tensor:
    """Maps of any length as pictures of one size.

    Args:
        weights: `[batch, heads, from, to]`; what they hold in the padding is ignored.
        lengths: int64 `[batch]`, the sides of the maps.
        segments: 0 or 1, int64 `[batch, time]`.

    Returns:
        float32 `[batch, heads, 2, SIDE, SIDE]`: the root of the mass of each area, relative to that of uniform
        attention; and the share of the area that is within one segment.
    """
    edges = torch.arange(SIDE + 1, device=weights.device) * (lengths[:, None] / SIDE)
    tokens = torch.arange(weights.size(-1), device=weights.device)
    over = torch.minimum(edges[:, 1:, None], tokens + 1) - torch.maximum(edges[:, :-1, None], tokens)
    over = over.clamp(min=0.0)  # of each token, the part that lies in each area of a side: [batch, SIDE, time]
    mean = over * (SIDE / lengths)[:, None, None]
    mass = SIDE * (mean[:, None] @ weights.float() @ over.mT[:, None])
    second = mean @ segments[..., None].float()
    same = second * second.mT + (1 - second) * (1 - second.mT)
    return torch.stack([mass.clamp(min=0.0).sqrt(), same[:, None].expand_as(mass)], 2)


class Trained(NamedTuple):
    """A network, and the macro-F1 of it and of the rules on maps that it has not seen."""

    net: PatternNet
    net_f1: float
    rules_f1: float


def trained(masks: Masks) -> Trained:
    """A network trained on drawn maps, the same in every process: on the CPU and on one thread, from fixed seeds."""
    return _trained(masks.tobytes(), masks.shape)


@cache
def _trained(content: bytes, shape: tuple[int, ...]) -> Trained:
    masks = np.frombuffer(content, np.bool_).reshape(shape).copy()  # torch wants arrays that can be written
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with recorded_gradients(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = PatternNet()
            _fit(net, *_training_set(masks))
            net.requires_grad_(False)
            return Trained(net, *held_out_f1(net, masks))
    finally:
        torch.set_num_threads(threads)


def held_out_f1(net: PatternNet, masks: Masks) -> tuple[float, float]:
    """Macro-F1 of the network and of the rules on drawn maps that are not in its training."""
    gold, by_net, found = list[int](), list[int](), list[int]()
    for drawn in draw_maps(1, HELD_OUT, masks):
        weights, lengths, delimiters, segments = drawn.tensors()
        gold.append(drawn.pattern)
        by_net.append(int(net(pictures(weights, lengths, segments)).argmax(-1)))
        shape = structure(weights, lengths, delimiters, segments, drawn.allowed)
        found.append(int(by_rules(shape, segments.any(1))[0]))
    one, other = (float(f1(confusion(np.array(gold), np.array(got), len(PATTERNS)), None)) for got in (by_net, found))
    return one, other


def _training_set(masks: Masks) -> tuple[Tensor, Tensor]:
    drawn = draw_maps(0, TRAINING, masks)
    shown = [(one.pattern, pictures(*(one.tensors()[place] for place in (0, 1, 3)))) for one in drawn]
    return torch.cat([picture for _, picture in shown]), torch.tensor([[pattern] for pattern, _ in shown])


def _fit(net: PatternNet, shown: Tensor, patterns: Tensor) -> None:
    optimizer = torch.optim.Adam(net.parameters(), RATE)
    steps = EPOCHS * math.ceil(len(shown) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for places in torch.split(torch.randperm(len(shown)), BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(shown[places]).flatten(0, 1), patterns[places].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()


class DrawnMap(NamedTuple):
    """A map of known pattern: weights float64 `[tokens, tokens]`, segments int64 `[tokens]`, number of delimiters.

    `mask` says what each token may attend to, bool `[tokens, tokens]`.
    """

    weights: Matrix
    segments: NDArray[np.int64]
    delimiters: int
    pattern: int
    mask: Masks

    @property
    def allowed(self) -> Tensor:
        """The mask as that of a batch, bool `[1, 1, tokens, tokens]`."""
        return torch.from_numpy(self.mask)[None, None]

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A batch of this one: weights, lengths, number of delimiters, segments."""
        counts = torch.tensor([len(self.segments), self.delimiters])
        return (
            torch.from_numpy(self.weights)[None, None].float(),
            counts[:1],
            counts[1:],
            torch.from_numpy(self.segments)[None],
        )


def masks_of(encoder: Encoder) -> Masks:
    """The different masks of the layers of an encoder, bool `[masks, longest, longest]`: for maps to be drawn under."""
    longest = min(LONGEST, encoder.max_length)
    if longest < 2 * SHORTEST:
        raise AnalysisError(
            f"{encoder.source.spec.name} reads at most {longest} tokens, and a drawn map of two segments has "
            f"{2 * SHORTEST} or more: leave out the network (cnn: false)."
        )
    [masks], _ = encoder.allowed(torch.ones(1, longest, dtype=torch.bool, device=encoder.device))
    found: Masks = torch.unique(masks, dim=0).cpu().numpy()  # windows may be longer than any map
    return found


def draw_maps(seed: int, number: int, masks: Masks) -> Iterator[DrawnMap]:
    """As many maps of each pattern, in turn, and under each mask; each has a generator of its own."""
    for place in range(number):
        mask = masks[place // len(PATTERNS) % len(masks)]
        yield draw_map(place % len(PATTERNS), np.random.default_rng([seed, place]), mask)


def draw_map(pattern: int, random: np.random.Generator, mask: Masks) -> DrawnMap:
    """Draw a map of a pattern, of one or two segments; a block has two.

    The `mask`, bool `[longest, longest]`, says how far rows may reach in an input of any length up to its own.

    - vertical: one to three columns, mostly delimiters, in shares that vary from row to row.
    - diagonal: the previous, same or next token, or a band around the token that fades out.
    - both, in shares of .35 to .65 that may vary from row to row. The first two have up to .15 of one another.
    - block: rows spread over the own segment, evenly or not, with up to a fifth of their mass anywhere.
    - heterogeneous: broad or sparse rows, content (softmax of products of random vectors), or a far diagonal.

    Half of the last two have a vertical and a diagonal part of up to .3 together, and all maps have up to .3 of noise.
    """
    two = pattern == BLOCK or random.random() < 0.5
    size = int(np.exp(random.uniform(np.log(2 * SHORTEST if two else SHORTEST), np.log(len(mask) + 1))))
    second = int(np.clip(size * random.uniform(0.25, 0.75), LEAST, size - LEAST)) if two else size
    delimiters = (0, second - 1, size - 1) if two else (0, size - 1)
    segments = (np.arange(size) >= second).astype(np.int64)
    mask = mask[:size, :size]
    drawing = _Drawing(random, mask, delimiters)
    if pattern in (VERTICAL, DIAGONAL, BOTH):
        low, high = {VERTICAL: (0.85, 1.0), DIAGONAL: (0.0, 0.15), BOTH: (0.35, 0.65)}[pattern]
        own = drawing.lines(random.uniform(low, high), varied=pattern == BOTH)
    else:
        own = drawing.block(segments) if pattern == BLOCK else drawing.heterogeneous()
        if random.random() < 0.5:
            weak = random.uniform(0.0, 0.3)
            own = weak * drawing.lines(random.random(), varied=False) + (1 - weak) * own
    noise = random.uniform(0.0, 0.3)
    return DrawnMap((1 - noise) * own + noise * drawing.spread(), segments, len(delimiters), pattern, mask)


class _Drawing(NamedTuple):
    """Draws what maps of one size are made of, `[from, to]`; rows sum to one over what they see."""

    random: np.random.Generator
    seen: Masks
    delimiters: Sequence[int]

    @property
    def causal(self) -> bool:
        """Return if no row sees a later token."""
        return not np.triu(self.seen, 1).any()

    def rows(self, weights: Matrix) -> Matrix:
        seen: Matrix = (weights + 1e-9) * self.seen  # a row at the edge may have nothing else
        rows: Matrix = seen / seen.sum(1, keepdims=True)
        return rows

    def spread(self) -> Matrix:
        """Rows over all columns, evenly or not; some columns get more than others."""
        size = len(self.seen)
        evenness = np.exp(self.random.uniform(np.log(0.3), np.log(10)))
        return self.rows(self.random.dirichlet(np.full(size, evenness), size) * self.random.gamma(4.0, size=size))

    def vertical(self) -> Matrix:
        size, random = len(self.seen), self.random
        chosen = [0] if self.causal and self.seen[:, 0].all() else []  # the first, which every row sees
        for _ in range(int(random.integers(1, 4)) - len(chosen)):
            chosen.append(int(random.choice(self.delimiters) if random.random() < 0.8 else random.integers(size)))
        columns = np.unique(chosen)
        weights = np.zeros((size, size))
        weights[:, columns] = random.dirichlet(10 * random.dirichlet(np.full(len(columns), 2.0)) + 0.1, size)
        return self.rows(weights)

    def diagonal(self) -> Matrix:
        size, random = len(self.seen), self.random
        if random.random() < 0.5:
            return self.rows(np.eye(size, k=int(random.integers(-1, 1 if self.causal else 2))))
        distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        return self.rows(random.uniform(0.05, 0.4) ** distance * random.gamma(5.0, size=(size, size)))

    def lines(self, share: float, varied: bool) -> Matrix:
        """A share of a vertical map and the rest of a diagonal one; where it is `varied`, rows may differ in it."""
        shares: Matrix | float = share
        if varied and self.random.random() < 0.5:
            shares = self.random.beta(8 * share, 8 * (1 - share), (len(self.seen), 1))
        return shares * self.vertical() + (1 - shares) * self.diagonal()

    def block(self, segments: NDArray[np.int64]) -> Matrix:
        leak = self.random.uniform(0.0, 0.2)
        return (1 - leak) * self.rows(self.spread() * (segments[:, None] == segments)) + leak * self.spread()

    def heterogeneous(self) -> Matrix:
        size, random = len(self.seen), self.random
        kind = int(random.integers(4))
        if kind == 0:
            return self.spread()
        if kind == 1:  # sparse links
            return self.rows(random.dirichlet(np.full(size, random.uniform(0.03, 0.3)), size))
        if kind == 2:  # content
            vectors = random.normal(size=(2, size, int(random.integers(4, 17))))
            one, other = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
            return self.rows(np.exp(random.uniform(2.0, 6.0) * one @ other.T))
        # A far diagonal, and anything beyond the edge.
        offset = int(random.integers(3, max(4, size // 2)))
        sign = -1 if self.causal else int(random.choice([-1, 1]))
        share = random.uniform(0.5, 0.9)
        return self.rows(share * np.eye(size, k=sign * offset) + (1 - share) * self.spread())
