"""Importance of each word for a decision: gradients, leave-one-out, rollout, scores from a file or of another class."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

from attention_probing.datamodules.batches import TextBatch
from attention_probing.fidelity.classified import ClassifiedBatch, logits_under, passes, select_texts, shorten_texts
from attention_probing.metrics.distributions import tvd
from attention_probing.models import TransformerClassifier
from attention_probing.models.integrated_gradients import integrate_gradients
from attention_probing.results.errors import UserError, check_names, near

RANKINGS = (
    "random",
    "attention",
    "attention_norm",
    "attention_gradient",
    "attention_times_gradient",
    "leave_one_out",
    "integrated_gradients",
)
"""Rankings of positions that tests use by default. Serrano & Smith (2019) rank by `attention_gradient`, ∂p/∂α, and by
`attention_times_gradient`, α ∂p/∂α. `attention_norm`, the norm of what attention adds, follows Kobayashi et al.
(2020)."""

MEASURES = ("input_x_gradient", "gradient_norm", "integrated_gradients", "leave_one_out")
"""Measures to compare attention with. Jain & Wallace (2019) call `input_x_gradient` gradient."""
FILE = "file:"
"""Beginning of a ranking that is read from a file; see `fidelity.explanations`."""
PLANTED = "planted"
"""Oracle for data with a planted shortcut: the planted words first, all in random order."""
OF_LAYERS = ("rollout",)
"""Rankings and measures that read all layers of a transformer; no test uses them by default."""
KNOWN: tuple[str, ...] = tuple(dict.fromkeys((*RANKINGS, *MEASURES, *OF_LAYERS, PLANTED)))
"""Rankings that are computed here; `file:PATH` reads others (`fidelity.explanations`), an `Explainer` computes them."""

READ_ONCE_MORE = {"attention_norm", "attention_gradient", "attention_times_gradient"}
"""Rankings that classify each text once more at most, with its own attention."""

POINTS = 50
"""Points on the path of integrated gradients."""
TOKENS = 1024  # most tokens of a pass of integrated gradients, padding included; larger passes leave the cache of a CPU


class Explainer(ABC):
    """Base class of user-defined rankings of words.

    The options `rankings` and `saliencies` of the tests take its class path and arguments in place of a name. A test
    asks it once for each batch of texts.

    Attributes:
        name: Name in columns, scores and tables; no other ranking of the test may have it.
    """

    name: str

    @abstractmethod
    def scores(self, classified: ClassifiedBatch) -> Tensor:
        """Return the importance of each position, `[batch, positions]`; the highest is the first of the ranking.

        Scores outside `classified.mask` do not matter. The scores of a text must not depend on its batch.

        Args:
            classified: The texts, with attention, output and decisions of a classifier
                (`checkpoint.model`, whose parameters are frozen).
        """


@dataclass(frozen=True, eq=False)
class AttentionSaliency:
    """Importance of each position by its attention weights, their gradients, and what they add.

    The hidden states that attention averages are held fixed. Measures are computed when they are first used.

    Attributes:
        classified: The texts, with the decisions of a classifier.
    """

    classified: ClassifiedBatch

    @property
    def attention(self) -> Tensor:
        """Attention, averaged over the heads, `[batch, positions]`."""
        return self.classified.attention

    @cached_property
    def _attention_gradients(self) -> Tensor:
        """∂p/∂α `[heads, batch, positions]` with fixed hidden states, 0 outside the mask."""
        weights = self.classified.weights.detach().requires_grad_()
        gradients = decision_gradient(self.classified, logits_under(self.classified, weights), weights)
        return gradients.masked_fill(~self.classified.mask, 0)

    @cached_property
    def head_norms(self) -> Tensor:
        """Norm of what each head's attention adds, `[heads, batch, positions]` (Kobayashi et al. 2020, §3).

        In a transformer it is ‖α v W_O‖. In other classifiers it is ‖α ∂logits/∂α‖ over the classes: where the
        logits are linear in the weights, as W Σ α h, this is ‖α W h‖. The states that attention averages are
        held fixed. The norm is 0 outside the mask.
        """
        classified = self.classified
        value_norms = getattr(classified.checkpoint.model, "value_norms", None)
        if value_norms is not None:
            written = torch.stack([value_norms(classified.output, name) for name in classified.names])
            return (classified.weights * written).masked_fill(~classified.mask, 0)
        weights = classified.weights.detach().requires_grad_()
        logits = logits_under(classified, weights).sum(0)
        gradients = []
        for logit in logits:
            (gradient,) = torch.autograd.grad(logit, weights, retain_graph=True)
            gradients.append(gradient)
        norms = weights.detach() * torch.stack(gradients).square().sum(0).sqrt()
        return norms.masked_fill(~classified.mask, 0)

    @property
    def attention_norm(self) -> Tensor:
        """Norm of what attention adds, `[batch, positions]`: the sum of `head_norms` over the heads."""
        return self.head_norms.sum(0)

    @cached_property
    def attention_gradient(self) -> Tensor:
        """Gradient ∂p/∂α of the probability p of the predicted class by attention, `[batch, positions]`.

        The gradients of all heads are summed (Serrano & Smith 2019, §5). The hidden states that
        attention averages are held fixed. The gradient is 0 outside the mask.
        """
        return self._attention_gradients.sum(0)

    @cached_property
    def attention_times_gradient(self) -> Tensor:
        """Attention times its gradient, α ∂p/∂α, `[batch, positions]`.

        p is the probability of the predicted class. The products of all heads are summed (Serrano &
        Smith 2019, §5). The hidden states that attention averages are held fixed. The product is 0
        outside the mask.
        """
        return (self.classified.weights.detach() * self._attention_gradients).sum(0)

    @cached_property
    def rollout(self) -> Tensor:
        """Attention rollout from the position of the decision, `[batch, positions]` (Abnar & Zuidema 2020, §3).

        It is a row of the product, over all layers, of (mean of the heads + I)/2; the tested levels do not matter.

        Raises:
            UserError: The classifier is no transformer.
        """
        checkpoint = self.classified.checkpoint
        if not isinstance(checkpoint.model, TransformerClassifier):
            raise UserError(
                f"The ranking rollout multiplies the attention of all layers of a transformer, which {checkpoint.name} "
                "does not have. Leave it out of all `rankings` and `saliencies`, or test a TransformerClassifier."
            )
        return self.classified.to_positions(checkpoint.model.rollout(self.classified.output))


@dataclass(frozen=True, eq=False)
class Saliency:
    """Importance of each position for the decision, by several measures, for a batch of texts.

    A measure is `[batch, positions]`, and is computed when it is first used. Gradients with respect
    to embedded tokens, and integrated gradients, are summed over the tokens of a position. These
    measures, and leave-one-out, are 0 at positions without a word.

    In the formulas of the measures, p is the probability of the class predicted for the unchanged
    text, e an embedded token and α an attention weight.

    Attributes:
        classified: The texts, with the decisions of a classifier.
        files: Rankings that were read from files, by name (`file:PATH`).
        points: Number of points on the path of integrated gradients.
        seconds: Wall time of each ranking and measure computed so far, by name, without the pass that classifies the
            texts. Work that several share is counted for the first that needs it.
    """

    classified: ClassifiedBatch
    files: Mapping[str, Explainer] = field(default_factory=dict)
    points: int = POINTS
    seconds: dict[str, float] = field(default_factory=dict)
    _of_explainers: dict[Explainer, Tensor] = field(default_factory=dict, init=False)

    @cached_property
    def of_attention(self) -> AttentionSaliency:
        """Measures of attention weights."""
        return AttentionSaliency(self.classified)

    @cached_property
    def _word_gradients(self) -> tuple[Tensor, Tensor]:
        """Embedded tokens, and ∂p/∂e with fixed attention: both `[batch, time, size]`."""
        output = self.classified.output
        embedded = output.embedded.detach().requires_grad_()
        fixed = {name: level.weights.detach() for name, level in output.levels.items()}
        logits = self.classified.checkpoint.model(self.classified.batch, embedded=embedded, imposed=fixed).logits
        return embedded.detach(), decision_gradient(self.classified, logits, embedded)

    @cached_property
    def input_x_gradient(self) -> Tensor:
        """Input × gradient, `|Σ_d e_d ∂p/∂e_d|`, with fixed attention, `[batch, positions]`.

        e is an embedded token, p the probability of the predicted class. Jain & Wallace (2019, §4.1) and
        their code call this measure gradient.
        """
        embedded, gradients = self._word_gradients
        return self.classified.to_positions((embedded * gradients).sum(-1)).abs()

    @cached_property
    def gradient_norm(self) -> Tensor:
        """Norm of the gradient, `‖∂p/∂e‖₂`, with fixed attention, `[batch, positions]`.

        e is an embedded token, p the probability of the predicted class.
        """
        _, gradients = self._word_gradients
        return self.classified.to_positions(gradients.norm(dim=-1))

    @property
    def integrated_gradients(self) -> Tensor:
        """Integrated gradients of the log-odds (Sundararajan et al. 2017), `[batch, positions]`.

        Positive values support the decision. The log-odds, log(p/(1 − p)) of the probability p of the
        predicted class, are used because p hardly changes over most of the path of a confident decision.
        Attention is recomputed at each point of the path. The baseline embeds every word as zeros, and
        keeps the embeddings of the delimiters.
        """
        return self._integrated[0]

    @property
    def incompleteness(self) -> Tensor:
        """Absolute error of the sum of the integrated gradients of each text, `[batch]`.

        It is |Σ integrated gradients − (log-odds of the text − log-odds of the baseline)|. Log-odds
        and baseline are those of `integrated_gradients`.
        """
        return self._integrated[1]

    @cached_property
    def _integrated(self) -> tuple[Tensor, Tensor]:
        classified = self.classified
        batch = classified.batch
        embedded = classified.output.embedded.detach()
        has_position = classified.token_to_position >= 0
        baselines = embedded.masked_fill(has_position[..., None], 0)
        values = embedded.new_zeros(embedded.shape[:2])
        errors = embedded.new_zeros(len(embedded))

        def log_odds(changed: Tensor, rows: Tensor, places: Tensor, texts: TextBatch) -> Tensor:
            logits: Tensor = classified.checkpoint.model(select_texts(texts, places), embedded=changed).logits
            chosen = classified.predicted[rows, None]
            others = logits.scatter(1, chosen, -torch.inf).logsumexp(1)
            classified.progress.advance(len(changed))
            return logits.gather(1, chosen).squeeze(1) - others

        for rows in passes(batch.lengths, TOKENS):
            texts = shorten_texts(batch, rows, batch.mask[rows], classified.vocabulary.pad)  # without needless padding
            time = texts.tokens.size(1)
            places = torch.arange(len(rows), device=rows.device)
            gradients, delta = integrate_gradients(
                partial(log_odds, texts=texts),
                embedded[rows, :time],
                baselines[rows, :time],
                rows,
                places,
                points=self.points,
            )
            values[rows, :time] = gradients.sum(-1)
            errors[rows] = delta.abs()
        return classified.to_positions(values), errors

    @cached_property
    def _left_out(self) -> tuple[Tensor, Tensor]:
        """Fall of p, and total variation distance of the output, without each position: both `[batch, positions]`."""
        classified = self.classified
        words = classified.words
        itself = torch.eye(words.size(1), dtype=torch.bool, device=words.device)[:, None]
        others = words & ~itself
        # A copy without the word of a position that has none is empty, and not read.
        without = classified.reread(others & words.T[..., None])  # [positions, batch, classes]
        falls = classified.confidence - classified.of_predicted(without)
        distances = tvd(classified.probabilities, without)
        return torch.where(words, falls.T, 0), torch.where(words, distances.T, 0)

    @property
    def leave_one_out(self) -> Tensor:
        """Decrease in the predicted class's probability without a position's words, `[batch, positions]`.

        The words are removed, and the rest of the text is encoded again. Positive values support the
        decision. The value is 0 at positions without a word.
        """
        return self._left_out[0]

    @property
    def leave_one_out_tvd(self) -> Tensor:
        """Total variation distance between the outputs with and without a position's words, `[batch, positions]`.

        See Jain & Wallace (2019, §4.1).
        """
        return self._left_out[1]

    @property
    def planted(self) -> Tensor:
        """Random numbers below 1, plus 1 at positions with a word of the rationale, `[batch, positions]`.

        On planted data this ranks the planted words first. If one of them was cut from a text, the others come first.
        """
        marked = self.classified.to_positions(self.classified.batch.rationale.float()) > 0
        return marked + self.classified.noise(PLANTED, 1)[0]

    def signed_values(self, measure: str | Explainer) -> Tensor:
        """Return a measure with its sign, `[batch, positions]`.

        Negative values speak against the decision; `input_x_gradient` and `gradient_norm` are never
        negative.

        Args:
            measure: Name of the measure, `file:PATH`, or an object.

        Raises:
            UserError: The scores of an object have another shape, or are no finite numbers where attention may be.
        """
        if isinstance(measure, Explainer):
            return self._scores_of(measure)
        if measure in self.files:
            return self._scores_of(self.files[measure])
        source = self.of_attention if hasattr(AttentionSaliency, measure) else self
        return _measure_time(self, measure, lambda: getattr(source, measure))

    def _scores_of(self, explainer: Explainer) -> Tensor:
        """Return the scores of an object, which is asked once."""
        if explainer not in self._of_explainers:
            scores = _measure_time(self, explainer.name, lambda: _check_scores(explainer, self.classified))
            self._of_explainers[explainer] = scores
        return self._of_explainers[explainer]

    def magnitude(self, measure: str | Explainer) -> Tensor:
        """Return the absolute value of a measure, `[batch, positions]`.

        For `leave_one_out` it is `leave_one_out_tvd`, not the absolute decrease in probability.

        Args:
            measure: Name of the measure, `file:PATH`, or an object.
        """
        signed = self.signed_values(measure)
        if measure == "leave_one_out":
            return self.leave_one_out_tvd
        return signed.abs()

    def rankings(self, ranking: str | Explainer, draws: int) -> Tensor:
        """Return sort keys that rank the positions, `[orders, batch, positions]`; the highest key comes first.

        Keys are -inf outside the mask.

        Args:
            ranking: Name of the ranking: `random`, `attention`, a measure, or `file:PATH`; or an object.
            draws: Number of orders of `random`; every other ranking has one order.
        """
        if ranking == "random":
            keys = _measure_time(self, ranking, lambda: self.classified.noise("ranking", draws))
        else:
            keys = self.signed_values(ranking)[None]
        return keys.masked_fill(~self.classified.mask, -torch.inf)


def _measure_time(saliency: Saliency, name: str, compute: Callable[[], Tensor]) -> Tensor:
    """Compute a measure; the first time, keep its seconds."""
    if name in saliency.seconds:
        return compute()
    device = saliency.classified.mask.device
    start = _now(device)
    values = compute()
    saliency.seconds[name] = _now(device) - start
    return values


def _now(device: torch.device) -> float:
    """Return the time in seconds when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def decision_gradient(classified: ClassifiedBatch, logits: Tensor, inputs: Tensor) -> Tensor:
    """Return the gradient of the probability of the predicted class with respect to `inputs`.

    Args:
        classified: The unchanged texts, with their predicted classes.
        logits: Logits computed from `inputs`, `[batch, classes]`.
        inputs: Tensor that requires gradients, for instance embedded tokens.

    Returns:
        The gradient, with the shape of `inputs`.
    """
    # In double precision: in single, the gradient of a nearly certain decision would be exactly 0.
    probabilities = classified.of_predicted(logits.double().softmax(-1))
    # Texts do not depend on each other, so the gradient of the sum is the gradient of each.
    (gradient,) = torch.autograd.grad(probabilities.sum(), inputs)
    return gradient


def _check_scores(explainer: Explainer, classified: ClassifiedBatch) -> Tensor:
    """Return the scores of an object, without gradients, in double precision, and 0 outside the mask."""
    mask = classified.mask
    scores = explainer.scores(classified).detach()
    name = f"the ranking {explainer.name} ({type(explainer).__name__}.scores)"
    if scores.shape != mask.shape:
        raise UserError(
            f"{name} has the shape {list(scores.shape)}, but must be [batch, positions] = {list(mask.shape)}. "
            "`classified.to_positions` sums numbers of tokens."
        )
    scores = scores.to(mask.device).double().masked_fill(~mask, 0)  # whole numbers have no -inf
    not_finite = (~scores.isfinite()).nonzero().tolist()
    if not_finite:
        row, position = not_finite[0]
        text = int(classified.batch.index[row])
        raise UserError(f"{name} is not a finite number at position {position} of text {text} (both from 0) of test.")
    return scores


def is_ranking(name: str | Explainer) -> bool:
    """Return True for a ranking that `Saliency` computes; some tests have further rankings."""
    return isinstance(name, Explainer) or name.startswith(FILE) or name in KNOWN


def count_orders(rankings: Mapping[str, str | Explainer], draws: int) -> int:
    """Return the number of orders of rankings: `draws` of `random`, and one of every other ranking."""
    return len(rankings) + (draws - 1 if "random" in rankings else 0)


def count_copies(rankings: Mapping[str, str | Explainer], classified: ClassifiedBatch) -> float:
    """Return the most changed copies of texts that are classified for rankings; infinite if objects compute some."""
    if any(isinstance(ranking, Explainer) for ranking in rankings.values()):
        return math.inf  # its scores may need any number of copies
    words = classified.words.sum(1)
    copies = len(words) * len(READ_ONCE_MORE & rankings.keys())
    if "leave_one_out" in rankings:
        copies += int(words.sum())
    if "integrated_gradients" in rankings:
        copies += (POINTS + 2) * len(words)  # with both ends, whose difference the sum is compared with
    return copies


def name_of(ranking: str | Explainer) -> str:
    """Return the name of a ranking in columns and scores; for a file, the stem of its name."""
    if isinstance(ranking, Explainer):
        return ranking.name
    return Path(ranking.removeprefix(FILE)).stem if ranking.startswith(FILE) else ranking


def check_rankings(
    option: str, rankings: Sequence[str | Explainer], known: Sequence[str] = KNOWN
) -> dict[str, str | Explainer]:
    """Check some rankings, and return them by their names in columns and scores (see `name_of`).

    Args:
        option: Name of the option that lists the rankings, for messages.
        rankings: Known rankings, `file:PATH`, or objects.
        known: Rankings that are computed here.

    Raises:
        UserError: A ranking is unknown, two have the same name, or there is none.
    """
    for ranking in rankings:
        if isinstance(ranking, str) and not ranking.startswith(FILE) and ranking not in known:
            raise UserError(
                f"{option}: {ranking!r} is not a ranking{near(ranking, known)}. The rankings are {', '.join(known)}, "
                f"{FILE}PATH for scores from a file, and {{class_path: …}} for a class of your own."
            )
    names = [name_of(ranking) for ranking in rankings]
    check_names(option, names)
    return dict(zip(names, rankings, strict=True))


def divide_among(rankings: Mapping[str, Tensor], values: Tensor) -> dict[str, Tensor]:
    """Divide values of the orders of all rankings among the rankings, each `[orders, batch]`.

    Args:
        rankings: Sort keys of the orders of each ranking, `[orders, batch, positions]`, by name.
        values: Values of each text in all orders of all rankings, one ranking after another, `[orders, batch]`.
    """
    sizes = [len(orders) for orders in rankings.values()]
    parts = torch.split(values, sizes)
    return dict(zip(rankings, parts, strict=True))


def mean_over_orders(rankings: Mapping[str, Tensor], measures: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the columns `<ranking>.<measure>`: the mean of a measure over the orders of each ranking, `[batch]`.

    Args:
        rankings: As in `divide_among`.
        measures: Values of each text in all orders of all rankings, `[orders, batch]`, by name.
    """
    columns = {}
    for measure, values in measures.items():
        for ranking, values_of_ranking in divide_among(rankings, values).items():
            columns[f"{ranking}.{measure}"] = values_of_ranking.mean(0)
    return columns
