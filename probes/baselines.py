"""The baselines alone: what positions tell about heads, without any encoder."""

from probes.base import ArcExperiment


class Baselines(ArcExperiment):
    """Best fixed offset per relation and overall, right- and left-branching, and uniform attention.

    The offsets are chosen on dev and scored on test. Uniform attention is scored by expectation: every word's head is
    equally likely to be ROOT or any other word. Nothing is trained, so `python train.py test` runs it.
    """

    experiment = "baselines"
