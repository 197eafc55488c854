"""Names of scores and rankings as a paper prints them."""

import re

_WORDS = "UAS UUAS F1 MCC AUROC AUPRC AUC MSE TVD JSD JS AOPC NAOPC LDS RACU IoU SD MLP Pearson Spearman Holm"
PRINTED_NAMES = {word.lower(): word for word in _WORDS.split()}
PRINTED_NAMES |= {"kendall": "Kendall's τ", "tau": "τ"}
PRINTED_NAMES |= {"input_x_gradient": "gradient × input", "attention_times_gradient": "attention × gradient"}
PRINTED_NAMES |= {"comprehensiveness": "Comp.", "median_fraction": "erased share"}
PRINTED_NAMES |= {"soft_nc": "Soft-NC", "soft_nc_equal": "equal Soft-NC"}
PRINTED_NAMES |= {"soft_ns": "Soft-NS", "soft_ns_equal": "equal Soft-NS"}
"""Names of scores and rankings in print, and of words in them; see `printed_name`."""
_NAME = re.compile(rf"(?<![^\W_])({'|'.join(sorted(PRINTED_NAMES, key=len, reverse=True))})(?![^\W_])")


def printed_name(name: str) -> str:
    """Return a name in print: `max_jsd` is `max JSD`.

    Names that `PRINTED_NAMES` lacks have blanks in place of underscores.
    """
    return _NAME.sub(lambda match: PRINTED_NAMES[match[0]], name).replace("_", " ")
