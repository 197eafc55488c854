"""Every attention head as a predictor of antecedents, beside baselines (Clark et al. 2019, §4.3)."""

from attention_probing.datamodules import AntecedentBatch, CoreferenceDataModule
from attention_probing.measures.contract import Measure
from attention_probing.probes.antecedent_evaluation import (
    SelectionMode,
    add_links,
    check_coreference,
    evaluate_links,
    make_rows,
)
from attention_probing.results import Result
from attention_probing.results.options import checked


class AntecedentHeads(Measure[CoreferenceDataModule]):
    """Antecedent selection by every attention head (Clark et al. 2019, §4.3).

    For every mention with an antecedent in its window, an attention head predicts an earlier mention:
    the one whose head word gets the most attention from the mention's head word. In the other
    direction of attention, it predicts the earlier mention whose head word gives the most attention to
    the mention's head word.

    The best attention head is chosen on dev for all mentions together, and for each type of mention.
    These heads are scored on test. Three baselines are scored on the same mentions: the nearest
    earlier mention, the nearest earlier mention with the same head word, and a rule-based sieve.
    Intervals are over documents.

    Args:
        mode: `held_out` chooses on dev and scores on test; `paper` chooses and scores on dev, as Clark
            et al. (2019) do.
    """

    experiment = "antecedent"
    takes = CoreferenceDataModule

    @checked
    def __init__(self, mode: SelectionMode = "held_out") -> None:
        super().__init__()
        self.seed = 0  # of resamples: equal in all runs, so that these can be paired
        self.mode = mode

    def begin(self) -> None:
        check_coreference(self.data, type(self).__name__)
        self._rows = make_rows(self.data)

    def update(self, batch: AntecedentBatch) -> None:
        add_links(self._rows, batch, self.data.candidates)

    def result(self) -> Result:
        return evaluate_links(self.experiment, self.data, self._rows, self.mode, self.seed)
