"""Training of a text classifier: an epoch of the base of Tutek & Šnajder (2020), also with packed sequences.

`python -m benchmarks.classifier_training [--json FILE]`
"""

from pathlib import Path

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attention_probing.corpora.registry import locate
from attention_probing.corpora.sample import write_sample_reviews
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.models import AdditiveAttention, AttentionClassifier, EmbeddingSpec, RecurrentEncoder
from attention_probing.models.layers import TextEncoder
from benchmarks.harness import Report, Settings, alternate, command, found
from benchmarks.probe_training import VECTOR_SIZE, epoch

HIDDEN = 150


class PackedEncoder(TextEncoder):
    """The usual way: one bidirectional LSTM over packed sequences."""

    def build(self, input_size: int) -> None:
        """The same parameters as those of `RecurrentEncoder`."""
        self.size = 2 * HIDDEN
        self.network = nn.LSTM(input_size, HIDDEN, batch_first=True, bidirectional=True)

    def states(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """From the start, and from the end behind it."""
        packed = pack_padded_sequence(embedded, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states: Tensor = pad_packed_sequence(self.network(packed)[0], batch_first=True, total_length=mask.size(1))[0]
        return states


def classifier(encoder: TextEncoder) -> AttentionClassifier:
    """`configs/tutek2020/base.yaml`, with random embeddings of the size of its vectors."""
    return AttentionClassifier(
        encoder,
        AdditiveAttention(),
        EmbeddingSpec(size=VECTOR_SIZE, dropout=0.3),
        dropout=0.5,
        optimizer="amsgrad",
        weight_decay=1e-5,
    )


def measure(settings: Settings, folder: Path, report: Report) -> None:
    """Training of a text classifier: an epoch of the base of Tutek & Šnajder (2020), also with packed sequences."""
    corpus, data = texts(settings, folder)
    report.figure("corpus", corpus, "the first texts of its train split")
    data.setup("fit")
    lengths = data.splits["train"].lengths
    report.figure("texts", len(lengths), "trained on, in batches of 32")

    def ours() -> AttentionClassifier:
        return classifier(RecurrentEncoder(hidden=HIDDEN))

    epoch(ours, data)()
    both = alternate(settings.rounds, ours=epoch(ours, data), packed=epoch(lambda: classifier(PackedEncoder()), data))
    report.seconds("epoch_s", both["ours"], "a training epoch, Lightning's loop included", wanted="≤ 4 on SST-2")
    report.figure("tokens_per_s", float(lengths.sum()) / min(both["ours"]), "words of the split ÷ the quickest epoch")
    report.seconds("packed_epoch_s", both["packed"], "the same with pack_padded_sequence")
    report.ratio("packed_over_epoch", both["packed"], both["ours"], "the one ÷ the other")


def texts(settings: Settings, folder: Path) -> tuple[str, ClassificationDataModule]:
    """SST-2 where the data root has it, else the embedded reviews; as many texts of each split as are wanted."""
    corpus = found("sst2") if settings.corpus is None else "sample"
    whole = locate(corpus, None) if corpus == "sst2" else write_sample_reviews(folder / "reviews")
    files = {}
    for split in ("train", "dev", "test"):
        lines = whole[split].read_text(encoding="utf-8").splitlines(keepends=True)
        kept = lines if settings.limit is None else lines[: settings.limit + 1]
        files[split] = str(folder / f"{split}.tsv")
        Path(files[split]).write_text("".join(kept), encoding="utf-8")
    positive = "1" if corpus == "sst2" else "positive"
    return corpus, ClassificationDataModule(files, positive=positive, cache=str(folder / "cache"))


main = command("classifier_training", measure)
