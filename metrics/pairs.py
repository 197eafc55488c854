"""Decisions of language models on minimal pairs, and halves of the pairs."""

import numpy as np

from attention_probing.results import Flags, Floats, Integers


def are_right(log_probabilities: Floats) -> Floats:
    """Return 1 for each pair whose acceptable sentence is at least as probable as the other, else 0, `[…, pairs]`.

    A tie counts as right, as in lm-evaluation-harness's `blimp_*`, where the first of equal choices wins.

    Args:
        log_probabilities: Of the acceptable and of the other sentence, `[…, pairs, 2]`; not nan.
    """
    right: Floats = (log_probabilities[..., 0] >= log_probabilities[..., 1]).astype(np.float64)
    return right


def log_ratios(log_probabilities: Floats) -> Floats:
    """Return the log-probability of the acceptable sentence minus that of the other, in nats, `[…, pairs]`.

    Args:
        log_probabilities: Of the acceptable and of the other sentence, `[…, pairs, 2]`.
    """
    in_nats: Floats = log_probabilities[..., 0] - log_probabilities[..., 1]
    return in_nats


def choosing_half(paradigms: Integers, seed: int) -> Flags:
    """Return a random half of the pairs of each paradigm, bool `[pairs]`; the odd pair is in the other half.

    What is chosen or fitted on this half is tested on the other.

    Args:
        paradigms: Number of the paradigm of each pair, `[pairs]`.
        seed: Seed of the halves, with the number of the paradigm.
    """
    chooses = np.zeros(len(paradigms), np.bool_)
    for paradigm in np.unique(paradigms).tolist():
        pairs = np.flatnonzero(paradigms == paradigm)
        order = np.random.default_rng([seed, paradigm]).permutation(len(pairs))
        chooses[pairs[order[: len(pairs) // 2]]] = True
    return chooses
