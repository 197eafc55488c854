"""Lookback ratios and retrieval scores of a decoder on WikiText (docs/models.md).

A prompt is the first 80 words of a segment, with a sentence in its middle, the needle. Lookback: the decoder continues
the prompt by 20 tokens. Retrieval: the needle is read as if the decoder had written it after the prompt, so this is the
copying of a repeated sentence; Wu et al. (2024) ask a question, and score what the model answers by itself. The best
head is chosen on the first half of the prompts and scored on the second. Intervals are bootstraps over prompts.

python docs/scripts/generated.py FOLDER "$PROBING_DATA"/wiki/wiki_segments.tsv
"""

import csv
import sys

import numpy as np
import pandas as pd
import xarray as xr

from attention_probing.attention import Encoder
from attention_probing.measures import lookback_ratio, retrieval_scores
from attention_probing.metrics.bootstrap import bootstrap_ratio
from attention_probing.results.tables import score_cell

PROMPTS, WORDS, TOKENS = 60, 80, 20
PLACES = ("Oslo", "Lima", "Cairo", "Delhi", "Paris", "Quito")
THINGS = ("kite", "lamp", "drum", "boat", "coin", "rose")


def show(name: str, values: xr.DataArray) -> None:
    """Print a mean over prompts `[prompt]`, with its interval."""
    print(name, score_cell(bootstrap_ratio(values.to_numpy(), np.ones(values.size), share=False)))


def main(folder: str, segments: str) -> None:
    """Print lookback and retrieval of the decoder in a folder."""
    encoder, ratios, scores = Encoder(folder), [], []
    for number, text in enumerate(pd.read_csv(segments, sep="\t", quoting=csv.QUOTE_NONE)["text"][:PROMPTS]):
        words = text.split()[:WORDS]
        needle = f" The {THINGS[number % 6]} of {PLACES[number // 6 % 6]} is hidden under the old bridge."
        prompt = " ".join(words[: WORDS // 2]) + needle + " " + " ".join(words[WORDS // 2 :])
        ratios.append(lookback_ratio(encoder.generated(prompt, tokens=TOKENS)).mean("from"))
        read = encoder.generated(prompt, continuation=needle)
        pieces, given = list(read["from"].to_numpy()), list(read["to"].to_numpy()[~read["generated"].to_numpy()])
        start = next(at for at in range(len(given)) if given[at : at + len(pieces)] == pieces)
        scores.append(retrieval_scores(read, start, start + len(pieces)))
    lookback, retrieval = (xr.concat(one, "prompt").stack(place=("layer", "head")) for one in (ratios, scores))
    show("lookback, all heads", lookback.mean("place"))
    means = lookback.mean("prompt")
    print(f"lookback, heads from {100 * means.min():.1f} to {100 * means.max():.1f}")
    half = len(retrieval) // 2
    best = retrieval[:half].mean("prompt").to_numpy().argmax()
    show(f"retrieval, head {'-'.join(map(str, retrieval['place'].to_numpy()[best]))}", retrieval[half:, best])
    show("retrieval, all heads", retrieval[half:].mean("place"))


if __name__ == "__main__":
    main(*sys.argv[1:])
