"""Baselines without attention, scored as probes are (Clark et al. 2019, §4.2)."""

from attention_probing.corpora.splits import Split
from attention_probing.datamodules import AttentionBatch, DependencyDataModule
from attention_probing.datamodules.dependency import check_relations, read_fields
from attention_probing.measures.contract import Measure
from attention_probing.metrics.attachment import add_arcs
from attention_probing.metrics.rows import Rows
from attention_probing.probes.arc_evaluation import evaluate_arcs
from attention_probing.results import Result


class Baselines(Measure[DependencyDataModule]):
    """Baselines: fixed offsets, left and right branching, and uniform attention.

    No attention is read. The best fixed offset, per relation and overall, is chosen on dev and scored
    on test. Uniform attention is scored by expectation: ROOT and all other words are equally likely
    heads.

    Args:
        relations: Relations shown in the table and the figure, in this order, after the row for
            all words and the row for all words but punctuation; by default all relations. The row of a relation that
            no word of test has is blank, with n = 0.
    """

    experiment = "baselines"
    takes = DependencyDataModule

    def __init__(self, relations: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.relations = relations

    def begin(self) -> None:
        read_fields(self.data, (), type(self).__name__)
        check_relations(self.relations, self.data.relations)
        self._rows: dict[Split, Rows] = {"dev": Rows(), "test": Rows()}

    def update(self, batch: AttentionBatch) -> None:
        add_arcs(self._rows[batch.split], batch)

    def result(self) -> Result:
        return evaluate_arcs(self.experiment, self.data, self._rows["dev"], self._rows["test"], self.relations)
