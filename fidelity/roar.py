"""Remove and retrain: what a classifier learns without the words that a ranking puts first (Madsen et al. 2022)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attention_probing.corpora.splits import SPLITS, Split
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.datamodules.classification import mask_tokens
from attention_probing.datamodules.text_split import TextSplit
from attention_probing.fidelity.checkpoints import Checkpoint
from attention_probing.fidelity.classified import ClassifiedBatch, classify, ranks_of
from attention_probing.fidelity.contract import (
    CheckpointResult,
    FidelityTest,
    Reading,
    Score,
    by_variant,
    column_means,
)
from attention_probing.fidelity.erasure import RANDOM
from attention_probing.fidelity.recipe import Recipe
from attention_probing.fidelity.saliency import FILE, Saliency, check_rankings
from attention_probing.fidelity.split_outputs import collect_outputs
from attention_probing.measures.trainings import Best, Training, run_trainings
from attention_probing.metrics.bootstrap import resample
from attention_probing.metrics.seeds import mean_over_seeds, pool_seeds
from attention_probing.metrics.statistics import proportion, ratio
from attention_probing.models import HierarchicalClassifier
from attention_probing.results import Curves, Estimate, Figure, Flags, Floats, Integers, Table
from attention_probing.results.errors import UserError, setting
from attention_probing.results.options import Positive, checked

POINTS = 10
"""Points on the path of integrated gradients, which rank all words again at each share. More points hardly change the
ranks of classifiers with softmax."""
TENTHS = tuple(tenth / 10 for tenth in range(11))


class Roar(FidelityTest):
    """Accuracy of classifiers retrained without the most important words: ROAR and recursive ROAR.

    ROAR (Hooker et al. 2019) replaces the top words of a ranking by the mask token in train, dev and test,
    and trains the classifier again, from other random weights, by the checkpoint's configuration (of the trainer,
    its epochs, early stopping and clipping; not its precision or limits on batches). A model that is
    retrained knows the mask token, so a loss of accuracy is a loss of information, not an effect of texts unlike any
    in train. A faithful ranking loses more accuracy than random words do. At a share s, ⌊s·n⌋ of the n words of a
    text are masked. Words are ranked by |importance|; `random` draws an order for each text and checkpoint. Integrated
    gradients have 10 points on their path, a fifth of those in other tests.

    Redundancy hides this: if one of two words with the same information is masked, no accuracy is lost. The
    recursive form (Madsen et al. 2022) therefore ranks the words again at each share, with the model that was
    trained at the previous share; masked words stay masked.

    RACU, the relative area between the curves of random words and of the ranking, is 1 if the ranking removes all
    information with the first share, 0 if it is no better than random words, negative if it is worse; see
    `relative_area`. Scores: `<ranking>.racu`, with intervals over texts; the table `roar.racu` has intervals over
    seeds. Columns: `<ranking>.correct_<percent>`, 1 if the model trained at this share classifies the text correctly.

    At share 0 the model is the checkpoint itself. At share 1 only lengths are left, and the model is the same for
    all rankings. Hierarchical classifiers are left out, because their attention over words has one distribution for
    each sentence, and so are models from Hugging Face files, whose training is not known. Trainings are kept in
    `roar/` of the datamodule's cache, each by itself.

    Args:
        rankings: Rankings of the words, each once. RACU needs `random` among them; without it there are only the
            accuracies. Rankings from files are refused, because they do not rank the words of train and dev.
        shares: Shares of masked words in ascending order, from 0 to 1, in whole percent.
        recursive: True to rank the words again at each share; False to rank them once, by the checkpoint.
        patience: Epochs without a better score on dev before a training ends. None for the patience of the
            checkpoint's `EarlyStopping`, or for no early stopping if it had none.
    """

    name = "roar"
    readings: ClassVar = {"racu": Reading("↑")}

    @checked
    def __init__(
        self,
        rankings: Sequence[str] = (RANDOM, "attention", "input_x_gradient", "integrated_gradients"),
        shares: Sequence[float] = TENTHS,
        recursive: bool = True,
        patience: Positive | None = None,
    ) -> None:
        self.rankings = check_rankings("roar: rankings", rankings)
        files = [ranking for ranking in rankings if ranking.startswith(FILE)]
        if files:
            raise UserError(
                f"roar: rankings has {files[0]}, but a file ranks only the words of test. Roar masks words of train "
                "and dev as well. Remove it; Rationale and SetErasure take rankings from files."
            )
        self.percents = _percents(shares)
        self.recursive = recursive
        self.patience = patience
        self._predicted: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[str, int] = {}

    def begin(
        self, checkpoints: Sequence[Checkpoint], data: ClassificationDataModule, device: torch.device, seed: int
    ) -> None:
        if data.vocabulary.mask is None:
            raise UserError(
                "roar replaces words by the mask token, but the tokenizer of the data has none. Remove roar from "
                f"{setting('model.tests')}, or test classifiers with another tokenizer."
            )
        flat = [checkpoint for checkpoint in checkpoints if _can_be_retrained(checkpoint)]
        chains = []
        for checkpoint in flat:
            recipe = self._recipe(checkpoint, data, device, seed)
            for ranking in self.rankings:
                ranks_again = self.recursive and ranking != RANDOM
                chains.append(Chain(recipe, ranking, self.percents, ranks_again))
        trained = train_chains(chains)
        self._predicted = {}
        for chain in chains:
            columns = self._predicted.setdefault(chain.recipe.checkpoint.name, {})
            for percent, best in chain.trained.items():
                columns[f"{chain.ranking}.correct_{percent}"] = best.state["predicted"].to(device)
        short_texts = 0
        for split in SPLITS:
            short_texts += int((data.splits[split].word_counts < 2).sum())
        self._counts = {
            "trainings": len(trained),
            "cut_off": sum(not best.stopped for best in trained),
            "checkpoints_left_out": len(checkpoints) - len(flat),
            "short_texts": short_texts,
        }

    def _recipe(
        self, checkpoint: Checkpoint, data: ClassificationDataModule, device: torch.device, seed: int
    ) -> Recipe:
        trainer = checkpoint.config.get("trainer") or {}
        epochs = trainer.get("max_epochs") or -1
        if epochs < 1:
            raise UserError(f"roar: {checkpoint.name} was trained without a limit of epochs. Train it again, with one.")
        patience = self.patience or _patience_of(trainer, epochs)
        return Recipe(checkpoint, data, device, epochs, patience, seed)

    def _columns(self, ranking: str) -> list[str]:
        return [f"{ranking}.correct_{percent}" for percent in self.percents]

    @torch.no_grad()
    def measure(self, classified: ClassifiedBatch, saliency: Saliency) -> Mapping[str, Tensor]:
        labels = classified.batch.labels
        predicted = self._predicted.get(classified.checkpoint.name)
        if predicted is None:
            return {}
        columns = {}
        for ranking in self.rankings:
            columns[f"{ranking}.correct_0"] = (classified.predicted == labels).double()
        for name, classes in predicted.items():
            columns[name] = (classes[classified.batch.index] == labels).double()
        return columns

    def scores(self) -> Mapping[str, Score]:
        scores = {}
        for ranking in self._others:
            columns = [*self._columns(RANDOM), *self._columns(ranking)]
            scores[f"{ranking}.racu"] = Score(columns, self._racu, "ratio", main=True)
        return scores

    @property
    def _others(self) -> list[str]:
        """Rankings that have a RACU: all but `random`; none without `random`."""
        if RANDOM not in self.rankings:
            return []
        return [ranking for ranking in self.rankings if ranking != RANDOM]

    def _racu(self, values: Floats, weights: Floats) -> Floats:
        """RACU of each draw; the columns are those of random words, then those of the ranking."""
        random, ranking = np.split(column_means(values, weights), 2, axis=1)
        return relative_area(random, ranking, self.percents)

    def tables(self, results: Sequence[CheckpointResult]) -> Mapping[str, Table]:
        """Return the tables `roar` and `roar.racu`.

        The table `roar` has the accuracy for each variant, ranking and percentage of masked words (`masked`): its mean
        over the seeds, an interval over texts, and the standard deviation over seeds.

        The table `roar.racu` has the mean RACU over the `seeds` of a variant, for each ranking. Each seed is compared
        with random words under the same seed. `racu.low` and `racu.high` are the ends of Student's 95 % interval
        over seeds (nan for fewer than three), within [−1, 1]; `racu.sd` is the standard deviation over seeds.
        """
        rows = []
        areas = []
        for variant, seeds in by_variant(results).items():
            names: dict[str, object] = {"variant": variant, "seeds": len(seeds)}
            for ranking, percent in product(self.rankings, self.percents):
                accuracy = self._accuracy(seeds, f"{ranking}.correct_{percent}")
                rows.append({**names, "ranking": ranking, "masked": percent, **accuracy.columns("accuracy")})
            for ranking in self._others:
                areas.append({**names, "ranking": ranking, **self._area_over_seeds(seeds, ranking).columns("racu")})
        tables = {self.name: Table(pd.DataFrame(rows), {"accuracy": "fraction"})}
        if areas:
            tables[f"{self.name}.racu"] = Table(pd.DataFrame(areas), {"racu": "ratio"}, main=("ranking", "racu"))
        return tables

    def _accuracy(self, seeds: Sequence[CheckpointResult], column: str) -> Estimate:
        """Return the mean of a column over the seeds of a variant, with an interval over texts."""
        accuracies = []
        for result in seeds:
            correct = result.values.reindex(columns=[f"{self.name}.{column}"])
            accuracies.append(resample(proportion, correct, "fraction"))
        return pool_seeds(accuracies)

    def _area_over_seeds(self, seeds: Sequence[CheckpointResult], ranking: str) -> Estimate:
        """Return the mean RACU of a ranking over the seeds of a variant, with an interval over seeds."""
        values = [result.scores[f"{self.name}.{ranking}.racu"].value for result in seeds]
        area = mean_over_seeds(values, "ratio")
        low, high = np.clip(area.interval, -1, 1).tolist()
        return replace(area, low=low, high=high)

    def figures(self, results: Sequence[CheckpointResult]) -> Mapping[str, Figure]:
        """Return the figure `roar`: accuracy over the percentage of masked words, for each ranking.

        The lines are means over the seeds of a variant.
        """
        frame = self.tables(results)[self.name].frame
        has_variants = len(by_variant(results)) > 1
        lines = {}
        for (variant, ranking), rows in frame.groupby(["variant", "ranking"], sort=False):
            if rows["accuracy"].notna().any():
                name = f"{variant}: {ranking}" if has_variants else str(ranking)
                lines[name] = (rows["masked"].tolist(), rows["accuracy"].tolist())
        if not lines:
            return {}
        title = "Recursive ROAR" if self.recursive else "ROAR"
        return {self.name: Curves(title, "masked words (%)", "accuracy", lines)}

    def audit(self) -> Mapping[str, object]:
        """Return four counts.

        They are `trainings`, over all checkpoints, without repetition; `cut_off`, the trainings that were ended by the
        largest number of epochs; `checkpoints_left_out`, the hierarchical classifiers and the models from files of
        transformers; and `short_texts`, the texts of train, dev and test with fewer than two words, which are whole at
        every share below 1.
        """
        return dict(self._counts)


def _percents(shares: Sequence[float]) -> tuple[int, ...]:
    """Return shares of masked words as whole percentages.

    Raises:
        UserError: They do not ascend from 0 to 1 in whole percent.
    """
    percents = [round(100 * share) if math.isfinite(share) else -1 for share in shares]
    are_whole = np.allclose(np.array(shares) * 100, percents, rtol=0, atol=1e-6)
    ascend = percents == sorted(set(percents))
    if not are_whole or not ascend or percents[:1] != [0] or percents[-1:] != [100]:
        raise UserError(
            f"roar: shares is {list(shares)}, but must ascend from 0 to 1 in whole percent, as [0, 0.5, 1]."
        )
    return tuple(percents)


def _can_be_retrained(checkpoint: Checkpoint) -> bool:
    return checkpoint.has_recipe and not isinstance(checkpoint.model, HierarchicalClassifier)


def _patience_of(trainer: Mapping[str, Any], epochs: int) -> int:
    """Return the patience of a training's early stopping; all its epochs without early stopping.

    Args:
        trainer: Options of the trainer.
        epochs: Largest number of epochs.
    """
    callbacks = trainer.get("callbacks") or []
    if isinstance(callbacks, Mapping):
        callbacks = [callbacks]
    for callback in callbacks:
        if "EarlyStopping" in str(callback.get("class_path")):
            options = callback.get("init_args") or {}
            return int(options.get("patience", 3))  # 3: Lightning's default
    return epochs


def relative_area(random: Floats, ranking: Floats, percents: Sequence[float]) -> Floats:
    """Return RACU, the relative area between curves of accuracy (Madsen et al. 2022, §4.3).

    It is Σ ½ Δx (Δy_i + Δy_{i+1}) with Δy = random − ranking, divided by the same with Δy = random − random at 100 %,
    and clipped to [−1, 1]. A ranking that removes all information with the first share reaches the accuracy of random
    words at 100 % there.

    Args:
        random: Accuracy with random words masked, `[..., shares]`, at ascending shares up to 100 %.
        ranking: Accuracy with the top words of a ranking masked, `[..., shares]`.
        percents: Percentage of masked words, `[shares]`.

    Returns:
        Areas `[...]`; nan if the accuracy with random words encloses no area.
    """
    between = np.asarray(np.trapezoid(random - ranking, percents, axis=-1))
    possible = np.asarray(np.trapezoid(random - random[..., -1:], percents, axis=-1))
    return np.clip(ratio(between, possible), -1, 1)


@dataclass(frozen=True, eq=False)
class Chain:
    """Trainings for one checkpoint and one ranking, one for each share of masked words.

    Attributes:
        recipe: Settings of the trainings.
        ranking: Ranking of the words.
        percents: Percentages of masked words, from 0 to 100.
        recursive: True to rank the words again with each trained model.
        trained: Finished trainings by percentage. The states hold the class `predicted` for each text of test, int32
            `[texts]`; in a recursive chain also the words to mask next in each split, eight tokens to a byte.
    """

    recipe: Recipe
    ranking: str
    percents: tuple[int, ...]
    recursive: bool
    trained: dict[int, Best] = field(default_factory=dict)

    def training(self, percent: int) -> Training:
        """Return the description of the training at a percentage; a recursive one needs earlier ones in `trained`."""
        recipe = self.recipe
        options: list[object] = [percent, *recipe.texts("dev"), *recipe.texts("test")]
        name = "Classifier without words"
        if percent < self.percents[-1]:  # without any word all rankings are the same
            options += [self.ranking, self.percents if self.recursive else None]
            if self.ranking == "integrated_gradients":
                options.append(POINTS)
            name = f"Classifier without {percent} % of the words by {self.ranking}"
        return recipe.training("roar", options, name, partial(self._train, percent))

    def _train(self, percent: int) -> Best:
        recipe = self.recipe
        data = mask_tokens(recipe.training_data, self._masks(percent))
        model = recipe.checkpoint.make_untrained(data, recipe.training_seed)
        options = recipe.checkpoint.config.get("checkpoint") or {}
        monitor = options.get("monitor") or "val_f1"
        best = recipe.fit(model, monitor, options.get("mode") or "max", datamodule=data)
        model.load_state_dict(best.state)
        model.to(recipe.device).eval().requires_grad_(False)
        probabilities = collect_outputs(model, data, recipe.device, "test").probabilities
        state = {"predicted": probabilities.argmax(-1).int().cpu()}
        following = self.percents[self.percents.index(percent) + 1 :]
        if self.recursive and following[:-1]:
            checkpoint = replace(recipe.checkpoint, model=model)
            ranks = rank_words(checkpoint, data, self.ranking, recipe)
            for split in SPLITS:
                top = top_words(data.splits[split], ranks[split], following[0])
                state[split] = torch.from_numpy(np.packbits(top))
        # The model itself is large, and is not read again.
        return best._replace(state=state, part={})

    def _masks(self, percent: int) -> Mapping[Split, Flags]:
        """Words to mask at a percentage, by split, `[tokens]`."""
        data = self.recipe.data
        before = self.percents[self.percents.index(percent) - 1]
        masks = {}
        for split in SPLITS:
            texts = data.splits[split]
            if percent == self.percents[-1]:
                masks[split] = texts.real
            elif self.recursive and before in self.trained:
                packed = self.trained[before].state[split].numpy()
                masks[split] = np.unpackbits(packed, count=int(texts.lengths.sum())).astype(bool)
            else:
                masks[split] = top_words(texts, self._first[split], percent)
        return masks

    @cached_property
    def _first(self) -> Mapping[Split, Integers]:
        """Ranks of the words by the checkpoint."""
        checkpoint = self.recipe.checkpoint
        checkpoint.model.to(self.recipe.device)
        return rank_words(checkpoint, self.recipe.data, self.ranking, self.recipe)


def train_chains(chains: Sequence[Chain]) -> list[Best]:
    """Train the models of all chains, and put them into `Chain.trained`; return each training once.

    The ranks divide the trainings at one percentage; the models of a chain follow one another.

    Args:
        chains: The chains of all checkpoints and rankings, all with the same percentages.
    """
    if not chains:
        return []
    trained: dict[Path | None, Best] = {}
    for percent in chains[0].percents[1:]:
        trainings = [chain.training(percent) for chain in chains]
        by_file = {training.file: training for training in trainings}
        trained |= zip(by_file, run_trainings(list(by_file.values())), strict=True)
        for chain, training in zip(chains, trainings, strict=True):
            chain.trained[percent] = trained[training.file]
    return list(trained.values())


def top_words(texts: TextSplit, ranks: Integers, percent: int) -> Flags:
    """Return a mask of the ⌊percent · n / 100⌋ words with the lowest ranks in each text of n words, bool `[tokens]`.

    Args:
        texts: The texts.
        ranks: Rank of each word in its text, from 0, int64 `[tokens]`.
        percent: Percentage of the words to mark.
    """
    counts = texts.word_counts * percent // 100
    chosen: Flags = texts.real & (ranks < np.repeat(counts, texts.lengths))
    return chosen


def rank_words(
    checkpoint: Checkpoint, data: ClassificationDataModule, ranking: str, recipe: Recipe
) -> dict[Split, Integers]:
    """Rank the words of each text of all splits by |importance|; return their ranks, int64 `[tokens]`, from 0.

    Words that are masked already come first, so that they stay masked; of equally important words the earlier one.
    Madsen et al.'s released code explains the gold label. Here the predicted class is explained, as in all other tests.

    Args:
        checkpoint: Classifier whose decisions are explained.
        data: Datamodule with the texts, in which some words may be masked.
        ranking: Ranking of the words.
        recipe: Settings; random orders depend on its seed.
    """
    mask = data.vocabulary.mask
    assert mask is not None
    ranks_of_splits: dict[Split, Integers] = {}
    for place, split in enumerate(SPLITS):
        texts = data.splits[split]
        ranks = [np.zeros(length, np.int64) for length in texts.lengths]  # a text of one word has no other rank
        for batch in texts.batches(data.eval_tokens):
            seed = recipe.training_seed + place
            _, classified = classify(checkpoint, batch.to(recipe.device), seed=seed, vocabulary=data.vocabulary)
            if classified is None:
                continue
            saliency = Saliency(classified, points=POINTS)
            if ranking == RANDOM:
                (keys,) = saliency.rankings(ranking, 1)
            else:
                keys = saliency.magnitude(ranking)
            keys = keys.masked_fill(classified.batch.tokens == mask, torch.inf)
            keys = keys.masked_fill(~classified.words, -torch.inf)
            orders = ranks_of(keys).cpu().numpy()
            for row, text in enumerate(classified.batch.index.tolist()):
                ranks[text] = orders[row, : texts.lengths[text]]
        ranks_of_splits[split] = np.concatenate(ranks)
    return ranks_of_splits
