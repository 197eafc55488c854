"""Tasks on minimal pairs: the probabilities of both sentences by a decoder, or by a masked language model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attention_probing.attention.ablation import Ablation, Sources, partners_of_pairs
from attention_probing.attention.heads import Heads
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import PairBatch, PairSplit
from attention_probing.datamodules.batches import LengthBatches
from attention_probing.measures.task import (
    Task,
    at_least_float32,
    inputs_of_model,
    lacks_language_modelling,
    next_tokens,
)
from attention_probing.metrics.pairs import are_right, log_ratios
from attention_probing.metrics.statistics import Ratio, Statistic
from attention_probing.results import Flags, Floats, Integers, Unit, UserError
from attention_probing.results.errors import setting


class PairTask(Task):
    """Base of the tasks of giving the acceptable sentence of a minimal pair the higher probability.

    Warstadt et al. (2020, §4) define it. The outputs are the log-probabilities of both sentences, `[pairs, 2]`, the
    acceptable one first, and the gold value is the index of the pair. A tie counts as right (`are_right`).

    A further score is `pairs.log_ratio`, the mean of log p(acceptable) − log p(unacceptable) in nats. Unlike the
    accuracy it shows a change that turns no decision. Zhang and Nanda (2024, §6) recommend the difference of two logits
    for patching; it stands here between whole sentences, as the accuracy does.

    Args:
        split: The pairs, as tokens of an encoder whose files hold a head for language modelling.

    Attributes:
        pairs: The pairs.
        encoder: Encoder with its language-modelling head.

    Raises:
        UserError: The files hold no such head.
    """

    name = "minimal pairs"
    noun = "pairs"
    score = "pairs.accuracy"
    unit = "fraction"
    chance = 0.5
    width = 2

    def __init__(self, split: PairSplit) -> None:
        encoder = split.encoder
        reason = lacks_language_modelling(encoder)
        if reason is not None:
            raise UserError(
                f"{reason}, which minimal pairs need. Name a decoder (gpt2) or a masked language model "
                f"(bert-base-uncased) with a language-modelling head with {setting('encoder')}."
            )
        encoder.require_interface(type(self).__name__)
        assert encoder.language_model is not None
        self._split = split
        self.pairs = split.pairs
        self.encoder = encoder
        self._language_model = encoder.language_model
        self.model = self._language_model.base_model
        self.layers = encoder.layers
        self.heads = encoder.heads
        self.vocabulary = int(self._language_model.config.vocab_size)

    def statistic(self) -> Statistic:
        return _accuracy

    def further_statistics(self) -> Mapping[str, tuple[Statistic, Unit]]:
        return {"pairs.log_ratio": (_mean_log_ratio, "nats")}

    def groups(self, items: Integers) -> Mapping[str, Flags]:
        """Return the pairs of each field of grammar, bool `[pairs]`."""
        fields = np.array([self.pairs[item].field for item in items])
        return {str(field): fields == field for field in np.unique(fields)}

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        pairs = data.splits["test"]  # the only split, whatever `split` says
        order = np.random.default_rng(seed).permutation(len(pairs))
        count = int((pairs.texts[order].cumsum() <= most).sum())
        places = order[: max(count, 1)].tolist()
        batches = LengthBatches(pairs.lengths, items=places, shuffle=False, **pairs.bounds)
        return [self.inputs(pairs[items].to(self.encoder.device)) for items in batches]


_accuracy = Ratio(lambda values: (are_right(values[:, 1:]), np.ones(len(values))), share=True)

_mean_log_ratio = Ratio(lambda values: (log_ratios(values[:, 1:]), np.ones(len(values))))


def pair_task(split: PairSplit) -> PairTask:
    """Return the task of some pairs: `MaskedPairs` if a masked language model reads them, else `MinimalPairs`."""
    if split.masking is None:
        return MinimalPairs(split)
    return MaskedPairs(split)


def require_numbers(log_probabilities: Floats) -> None:
    """Raise a UserError if a log-probability is NaN.

    Args:
        log_probabilities: Of both sentences of each pair, `[pairs, 2]`.
    """
    undefined = int(np.isnan(log_probabilities).any(1).sum())
    if undefined:
        raise UserError(
            f"The model output is nan for {undefined} of {len(log_probabilities)} pairs. Use another model."
        )


class MinimalPairs(PairTask):
    """Task of giving the acceptable sentence of a minimal pair the higher probability, by a decoder.

    The log-probability of a sentence is the sum over its tokens after the start token; see `PairSplit`.

    The inputs have two texts for each pair, the acceptable sentence first. Both have the index of the pair, so that the
    ablation `resample` takes the outputs for both from the same texts, and from no sentence of the pair.

    The ablation `patch` exchanges the outputs between the two sentences of a pair. Nothing differs before the first
    token that the sentences do not share, so patching can change only the probabilities of the tokens after it.

    Raises:
        TypeError: The pairs are tokens of a masked language model.
        UserError: The decoder's files hold no head for language modelling.
    """

    def __init__(self, split: PairSplit) -> None:
        if split.masking is not None:
            raise TypeError("MinimalPairs is for decoders, MaskedPairs for other encoders: call pair_task.")
        super().__init__(split)

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        tokens, targets = next_tokens(batch)
        index = batch.index.repeat_interleave(2)
        return {"input_ids": tokens, "attention_mask": batch.mask.long(), "index": index, "targets": targets}

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return inputs["index"][::2]

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        logits = self._language_model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        losses = []
        # One sentence at a time: its log-probabilities are no second tensor of the size of all logits.
        for logits_of_sentence, targets in zip(logits, inputs["targets"], strict=True):
            numbers = at_least_float32(logits_of_sentence)
            losses.append(nn.functional.cross_entropy(numbers, targets, reduction="sum"))
        return -torch.stack(losses).view(-1, 2)

    def partners(self, inputs: Mapping[str, Tensor]) -> Sources:
        return partners_of_pairs(inputs["input_ids"], inputs["attention_mask"].sum(1))

    def audit_of_patch(self, items: Integers) -> dict[str, object]:
        """Return what `patch` can change of some pairs.

        Args:
            items: Indices of the pairs.

        Returns:
            Entries of the audit: the number of pairs whose sentences have different numbers of tokens, and of the
            positions in them that have no partner and so keep their own outputs; how many of the tokens that are
            predicted stand behind the first difference, so that `patch` can change their probability; and the number
            of pairs without such tokens.
        """
        batch = self._split[items.tolist()]
        _, positions = partners_of_pairs(batch.tokens, batch.lengths)
        has_no_partner = (positions < 0) & batch.mask
        lengths = batch.lengths.view(-1, 2)
        good, bad = batch.tokens.view(-1, 2, batch.tokens.size(1)).unbind(1)
        shared = (good == bad).cumprod(1).sum(1)  # tokens at the start
        behind = (lengths - 1 - shared[:, None]).clamp(min=0)
        return {
            "pairs_of_unequal_length": int((lengths[:, 0] != lengths[:, 1]).sum()),
            "positions_without_partner": int(has_no_partner.sum()),
            "tokens_patch_can_change": f"{int(behind.sum()):,} of {int((lengths - 1).sum()):,}",
            "pairs_patch_cannot_change": int((behind == 0).all(1).sum()),
        }


class MaskedPairs(PairTask):
    """Task of giving the acceptable sentence the higher pseudo-log-likelihood, by a masked language model.

    The pseudo-log-likelihood of a sentence is the sum of the log-probabilities of its tokens, each of them masked and
    predicted from all others (Salazar et al. 2020, §2). The pieces of a rare word give each other away, which makes the
    word seem probable; so the tokens of the same word to the right are masked too by default (PLL-word-l2r of Kauf &
    Ivanova 2023). Words are those that the tokenizer cuts into pieces, as in the code of that paper and in minicons:
    `don't` is three words of BERT and one of XLM-R.

    The inputs have a text for each token to predict, the sentence with this token masked, one sentence after the other,
    with the index of the pair and

    - `sentence`: number of its sentence in the batch, 2 · pair + 1 for the unacceptable one, int64 `[texts]`. Of two
      equal sentences only the first has texts, so that they are a tie;
    - `place` and `target`: position and id of the token to predict, int64 `[texts]`.

    Logits are computed at these positions alone, unless the head reads other positions too.

    Args:
        split: The pairs, as tokens of an encoder whose files hold a head for masked language modelling.

    Raises:
        UserError: The files hold no such head, or the tokenizer has no mask token.
    """

    def __init__(self, split: PairSplit) -> None:
        if split.masking is None:
            raise TypeError("MaskedPairs is for masked language models, MinimalPairs for decoders: call pair_task.")
        super().__init__(split)
        self._masking = split.masking
        self._most = split.bounds["max_cells"]
        self.vocabulary = split.logits_per_token
        self._skips_positions = self._can_skip_positions()
        if not self._skips_positions:
            self.vocabulary = int(self._language_model.config.vocab_size)
            self._most = max(self._most // split.longest, 1)

    @torch.inference_mode()
    def _can_skip_positions(self) -> bool:
        """Return True if the head reads no other state than that of the position whose token it predicts."""
        tokens = torch.arange(12, device=self.encoder.device).view(2, 6) % 6 + 1
        mask = torch.ones_like(tokens, dtype=torch.bool)
        inputs = self.encoder.inputs(tokens, mask, torch.zeros_like(tokens))
        place = torch.tensor([1, 4], device=tokens.device)
        expected = self._language_model(**inputs).logits[[0, 1], place]
        try:
            logits = self._logits_at(inputs, place)
        except Exception:  # of any kind, if the head cannot read one state of each text
            return False
        if logits.shape != expected.shape:
            return False
        tolerance = torch.finfo(expected.dtype).eps ** 0.5
        gap = float((logits - expected).abs().max())
        return bool(gap <= tolerance * max(1.0, float(expected.abs().max())))

    def _logits_at(self, inputs: Mapping[str, Tensor], place: Tensor) -> Tensor:
        """Return the logits at one position of each text, `[texts, vocabulary]`, computed for no other position."""
        texts = torch.arange(len(place), device=place.device)

        def keep_places(module: nn.Module, args: object, output: Any) -> None:  # noqa: ANN401 # of a Hugging Face model
            output["last_hidden_state"] = output.last_hidden_state[texts, place][:, None]

        hook = self.model.register_forward_hook(keep_places)
        try:
            logits: Tensor = self._language_model(**inputs_of_model(inputs)).logits
        finally:
            hook.remove()
        return logits.flatten(0, 1)

    def inputs(self, batch: PairBatch) -> dict[str, Tensor]:
        to_mask = batch.words >= 0
        is_equal = (batch.tokens[::2] == batch.tokens[1::2]).all(1)
        to_mask[1::2] &= ~is_equal[:, None]
        sentence, place = to_mask.nonzero(as_tuple=True)
        tokens = batch.tokens[sentence]
        position = torch.arange(tokens.size(1), device=tokens.device)
        masked = position == place[:, None]
        if self._masking == "word_l2r":
            words = batch.words[sentence]
            is_of_word = words == words.gather(1, place[:, None])
            masked = is_of_word & (position >= place[:, None])
        mask = self.encoder.tokenizer.mask_token_id
        inputs = self.encoder.inputs(
            tokens.masked_fill(masked, mask), batch.mask[sentence], segments=torch.zeros_like(tokens)
        )
        target = tokens.gather(1, place[:, None])[:, 0]
        index = batch.index[sentence // 2]
        return {**inputs, "index": index, "sentence": sentence, "place": place, "target": target}

    def gold(self, inputs: Mapping[str, Tensor]) -> Tensor:
        pairs: Tensor = inputs["index"].unique_consecutive()  # type: ignore[no-untyped-call]
        return pairs

    def log_probabilities(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model, and return the log-probability of the token to predict in each text, `[texts]`."""
        place = inputs["place"]
        if self._skips_positions:
            logits = self._logits_at(inputs, place)
        else:
            texts = torch.arange(len(place), device=place.device)
            logits = self._language_model(**inputs_of_model(inputs)).logits[texts, place]
        return -nn.functional.cross_entropy(at_least_float32(logits), inputs["target"], reduction="none")

    def outputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        parts = [self.log_probabilities(part) for part in self._in_parts(inputs)]
        return _sum_by_pair(torch.cat(parts)[None], inputs["sentence"])[0]

    def ablated_outputs(
        self,
        inputs: Mapping[str, Tensor],
        ablation: Ablation,
        sets: Sequence[Heads],
        finish: Callable[[int], None],
    ) -> Tensor:
        parts = []
        for part in self._in_parts(inputs):
            index = part["index"].tolist()
            outputs = self.ablated_model.run(self.log_probabilities, part, ablation, sets, index, finish=finish)
            parts.append(outputs)
        return _sum_by_pair(torch.cat(parts, 1), inputs["sentence"])

    def _in_parts(self, inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """Yield the inputs of as many texts at a time as the datamodule has tokens in a batch."""
        texts, longest = inputs["input_ids"].shape
        at_once = max(self._most // longest, 1)
        for first in range(0, texts, at_once):
            yield {name: tensor[first : first + at_once] for name, tensor in inputs.items()}

    def draw(self, data: Any, split: Split | None, most: int, seed: int) -> list[dict[str, Tensor]]:  # noqa: ANN401
        parts: list[dict[str, Tensor]] = []
        for inputs in super().draw(data, split, most, seed):
            parts.extend(self._in_parts(inputs))
        return parts


def _sum_by_pair(log_probabilities: Tensor, sentence: Tensor) -> Tensor:
    """Sum log-probabilities of tokens by sentence, and return those of both sentences of each pair, `[sets, pairs, 2]`.

    Args:
        log_probabilities: `[sets, texts]`.
        sentence: Number of the sentence of each text; see `MaskedPairs`.
    """
    pairs = int(sentence.max()) // 2 + 1
    sums = log_probabilities.new_zeros(len(log_probabilities), 2 * pairs)
    sums.index_add_(1, sentence, log_probabilities)
    good, bad = sums.view(-1, pairs, 2).unbind(2)
    has_texts = sentence.bincount(minlength=2 * pairs)[1::2] > 0
    return torch.stack([good, bad.where(has_texts, good)], 2)
