import torch

from probes.head_selection import RelationClassifier
from tests.probes.batches import random_batch


def test_the_features_are_the_attention_along_the_arc() -> None:
    torch.manual_seed(0)
    batch, classifier = random_batch([4, 2]), RelationClassifier(6, ("a", "b", "c"))
    heads = torch.tensor([[0, 3, 1, 4], [2, 0, 0, 0]])
    logits = classifier(batch, heads)
    assert logits.shape == (2, 4, 3)
    for row, n in enumerate(batch.lengths.tolist()):
        for word in range(1, n + 1):
            head = int(heads[row, word - 1])
            alpha = batch.attention[row].flatten(0, 1).float()
            features = torch.cat([alpha[:, word, head], alpha[:, head, word], torch.tensor([float(head == 0)])])
            torch.testing.assert_close(logits[row, word - 1], classifier.linear(features))
