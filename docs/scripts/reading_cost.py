"""How long the features of all heads take on minimal pairs, beside the forward pass in which they are computed.

    python docs/scripts/reading_cost.py smollm2-135m

For docs/errors.md. Both sides alternate; the ratio is that of the best rounds, in processor time.
"""

import argparse
import time

import torch

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import PairDataModule
from attention_probing.fidelity.head_features import reading_heads
from attention_probing.fidelity.pair_errors import PairReader
from attention_probing.measures.pair_tasks import MinimalPairs

ROUNDS = 3


@torch.inference_mode()
def main() -> None:
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder")
    parser.add_argument("--pairs", type=int, default=16, help="number of pairs of a batch")
    options = parser.parse_args()
    data = PairDataModule("blimp", EncoderSpec(options.encoder), per_paradigm=1)
    data.setup("test")
    split = data.splits["test"]
    task = MinimalPairs(split)
    batch = split[list(range(min(options.pairs, len(split))))]
    inputs = task.inputs(batch)
    plain = []
    reading = []
    for _ in range(ROUNDS):
        began = time.process_time()
        task.outputs(inputs)
        plain.append(time.process_time() - began)
        began = time.process_time()
        reader = PairReader(batch, "all")
        with reading_heads(reader.reduce):
            task.outputs(inputs)
        reading.append(time.process_time() - began)
    print(
        f"{options.encoder}: {len(batch.index)} pairs, {batch.tokens.size(1)} tokens: {min(plain):.2f} s, with the "
        f"features {min(reading):.2f} s, {min(reading) / min(plain):.2f} times"
    )


if __name__ == "__main__":
    main()
