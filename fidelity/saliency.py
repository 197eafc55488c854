"""How much each word matters to a decision: gradients, integrated gradients, and leaving it out."""

from functools import cached_property
from typing import Literal, get_args

import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from fidelity.classified import ClassifiedBatch, select_texts
from metrics.distributions import tvd

Ranking = Literal[
    "random", "attention", "attention_gradient", "attention_times_gradient", "leave_one_out", "integrated_gradients"
]
"""What positions can be ordered by. Serrano & Smith (2019) rank by `attention_gradient`, ∂p/∂α, and by
`attention_times_gradient`, α ∂p/∂α."""
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

Measure = Literal["input_x_gradient", "gradient_norm", "integrated_gradients", "leave_one_out"]
"""What attention can be compared with. `input_x_gradient` is what Jain & Wallace (2019) call gradient."""
MEASURES: tuple[Measure, ...] = get_args(Measure)

TOKENS = 8192  # most of one pass of integrated gradients, padding included; but all texts of a batch go together


class Saliency:
    """Measures of how much each word matters to the decision, and rankings by them, for a batch of texts.

    All are about the probability p of the class that the whole text gets, are computed when first used, and are
    `[batch, positions]`: the tokens of a position are summed. Positions without a word have 0. Integrated gradients
    have `ig_steps` points on their path.
    """

    def __init__(self, classified: ClassifiedBatch, ig_steps: int = 50) -> None:
        self._classified, self._ig_steps = classified, ig_steps

    @cached_property
    def _word_gradients(self) -> tuple[Tensor, Tensor]:
        """Embedded tokens, and ∂p/∂e with the attention held as it is: both `[batch, time, size]`."""
        output = self._classified.output
        embedded = output.embedded.detach().requires_grad_()
        held = {name: level.weights.detach() for name, level in output.levels.items()}
        logits = self._classified.model(self._classified.batch, embedded=embedded, imposed=held).logits
        return embedded.detach(), self._gradient_of_decision(logits, embedded)

    @cached_property
    def input_x_gradient(self) -> Tensor:
        """`|Σ_d e_d ∂p/∂e_d|`, attention held as it is: "gradient" in Jain & Wallace (2019), §4.1 and their code."""
        embedded, gradients = self._word_gradients
        return self._classified.to_positions((embedded * gradients).sum(-1)).abs()

    @cached_property
    def gradient_norm(self) -> Tensor:
        """`‖∂p/∂e‖₂`, attention held as it is."""
        _, gradients = self._word_gradients
        return self._classified.to_positions(gradients.norm(dim=-1))

    @property
    def integrated_gradients(self) -> Tensor:
        """Integrated gradients (Sundararajan et al. 2017), for the decision if positive; attention follows the input.

        The function is the log-odds, log p/(1 − p), because p hardly changes over most of the path of a confident
        decision. In the baseline every word is embedded as zeros; delimiters stay, as in `leave_one_out`.
        """
        return self._integrated[0]

    @property
    def incompleteness(self) -> Tensor:
        """`[batch]`: absolute difference of the sum of integrated gradients and the log-odds above the baseline's."""
        return self._integrated[1]

    @cached_property
    def _integrated(self) -> tuple[Tensor, Tensor]:
        classified = self._classified
        embedded = classified.output.embedded.detach()
        rows = torch.arange(len(embedded), device=embedded.device)

        def log_odds(changed: Tensor, rows: Tensor) -> Tensor:  # several copies of each text
            logits: Tensor = classified.model(select_texts(classified.batch, rows), embedded=changed).logits
            chosen = classified.predicted[rows, None]
            others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
            return logits.gather(1, chosen).squeeze(1) - others

        found, delta = IntegratedGradients(log_odds).attribute(
            embedded,
            baselines=embedded.masked_fill((classified.token_to_position >= 0)[..., None], 0),
            additional_forward_args=rows,
            n_steps=self._ig_steps,
            internal_batch_size=max(len(rows), TOKENS // embedded.size(1)),
            return_convergence_delta=True,
        )
        return classified.to_positions(found.detach().sum(-1)), delta.detach().abs()

    @cached_property
    def _without(self) -> Tensor:
        """Probabilities `[positions, batch, classes]` without the words of each position; nan where it has none."""
        words = self._classified.words
        others = words & ~torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None]
        # A copy of which nothing stays is not read.
        return self._classified.reread(others & words.T[..., None])

    @cached_property
    def leave_one_out(self) -> Tensor:
        """How much p falls when the position is left out: for the decision if positive."""
        return self._of_words(self._classified.confidence - self._classified.of_predicted(self._without))

    @cached_property
    def leave_one_out_tvd(self) -> Tensor:
        """Total variation distance of the decision from that without the position (Jain & Wallace 2019, §4.1)."""
        return self._of_words(tvd(self._classified.probabilities, self._without))

    def _of_words(self, by_position: Tensor) -> Tensor:
        return torch.where(self._classified.words, by_position.T, 0)

    @cached_property
    def _attention_gradients(self) -> Tensor:
        """∂p/∂α `[heads, batch, positions]`, hidden states held, 0 outside the mask."""
        weights = self._classified.weights.detach().requires_grad_()
        gradients = self._gradient_of_decision(self._classified.logits(weights), weights)
        return gradients.masked_fill(~self._classified.mask, 0)

    @cached_property
    def attention_gradient(self) -> Tensor:
        """∂p/∂α, summed over heads; of all positions that get weight (Serrano & Smith 2019, §5)."""
        return self._attention_gradients.sum(0)

    @cached_property
    def attention_times_gradient(self) -> Tensor:
        """α ∂p/∂α, summed over heads; of all positions that get weight (Serrano & Smith 2019, §5)."""
        return (self._classified.weights.detach() * self._attention_gradients).sum(0)

    def _gradient_of_decision(self, logits: Tensor, inputs: Tensor) -> Tensor:
        # In double precision: in single, a decision that is all but certain would have a gradient of exactly 0.
        probabilities = self._classified.of_predicted(logits.double().softmax(-1))
        # No text depends on another, so the gradient of the sum is that of each.
        (found,) = torch.autograd.grad(probabilities.sum(), inputs)
        return found

    def signed(self, measure: Measure) -> Tensor:
        """The measure; negative where a position speaks against the decision, if the measure can tell."""
        values: Tensor = getattr(self, measure)
        return values

    def magnitude(self, measure: Measure) -> Tensor:
        """|measure|; of `leave_one_out` the total variation distance."""
        return self.leave_one_out_tvd if measure == "leave_one_out" else self.signed(measure).abs()

    def rankings(self, ranking: Ranking, draws: int) -> Tensor:
        """What positions are ordered by, `[orders, batch, positions]`, the highest first; -inf outside the mask.

        Of `random` there are as many orders as draws, of the others one.
        """
        if ranking == "random":
            values = self._classified.noise("ranking", draws)
        else:
            values = getattr(self._classified if ranking == "attention" else self, ranking)[None]
        return values.masked_fill(~self._classified.mask, -torch.inf)
