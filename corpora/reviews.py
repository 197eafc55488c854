"""The embedded sample of labelled texts: generated reviews whose deciding words are known.

Reviews of films, books, restaurants and things for the house, one to four tokenised sentences. Facts say nothing about
the label. Evaluative words that stand for somebody else's opinion, for what was expected, or for another thing do not
count either; so no bag of words gets all labels right.

The rule. The rationale of a text holds the words of the writer's own opinions: evaluative words, and the negator
(`not`, `n't`, `never`, `hardly`) of one that is negated. Read the rationale in order: an evaluative word speaks for or
against (`corpora.review_lexicon.EVALUATIVE`), and the other way if the rationale word before it is a negator; that is
the label. A text has one such opinion, so that its words decide alone: nothing else says the same.
"""

from pathlib import Path

from corpora.files import write_whole
from corpora.grammar.phrases import Dice
from corpora.review_grammar import Reviews

# Raise it with every change that makes a seed give other files.
REVIEWS_VERSION: int = 2

# Texts of each split, half of each label; they are dealt out in turn, so that the splits are alike.
SIZES = {"train": 3000, "dev": 250, "test": 250}
SHORTEST, LONGEST = 5, 60  # tokens, punctuation included


def write_sample_reviews(folder: Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the sample reviews as `reviews-<split>.tsv`; return the files of `train`, `dev` and `test`.

    The columns are `label` (`positive` or `negative`), `text` and `rationale` (places of words from 0). A seed gives
    the same bytes on every machine, and no two texts of the three files are the same but for case. Each file appears
    whole or not at all.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[str]] = {split: [] for split in SIZES}
    turn = 2 * sum(SIZES.values()) // SIZES["dev"]  # two a turn, one of each label
    grammar = Reviews(Dice(seed))
    seen: set[str] = set()
    while len(seen) < sum(SIZES.values()):
        i = len(seen)
        tokens, rationale = grammar.review(good := i % 2 == 0)
        text = " ".join(tokens)
        if not SHORTEST <= len(tokens) <= LONGEST or text.lower() in seen:
            continue
        seen.add(text.lower())
        split = {0: "dev", 1: "test"}.get(i % turn // 2, "train")
        rows[split].append(f"{'positive' if good else 'negative'}\t{text}\t{' '.join(map(str, rationale))}\n")
    return {
        split: write_whole(folder / f"reviews-{split}.tsv", "label\ttext\trationale\n" + "".join(found))
        for split, found in rows.items()
    }
