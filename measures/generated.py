"""Roles of decoder heads in generated text: retrieval heads, and how much they look back to the prompt."""

import numpy as np
import xarray as xr


def lookback_ratio(attention: xr.DataArray) -> xr.DataArray:
    """Return how much each head looks at the prompt rather than at what it has generated (Chuang et al. 2024, §2).

    It is c / (c + g), with c the mean weight of the tokens of the prompt and g that of the generated tokens before.

    Args:
        attention: Attention of generated tokens, from `Encoder.generated`.

    Returns:
        `[layer, head, from]`, 0 to 1; nan for the first token, before which nothing is generated.
    """
    generated = attention["generated"]
    tokens = xr.DataArray(np.arange(attention.sizes["from"]), dims="from")  # generated before each of them
    prompt = attention.where(~generated, 0).sum("to") / int((~generated).sum())
    own = attention.where(generated, 0).sum("to") / tokens.where(tokens > 0)
    return (prompt / (prompt + own)).transpose("layer", "head", "from")


def retrieval_scores(attention: xr.DataArray, start: int, end: int) -> xr.DataArray:
    """Return the share of a passage of the prompt that each head copies into the text (Wu et al. 2024, §2).

    A head copies a token of the passage if it attends most to this token, of all tokens, when the same token is
    generated. A token that is copied several times counts once.

    Args:
        attention: Attention of generated tokens, from `Encoder.generated`.
        start: 0-based position in the prompt of the first token of the passage, the needle.
        end: Position after its last token.

    Returns:
        `[layer, head]`, 0 to 1.

    Raises:
        IndexError: The passage is empty, or not in the prompt.
    """
    prompt = int((~attention["generated"]).sum())
    if not 0 <= start < end <= prompt:
        raise IndexError(f"The passage from {start} to {end} is not inside the prompt, which has {prompt} tokens.")
    most = attention.argmax("to")
    tokens = attention["to"].to_numpy()
    same = tokens[most.to_numpy()] == attention["from"].to_numpy()
    places = most.where((most >= start) & (most < end) & same, -1).to_numpy()
    copied = (places[..., None] == np.arange(start, end)).any(2)  # [layer, head, passage]
    return xr.DataArray(copied.mean(-1), {name: attention[name] for name in ("layer", "head")}, ("layer", "head"))
