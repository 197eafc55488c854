"""Previous-token, duplicate-token and induction heads, on random tokens that are repeated once.

The scores are those of TransformerLens's `detect_head`, which were read in its source and are computed here anew.
Induction heads are those of Elhage et al. (2021) and Olsson et al. (2022).
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from analysis.base import Analysis
from analysis.tables import best_head, head_map, head_rows, name_of
from attention import Encoder
from datamodules import TextDataModule
from metrics.moments import Means, Moments
from processes.ranks import run_seed
from results import Result, Table
from results.errors import UserError, check_numbers, check_values

ROLES = ("previous", "duplicate", "induction")
MEASURES: tuple[Literal["mul"], Literal["abs"]] = ("mul", "abs")

_BATCH = 10  # sequences of one pass


def role_patterns(tokens: Tensor) -> Tensor:
    """Where a perfect head of each of `ROLES` looks: float32 `[batch, roles, from, to]` of int64 `[batch, tokens]`.

    A previous-token head looks at the token before; a duplicate-token head at all earlier tokens that equal this one;
    an induction head at the tokens that follow those.
    """
    length = tokens.size(1)
    previous = torch.ones(length, length, device=tokens.device).tril(-1).triu(-1).expand(len(tokens), -1, -1)
    duplicate = (tokens[:, :, None] == tokens[:, None, :]).float().tril(-1)
    induction = torch.nn.functional.pad(duplicate[:, :, :-1], (1, 0))
    return torch.stack([previous, duplicate, induction], 1)


def role_scores(weights: Tensor, patterns: Tensor) -> Tensor:
    """How well heads fit patterns.

    Args:
        weights: `[batch, heads, from, to]`.
        patterns: `[batch, roles, from, to]`.

    Returns:
        Float64 `[batch, heads, roles, measures]`: `mul` is the mass on the pattern as a share of all mass, 0–1; `abs`
        is 1 less the mean over rows of Σ |weights − pattern|, from −1 to 1.
    """
    weights, patterns = weights.double()[:, :, None], patterns.double()[:, None]
    on_pattern = (weights * patterns).sum((-2, -1)) / weights.sum((-2, -1))
    apart = (weights - patterns).abs().sum(-1).mean(-1)
    return torch.stack([on_pattern, 1 - apart], -1)


class RepeatedSequences(Analysis):
    """Scores of every head as a previous-token, a duplicate-token and an induction head; the texts are not read.

    Each input is a random sequence of ordinary tokens followed by itself. An encoder that is not causal can also look
    at the second copy from the first one, so its scores are lower.

    Args:
        sequences: how many are drawn.
        length: tokens of each, before it is repeated.
        start: whether the start delimiter stands in front: where the tokenizer writes one, always (as in
            TransformerLens), or never.
        seed: of the drawing; None for that of the run.

    Raises:
        UserError: there are no two sequences of two tokens, they do not fit the encoder, or it has no start
            delimiter and `start` is `always`.
    """

    name = "repeated"

    def __init__(
        self,
        sequences: int = 50,
        length: int = 25,
        start: Literal["tokenizer", "always", "never"] = "tokenizer",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_values(self, start=start)
        check_numbers(self, least=2, sequences=sequences, length=length)
        check_numbers(self, least=0, seed=seed)
        self.sequences, self.length, self.start, self.seed = sequences, length, start, seed

    def begin(self, data: TextDataModule, encoder: Encoder) -> None:
        """Read the sequences; each process takes whole passes in turn, so that sums are the same on any number."""
        inputs = self.tokens(encoder)
        shape = encoder.layers, encoder.heads, len(ROLES), len(MEASURES)
        self._moments = Moments(2, shape, "fraction", bounds=([0.0, -1.0], 1))
        for tokens in torch.split(inputs, _BATCH)[data.ranks.rank :: data.ranks.world]:
            patterns = role_patterns(tokens)
            found: list[Tensor] = []

            def receive(_: int, weights: Tensor, patterns: Tensor = patterns, found: list[Tensor] = found) -> None:
                found.append(role_scores(weights, patterns).cpu())

            whole = torch.ones_like(tokens, dtype=torch.bool)
            encoder.capture(
                encoder.inputs(tokens, whole, torch.zeros_like(tokens)), receive, frozenset(range(encoder.layers))
            )
            self._moments.update(torch.arange(len(tokens)) % 2, torch.stack(found, 1))

    def tokens(self, encoder: Encoder) -> Tensor:
        """The sequences that are read, int64 `[sequences, tokens]`, on the device of the encoder."""
        drawn = np.random.default_rng(run_seed(self.seed)).choice(encoder.ordinary, (self.sequences, self.length))
        start = self._start(encoder)
        columns = [drawn, drawn] if start is None else [np.full((self.sequences, 1), start), drawn, drawn]
        tokens = np.concatenate(columns, axis=1).astype(np.int64)
        if tokens.shape[1] > encoder.max_length:
            raise UserError(
                f"{type(self).__name__}: {self.length} tokens and their repetition make an input of {tokens.shape[1]} "
                f"tokens, and {encoder.source.spec.name} takes {encoder.max_length}. Give a smaller `length`."
            )
        return torch.from_numpy(tokens).to(encoder.device)

    def _start(self, encoder: Encoder) -> int | None:
        tokenizer = encoder.tokenizer
        if self.start == "tokenizer":
            first = tokenizer("a")["input_ids"][0]
            return int(first) if first in tokenizer.all_special_ids else None
        if self.start == "never":
            return None
        known = [found for found in (tokenizer.bos_token_id, tokenizer.cls_token_id) if found is not None]
        if not known:
            raise UserError(
                f"{type(self).__name__}: {encoder.source.spec.name} has no start delimiter. Set `start` to tokenizer."
            )
        return int(known[0])

    def scores(self, measure: Literal["mul", "abs"] = "mul") -> Mapping[str, Means]:
        """The score of every head by role, means over sequences `[layers, heads]`."""
        found = self._moments.compute().at(MEASURES.index(measure))
        return {role: found.at(place) for place, role in enumerate(ROLES)}

    def by_head(self) -> Mapping[str, Means]:
        """The scores, as shares of all mass; the halves are of the sequences."""
        names = {"repeated_previous": "previous", "duplicate": "duplicate", "induction": "induction"}
        scores = self.scores()
        return {name: scores[role] for name, role in names.items()}

    def result(self, others: Mapping[str, Analysis]) -> Result:
        shares, apart = ({role: means.over() for role, means in self.scores(one).items()} for one in MEASURES)
        best = {role: best_head(share) for role, share in shares.items()}
        columns = {**shares, **{f"{role}_abs": found for role, found in apart.items()}}
        return Result(
            experiment=self.name,
            scores={f"{self.name}.{role}": estimate for role, (_, estimate) in best.items()},
            headline=[f"{self.name}.{role}" for role in best],
            tables={"repeated": Table(head_rows(columns), dict.fromkeys(columns, "fraction"))},
            figures={
                f"repeated_{role}": head_map(
                    f"{role.capitalize()} heads on repeated tokens", values, "mass on it", marked=best[role][0]
                )
                for role, values in ((role, share.value) for role, share in shares.items())
            },
            audit={
                "sequences": self.sequences,
                "tokens": self.length,
                "start": self.start,
                **{f"best_{role}": name_of(*place) for role, (place, _) in best.items()},
            },
        )
