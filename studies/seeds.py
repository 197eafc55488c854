"""Do heads keep their roles over seeds? Models that differ in the seed alone: tables of docs/stability_of_heads.md.

    python -m studies.seeds decoders
    python -m studies.seeds runs RUN RUN RUN

The first trains decoders of four layers with four heads on the sample grammar, which takes minutes, and reads their
heads on the sample treebank and on repeated tokens. The second reads the table `best_heads` of runs of `measure
clark2019/heads` on models that were fine-tuned from the same weights.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import DependencyDataModule, TextDataModule
from attention_probing.measures import RepeatedSequences, SingleHeads, measure
from attention_probing.metrics.attachment import ALL, PLAIN
from attention_probing.results import Flags, Floats, command
from attention_probing.results.estimates import FEW
from attention_probing.results.files import read_csv
from attention_probing.results.progress import Progress
from attention_probing.results.sentences import LEVEL
from attention_probing.results.tables import DASH, format_markdown
from studies.natural import natural_decoder

LEAST = 0.5
"""Share of attention on its pattern from which a head has the role of repeated tokens, as `previous`."""
_LENGTH = 25  # of a sequence that is repeated


def train_decoders(seeds: int, steps: int, folder: Path) -> list[Path]:
    """Train decoders that differ in the seed, and return their folders.

    Args:
        seeds: Number of decoders.
        steps: Number of batches; 0 for random weights.
        folder: New folder for the decoders.
    """
    folder.mkdir()
    progress = Progress("Training, decoders", seeds)
    models = []
    for seed in range(seeds):
        decoder = natural_decoder(seed, steps)
        models.append(decoder.save(folder / f"decoder-{seed}"))
        progress.advance()
    return models


def read_relations(model: Path, cache: Path) -> pd.DataFrame:
    """Return the table `best_heads` of a model on the sample treebank, with its random weights beside it."""
    data = DependencyDataModule("sample", encoder=EncoderSpec(str(model)), random_init=True, cache=str(cache))
    result = measure(data, measurements=SingleHeads(trees=False))
    return result.tables["best_heads"].frame


def read_repeated(model: Path, cache: Path) -> pd.DataFrame:
    """Return the table `repeated_roles` of a model, with the scores of its random weights as `random_init`."""
    frames = []
    for specification in (EncoderSpec(str(model)), EncoderSpec(str(model), weights="random")):
        data = TextDataModule(["sample"], encoder=specification, cache=str(cache))
        result = measure(data, measurements=RepeatedSequences(_LENGTH))
        frames.append(result.tables["repeated_roles"].frame.set_index("role"))
    given, random = frames
    return given.assign(random_init=random["score"]).reset_index()


class Choices(NamedTuple):
    """The best heads of some relations in each seed; rows are relations.

    Attributes:
        heads: Name of the head, with its direction, `[relations, seeds]`.
        found: Its accuracy on test, `[relations, seeds]`.
        is_above: True if the head is above the best fixed offset, `[relations, seeds]`.
        again: Number of 100 resamples of dev on which it is chosen again, `[relations, seeds]`.
        offset: Accuracy of the best fixed offset, `[relations, seeds]`.
        random: Accuracy of the best head with random weights, `[relations, seeds]`; nan without them.
        words: Words of dev, `[relations]`.
        relations: Names of the relations.
    """

    heads: NDArray[np.str_]
    found: Floats
    is_above: Flags
    again: Floats
    offset: Floats
    random: Floats
    words: Floats
    relations: list[str]

    @classmethod
    def from_tables(cls, seeds: Sequence[pd.DataFrame]) -> "Choices":
        """Return the choices of all seeds, for relations with `FEW` words on dev and test in each of them.

        Args:
            seeds: The table `best_heads` of each seed.
        """
        tables = [table.set_index("relation") for table in seeds]
        relations = _frequent_relations(tables)
        tables = [table.loc[relations] for table in tables]

        def column(name: str) -> Floats:
            if name not in tables[0]:
                return np.full((len(relations), len(tables)), np.nan)
            return np.column_stack([table[name].to_numpy(np.float64, na_value=np.nan) for table in tables])

        heads = []
        for table in tables:
            arrows = table["direction"].map({"dependent→head": "→"}).fillna("←")
            heads.append(table["head"] + arrows)
        return cls(
            heads=np.column_stack(heads).astype(str),
            found=column("test"),
            is_above=(column("p_holm") < LEVEL) & (column("over_offset") > 0),
            again=column("chosen"),
            offset=column("offset"),
            random=column("random_init"),
            words=tables[0]["n_dev"].to_numpy(np.float64),
            relations=relations,
        )

    @property
    def layers(self) -> NDArray[np.str_]:
        """Layer of each head, `[relations, seeds]`."""
        names = [head.partition("-")[0] for head in self.heads.ravel()]
        return np.array(names).reshape(self.heads.shape)


def _frequent_relations(tables: Sequence[pd.DataFrame]) -> list[str]:
    """Return the relations with `FEW` words on dev and test in each table, by the index of the first one."""
    relations = []
    for relation in tables[0].index:
        if relation in (ALL, PLAIN):
            continue
        rows = [table.loc[relation] for table in tables if relation in table.index]
        is_frequent = all(row["n"] >= FEW and row["n_dev"] >= FEW for row in rows)
        if len(rows) == len(tables) and is_frequent:
            relations.append(relation)
    return relations


def agreement(choices: NDArray[np.str_]) -> tuple[float, float]:
    """Return how often two seeds choose alike, and how often a seed's choice is that for another relation.

    Args:
        choices: Chosen heads or layers, `[relations, seeds]`.

    Returns:
        The share of pairs of seeds and relations with the same choice; and the same when one seed's choice is compared
        with the other's for each of the other relations. The second is the agreement to expect if all seeds only
        prefer the same heads.
    """
    same = []
    others = []
    number = len(choices)
    for one, other in permutations(choices.T, 2):
        is_same = one[:, None] == other
        same.append(is_same.trace() / number)
        others.append((is_same.sum() - is_same.trace()) / (number * (number - 1)))
    return float(np.mean(same)), float(np.mean(others))


def join_numbers(numbers: Floats, text: Callable[[float], str]) -> str:
    """Return numbers as text, with a dash for nan."""
    cells = []
    for number in numbers:
        cells.append(DASH if pd.isna(number) else text(number))
    return ", ".join(cells)


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.0f}"


def relations_table(choices: Choices) -> pd.DataFrame:
    """Return a row for each relation, with the heads of all seeds; the most frequent relations first."""
    rows = []
    for place in np.argsort(-choices.words, kind="stable"):
        row = {
            "relation": choices.relations[place],
            "words on dev": f"{choices.words[place]:,.0f}",
            "head in each seed": ", ".join(choices.heads[place]),
            "test": join_numbers(choices.found[place], percent),
            "`chosen` of 100": join_numbers(choices.again[place], lambda number: f"{number:.0f}"),
            "above the offset": f"{choices.is_above[place].sum()} of {choices.is_above.shape[1]}",
            "offset": join_numbers(np.unique(choices.offset[place].round(6)), percent),
        }
        if not np.isnan(choices.random).all():
            row["random weights"] = join_numbers(choices.random[place], percent)
        rows.append(row)
    return pd.DataFrame(rows)


def describe_agreement(choices: Choices) -> str:
    """Return a sentence on how often another seed, or a resample of dev, chooses alike."""
    same, of_others = agreement(choices.heads)
    same_layer, layer_of_others = agreement(choices.layers)
    seeds = choices.is_above.shape[1]
    above = choices.is_above.sum(axis=1)
    always = int((above == seeds).sum())
    never = int((above == 0).sum())
    number = len(choices.relations)
    parts = [
        f"Over {number} relations, another seed has the same head for {percent(same)} %",
        f"the head of another relation for {percent(of_others)} %",
        f"the same layer for {percent(same_layer)} %, that of another relation for {percent(layer_of_others)} %",
        f"a resample of dev has the same head for {np.nanmean(choices.again):.0f} %",
        f"a head is above the offset in all {seeds} seeds for {always} relations, in some for "
        f"{number - always - never}, in none for {never}",
    ]
    return f"{'; '.join(parts)}."


def repeated_table(seeds: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return a row for each role on repeated tokens, with the best heads of all seeds.

    Args:
        seeds: Tables from `read_repeated`.
    """
    rows = []
    for role in seeds[0]["role"]:
        of_role = pd.concat([table[table["role"] == role] for table in seeds])
        cells = []
        for head, score, low, high in of_role[["head", "score", "low", "high"]].itertuples(index=False):
            cells.append(f"{head} {percent(score)} [{percent(low)}, {percent(high)}]")
        rows.append(
            {
                "role": role,
                "best head in each seed": "; ".join(cells),
                "half of the attention": f"{(of_role['low'] > LEAST).sum()} of {len(seeds)}",
                "uniform": join_numbers(np.unique(of_role["uniform"].round(6)), percent),
                "random weights": join_numbers(of_role["random_init"].to_numpy(), percent),
            }
        )
    return pd.DataFrame(rows)


def print_relations(tables: Sequence[pd.DataFrame]) -> None:
    """Print the relations' heads in all seeds, and how often seeds agree."""
    choices = Choices.from_tables(tables)
    print(format_markdown(relations_table(choices)))
    print(f"\n{describe_agreement(choices)}\n")


def main(args: Sequence[str]) -> int:
    """Print the tables, and return the exit code.

    Raises:
        UserError: A run has no table of best heads.
    """
    parser = argparse.ArgumentParser(
        prog="python -m studies.seeds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    decoders = parts.add_parser("decoders")
    decoders.add_argument("--seeds", type=int, default=3)
    decoders.add_argument("--steps", type=int, default=800)
    parts.add_parser("runs").add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args(list(args))
    if options.part == "runs":
        print_relations([read_csv(run / "best_heads.csv", na_values=[""]) for run in options.runs])
        return 0
    with TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        models = train_decoders(options.seeds, options.steps, Path(folder) / "trained")
        repeated = repeated_table([read_repeated(model, cache) for model in models])
        print(format_markdown(repeated), end="\n\n")
        print_relations([read_relations(model, cache) for model in models])
        untrained = train_decoders(options.seeds, 0, Path(folder) / "untrained")
        choices = Choices.from_tables([read_relations(model, cache) for model in untrained])
        print(f"Before training: {describe_agreement(choices)}")
    return 0


if __name__ == "__main__":
    command.run(main)
