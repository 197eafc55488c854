"""How much each word matters to a decision: gradients, integrated gradients, and leaving it out."""

from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
from captum.attr import IntegratedGradients
from torch import Tensor

from fidelity.edits import rows_of
from metrics.distributions import tvd

if TYPE_CHECKING:
    from fidelity.reading import Reading

Ranking = Literal["random", "attention", "gradient", "attention_gradient", "leave_one_out", "integrated_gradients"]
"""What slots can be ordered by. `gradient` is that of the decision with respect to the attention, as Serrano & Smith
(2019) rank by it."""
RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

Measure = Literal["gradient", "gradient_norm", "integrated_gradients", "leave_one_out"]
"""What attention can be compared with. `gradient` is Jain & Wallace's (2019), that is, gradient×input."""
MEASURES: tuple[Measure, ...] = get_args(Measure)

TOKENS = 8192
"""Most tokens of one pass of integrated gradients, padding included; but all texts of a batch go together."""


class Saliency:
    """What a decision hangs on, for the texts of a reading.

    Everything is about the probability p of the class that the whole text gets, is computed when it is first asked for,
    and is `[batch, slots]`: the tokens of a slot are summed. Slots without a word have 0.

    Args:
        reading: the texts.
        steps: points on the path of integrated gradients.
    """

    def __init__(self, reading: "Reading", steps: int = 50) -> None:
        self._reading = reading
        self._steps = steps

    @cached_property
    def _word_gradients(self) -> tuple[Tensor, Tensor]:
        """Embedded tokens, and ∂p/∂e with the attention held as it is: both `[batch, time, size]`."""
        output = self._reading.output
        embedded = output.embedded.detach().requires_grad_()
        held = {name: level.weights.detach() for name, level in output.levels.items()}
        logits = self._reading.model(self._reading.batch, embedded=embedded, imposed=held).logits
        return embedded.detach(), self._gradient_of_decision(logits, embedded)

    @cached_property
    def gradient(self) -> Tensor:
        """`|Σ_d e_d ∂p/∂e_d|`, attention held as it is: "gradient" in Jain & Wallace (2019), §4.1 and their code."""
        embedded, gradients = self._word_gradients
        return self._reading.over_slots((embedded * gradients).sum(-1)).abs()

    @cached_property
    def gradient_norm(self) -> Tensor:
        """`‖∂p/∂e‖₂`, attention held as it is."""
        _, gradients = self._word_gradients
        return self._reading.over_slots(gradients.norm(dim=-1))

    @property
    def integrated_gradients(self) -> Tensor:
        """Integrated gradients (Sundararajan et al. 2017), for the decision if positive; attention follows the input.

        They are those of the log-odds, log p/(1 − p): p itself hardly changes over most of the path of a text that is
        classified with confidence. The path begins where every word is embedded as zeros; delimiters stay as they are,
        as they do in `leave_one_out`. So the words share out what they change together.
        """
        return self._integrated[0]

    @property
    def incompleteness(self) -> Tensor:
        """`[batch]`: how far the sum of integrated gradients is from the log-odds less those of zeros, absolute."""
        return self._integrated[1]

    @cached_property
    def _integrated(self) -> tuple[Tensor, Tensor]:
        reading = self._reading
        embedded = reading.output.embedded.detach()
        rows = torch.arange(len(embedded), device=embedded.device)

        def log_odds(changed: Tensor, rows: Tensor) -> Tensor:  # several copies of each text
            logits: Tensor = reading.model(rows_of(reading.batch, rows), embedded=changed).logits
            chosen = reading.predicted[rows, None]
            others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
            return logits.gather(1, chosen).squeeze(1) - others

        found, delta = IntegratedGradients(log_odds).attribute(
            embedded,
            baselines=embedded.masked_fill((reading.units >= 0)[..., None], 0),
            additional_forward_args=rows,
            n_steps=self._steps,
            internal_batch_size=max(len(rows), TOKENS // embedded.size(1)),
            return_convergence_delta=True,
        )
        return reading.over_slots(found.detach().sum(-1)), delta.detach().abs()

    @cached_property
    def _without(self) -> Tensor:
        """Probabilities `[slots, batch, classes]` without the words of each slot; nan for a slot that has none."""
        words = self._reading.words
        others = words & ~torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None]
        # A copy of which nothing stays is not read.
        return self._reading.reread(others & words.T[..., None])

    @cached_property
    def leave_one_out(self) -> Tensor:
        """How much p falls when the slot is left out: for the decision if positive."""
        return self._of_words(self._reading.confidence - self._reading.of_predicted(self._without))

    @cached_property
    def leave_one_out_tvd(self) -> Tensor:
        """Total variation distance of the decision from that without the slot (Jain & Wallace 2019, §4.1)."""
        return self._of_words(tvd(self._reading.probabilities, self._without))

    def _of_words(self, by_slot: Tensor) -> Tensor:
        return torch.where(self._reading.words, by_slot.T, 0)

    @cached_property
    def _attention_gradients(self) -> Tensor:
        """∂p/∂α `[heads, batch, slots]`, hidden states held, 0 outside the mask."""
        weights = self._reading.weights.detach().requires_grad_()
        gradients = self._gradient_of_decision(self._reading.logits(weights), weights)
        return gradients.masked_fill(~self._reading.mask, 0)

    @cached_property
    def weight_gradient(self) -> Tensor:
        """∂p/∂α, summed over heads; of all slots that get weight (Serrano & Smith 2019, §5)."""
        return self._attention_gradients.sum(0)

    @cached_property
    def attention_gradient(self) -> Tensor:
        """α ∂p/∂α, summed over heads; of all slots that get weight (Serrano & Smith 2019, §5)."""
        return (self._reading.weights.detach() * self._attention_gradients).sum(0)

    def _gradient_of_decision(self, logits: Tensor, inputs: Tensor) -> Tensor:
        # In double precision: in single, a decision that is all but certain would have a gradient of exactly 0.
        probabilities = self._reading.of_predicted(logits.double().softmax(-1))
        # No text depends on another, so the gradient of the sum is that of each.
        (found,) = torch.autograd.grad(probabilities.sum(), inputs)
        return found

    def signed(self, measure: Measure) -> Tensor:
        """The measure itself; negative where a slot speaks against the decision, if the measure can tell."""
        match measure:
            case "gradient":
                return self.gradient
            case "gradient_norm":
                return self.gradient_norm
            case "integrated_gradients":
                return self.integrated_gradients
            case "leave_one_out":
                return self.leave_one_out

    def magnitude(self, measure: Measure) -> Tensor:
        """How much a slot matters by this measure, whichever way it speaks."""
        return self.leave_one_out_tvd if measure == "leave_one_out" else self.signed(measure).abs()

    def ranking(self, ranking: Ranking) -> Tensor:
        """What slots are ordered by, the highest first; -inf outside the mask. `random` is the first of its draws."""
        return self.rankings(ranking, 1)[0]

    def rankings(self, ranking: Ranking, draws: int) -> Tensor:
        """The same as `[draws, batch, slots]`: so many of `random`, and one of the others."""
        reading = self._reading
        match ranking:
            case "random":
                values = reading.noise("ranking", draws)
            case "attention":
                values = reading.attention[None]
            case "gradient":
                values = self.weight_gradient[None]
            case "attention_gradient":
                values = self.attention_gradient[None]
            case "leave_one_out":
                values = self.leave_one_out[None]
            case "integrated_gradients":
                values = self.integrated_gradients[None]
        return values.masked_fill(~reading.mask, -torch.inf)
