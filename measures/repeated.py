"""Roles of decoder heads: on random tokens that are repeated once, and in generated text.

The scores on repeated tokens are defined as in TransformerLens's `detect_head`. Induction heads: Elhage et al. (2021),
Olsson et al. (2022).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from attention_probing.attention import Encoder
from attention_probing.measures.by_head import HeadMeans, best_audit, best_head, head_rows
from attention_probing.measures.contract import MapMeasure
from attention_probing.metrics.distributions import divided_by_sums
from attention_probing.metrics.moments import Means
from attention_probing.results import Estimate, Figure, Finding, Result, Table, Unit, fill_sentence, format_estimate
from attention_probing.results.errors import UserError
from attention_probing.results.heads import head_map, head_name
from attention_probing.results.options import Several, checked

REPEATED_ROLES = ("previous", "duplicate", "induction")
ROLE_SCORES = (*REPEATED_ROLES, *(f"{role}_abs" for role in REPEATED_ROLES))

SEQUENCES = 50
_BATCH = 10  # sequences of one pass


def role_patterns(tokens: Tensor) -> Tensor:
    """Return the ideal attention of a head of each of `REPEATED_ROLES` on some token sequences.

    A previous-token head attends to the token before. A duplicate-token head attends to all earlier
    occurrences of the same token. An induction head attends to the token after each of these occurrences.

    Args:
        tokens: Token ids, int64 `[batch, tokens]`.

    Returns:
        Float32 `[batch, roles, from, to]`, 1 where the head attends, else 0.
    """
    length = tokens.size(1)
    previous = torch.ones(length, length, device=tokens.device).tril(-1).triu(-1).expand(len(tokens), -1, -1)
    duplicate = (tokens[:, :, None] == tokens[:, None, :]).float().tril(-1)
    induction = torch.nn.functional.pad(duplicate[:, :, :-1], (1, 0))
    return torch.stack([previous, duplicate, induction], 1)


def role_scores(weights: Tensor, patterns: Tensor) -> Tensor:
    """Return two scores of how well each attention head fits the pattern of each role.

    Args:
        weights: Attention weights `[batch, heads, from, to]`.
        patterns: Patterns from `role_patterns`, `[batch, roles, from, to]`.

    Returns:
        Float64 `[batch, heads, scores]`, in the order of `ROLE_SCORES`. The score `<role>` is the share of the
        attention that falls on the pattern, 0 to 1. The score `<role>_abs` is 1 − Σ |weights − pattern|
        with the sum over a row, averaged over rows, from −k to 1, where k is the largest number of tokens in the
        pattern of a row.
    """
    weights = weights.double()[:, :, None]
    patterns = patterns.double()[:, None]
    on_pattern = (weights * patterns).sum((-2, -1)) / weights.sum((-2, -1))
    distance = (weights - patterns).abs().sum(-1).mean(-1)
    return torch.cat([on_pattern, 1 - distance], -1)


class RepeatedSequences(MapMeasure):
    """Scores of every attention head as a previous-token, a duplicate-token and an induction head.

    The texts of the data are not read: each input is a random sequence of ordinary tokens, followed by the
    same sequence. Inputs begin with a start delimiter if the tokenizer writes one. Only rows of
    the second copy are scored. Each of them has a token to attend to in every role, so a perfect head has a score of
    1. TransformerLens's `detect_head` averages over all rows, and a perfect induction head has about .5 there. A score
    is left out if it can only be 0, for instance because the attention window is shorter than the sequence.

    Args:
        length: Number of tokens of each sequence before it is repeated, at least 2.

    Raises:
        UserError: An option is out of range, or the input is longer than the encoder allows.
    """

    experiment = "repeated"
    quantities = ("attention",)  # computed in passes of its own

    @checked
    def __init__(self, length: Several = 25) -> None:
        super().__init__()
        self.length = length

    def begin(self) -> None:
        """Run the encoder on the sequences and collect the scores.

        The processes of a distributed run divide the batches among them. The batches are the same for
        any number of processes, and so are the sums.
        """
        encoder = self.encoder
        sequences = self.tokens(encoder)
        # A token that is drawn twice has several tokens in its pattern, and can be missed by more than 1.
        tokens_in_patterns = role_patterns(sequences)[..., -self.length :, :].sum(-1)
        most_of_roles = tokens_in_patterns.amax((0, 2)).clamp(min=1).tolist()
        lowest = [0.0] * len(REPEATED_ROLES)
        lowest += [-float(most) for most in most_of_roles]
        self.numbers = HeadMeans(encoder, dict.fromkeys(ROLE_SCORES, "fraction"), (lowest, 1))
        uniform = self._uniform_scores(sequences)  # [sequences, layers, roles]
        self._uniform = uniform.where(uniform != 0, torch.nan).nanmean(0)
        batches = torch.split(torch.arange(len(sequences)), _BATCH)[self.ranks.rank :: self.ranks.world]
        if not batches:
            return
        scores = [self._scores(sequences[batch]) for batch in batches]
        for scores_of_layer in torch.cat(scores, 1):
            self.numbers.add(scores_of_layer)
        numbers = torch.cat(batches)  # of the sequences of this process
        self.numbers.close(numbers % 2, possible=uniform[numbers].repeat(1, 1, 2))

    def _uniform_scores(self, sequences: Tensor) -> Tensor:
        """Return the scores of uniform attention in each layer, `[sequences, layers, roles]`."""
        copy = slice(-self.length, None)
        # One row stands for all: no input has padding.
        masks, mask_of_layer = self.encoder.allowed(torch.ones_like(sequences[:1], dtype=torch.bool))
        uniform = masks.double() / masks.sum(-1, keepdim=True)
        uniform = uniform[..., copy, :]
        scores_of_masks = []
        for tokens in torch.split(sequences, 1):
            patterns = role_patterns(tokens)[..., copy, :]
            scores_of_masks.append(role_scores(uniform, patterns)[0])
        return torch.stack(scores_of_masks)[:, mask_of_layer, : len(REPEATED_ROLES)].cpu()

    def _scores(self, tokens: Tensor) -> Tensor:
        """Return the scores of all heads on some sequences, `[layers, sequences, heads, scores]`."""
        encoder = self.encoder
        copy = slice(-self.length, None)
        patterns = role_patterns(tokens)[..., copy, :]
        scores: list[Tensor] = []

        def receive(_: int, weights: Tensor) -> None:
            if encoder.has_sinks:
                weights = divided_by_sums(weights)
            scores.append(role_scores(weights[..., copy, :], patterns).cpu())

        inputs = encoder.inputs(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens))
        encoder.capture(inputs, receive, frozenset(range(encoder.layers)))
        return torch.stack(scores)

    def tokens(self, encoder: Encoder) -> Tensor:
        """Return the repeated sequences, int64 `[sequences, tokens]`, on the device of the encoder.

        `tokens` is twice the length of a sequence, plus one if there is a start delimiter.

        Raises:
            UserError: The sequences are longer than the encoder allows.
        """
        drawn = np.random.default_rng(self.seed).choice(encoder.ordinary, (SEQUENCES, self.length))
        parts = [drawn, drawn]
        first = encoder.tokenizer("a")["input_ids"][0]
        has_start = first in encoder.tokenizer.all_special_ids
        if has_start:
            parts.insert(0, np.full((SEQUENCES, 1), first))
        tokens = np.concatenate(parts, axis=1).astype(np.int64)
        if tokens.shape[1] > encoder.max_length:
            raise UserError(
                f"{type(self).__name__}: {self.length} tokens and their repetition make an input of {tokens.shape[1]} "
                f"tokens, but {encoder.source.spec.name} reads at most {encoder.max_length}. Give a `length` of at "
                f"most {(encoder.max_length - has_start) // 2}."
            )
        return torch.from_numpy(tokens).to(encoder.device)

    def by_head(self) -> Mapping[str, Means]:
        """Return the share of each head's attention that falls on the pattern of each role.

        The roles, which are the keys, are `repeated_previous` (previous token), `duplicate` and
        `induction`. The value is `Means` over the sequences, `[2, layers, heads]`: group 0 has the
        sequences with an even index, group 1 those with an odd index.
        """
        means = self.numbers.by_head()
        return {
            "repeated_previous": means["previous"],
            "duplicate": means["duplicate"],
            "induction": means["induction"],
        }

    def result(self) -> Result:
        """Return the scores of all heads, and the best head of each role beside uniform attention.

        The table `repeated_roles` has the columns `role`, `head`, `score` with its interval `low` and `high`, which
        holds for all heads at once and so for the best one, and `uniform`: the score of a head of the same layer that
        attends alike to all tokens that it may attend to. A role that no head can have is left out. The table
        `repeated` has a row for each head.
        """
        scores = self.numbers.over()
        at_once = self.numbers.over_at_once()
        best: dict[str, tuple[tuple[int, int], Estimate]] = {}
        rows = []
        figures: dict[str, Figure] = {}
        parts = []
        for number, role in enumerate(REPEATED_ROLES):
            if not scores[role].inputs.any():
                continue
            place, estimate = best_head(at_once[role])
            best[role] = (place, estimate)
            head = head_name(*place)
            uniform = float(self._uniform[place[0], number])
            low, high = estimate.interval
            rows.append(
                {"role": role, "head": head, "score": estimate.value, "low": low, "high": high, "uniform": uniform}
            )
            title = f"{role.capitalize()} heads on repeated tokens"
            figures[f"repeated_{role}"] = head_map(title, scores[role].value, marked=place, value_label="mass on it")
            parts.append(f"{role} token {format_estimate(estimate)} ({head}, uniform {100 * uniform:.1f} %)")
        frame = pd.DataFrame(rows, columns=["role", "head", "score", "low", "high", "uniform"])
        units: dict[str, Unit] = {"score": "fraction", "uniform": "fraction"}
        answer = f"on {SEQUENCES} repeated sequences the best heads, chosen on them, attend to the {', '.join(parts)}"
        return Result(
            experiment=self.experiment,
            scores={f"{self.experiment}.{role}": estimate for role, (_, estimate) in best.items()},
            headline=[f"{self.experiment}.{role}" for role in best],
            answer=fill_sentence(answer, {}),
            finding=_finding(best),
            tables={
                "repeated_roles": Table(frame, units, "score", ["role", "head", "score", "uniform"]),
                "repeated": Table(head_rows(scores), self.numbers.units),
            },
            figures=figures,
            audit={"sequences": SEQUENCES, "tokens": self.length, **best_audit(best)},
        )


def _finding(best: Mapping[str, object]) -> Finding | None:
    """Return the last of the roles that were measured, mostly induction; None without any."""
    if not best:
        return None
    role = list(best)[-1]
    return Finding(f"{RepeatedSequences.experiment}.{role}", f"attention of the best head to the {role} token")


def lookback_ratio(attention: xr.DataArray) -> xr.DataArray:
    """Return how much each head looks at the prompt rather than at what it has generated (Chuang et al. 2024, §2.1).

    It is c / (c + g), with c the mean weight of the tokens of the prompt and g that of the generated tokens before.

    Args:
        attention: Attention of generated tokens, from `Encoder.generated`.

    Returns:
        `[layer, head, from]`, 0 to 1; nan for the first token, before which nothing is generated.
    """
    is_generated = attention["generated"]
    before = xr.DataArray(np.arange(attention.sizes["from"]), dims="from")  # number of tokens generated before each
    to_prompt = attention.where(~is_generated, 0).sum("to") / int((~is_generated).sum())
    to_generated = attention.where(is_generated, 0).sum("to") / before.where(before > 0)
    return (to_prompt / (to_prompt + to_generated)).transpose("layer", "head", "from")


def retrieval_scores(attention: xr.DataArray, start: int, end: int) -> xr.DataArray:
    """Return the share of a passage of the prompt that each head copies into the text (Wu et al. 2024, §2).

    A head copies a token of the passage if it attends most to this token, of all tokens, when the same token is
    generated. A token that is copied several times counts once.

    Args:
        attention: Attention of generated tokens, from `Encoder.generated`.
        start: 0-based position in the prompt of the first token of the passage, the needle.
        end: Position after its last token.

    Returns:
        `[layer, head]`, 0 to 1.

    Raises:
        IndexError: The passage is empty, or not in the prompt.
    """
    prompt = int((~attention["generated"]).sum())
    if not 0 <= start < end <= prompt:
        raise IndexError(f"The passage from {start} to {end} is not inside the prompt, which has {prompt} tokens.")
    most = attention.argmax("to")
    tokens = attention["to"].to_numpy()
    same = tokens[most.to_numpy()] == attention["from"].to_numpy()
    places = most.where((most >= start) & (most < end) & same, -1).to_numpy()
    copied = (places[..., None] == np.arange(start, end)).any(2)  # [layer, head, passage]
    coordinates = {"layer": attention["layer"], "head": attention["head"]}
    return xr.DataArray(copied.mean(-1), coordinates, ("layer", "head"))
