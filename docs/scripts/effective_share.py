"""Share of an attention row that cannot change the output of its head, on WikiText (docs/papers/quantities.md).

python docs/scripts/effective_share.py
"""

import torch

from attention_probing.attention.alignment import Reduction
from attention_probing.attention.quantities import QUANTITIES
from attention_probing.datamodules import TextDataModule, TextSource


def main() -> None:
    """Print the median share of the norm that is lost, the share of rows whose largest weight moves, and the rows."""
    data = TextDataModule([TextSource("wikitext", packing="pairs", limit=200)])
    data.setup("test")
    encoder, lost, moved = data.encoders["given"], [], []
    for batch in data.test_dataloader()[0]:
        inputs = encoder.inputs(batch.tokens, batch.mask, batch.segments)
        found: dict[str, dict[int, torch.Tensor]] = {"attention": {}, "effective": {}}
        for name, own in found.items():
            quantity = QUANTITIES[name](encoder.parts, batch.mask, Reduction.of_pieces(batch.mask))
            with torch.inference_mode():
                encoder.capture(inputs, own.__setitem__, frozenset(range(encoder.layers)), measure=quantity.maps)
        for layer in range(encoder.layers):
            raw, effective = (own[layer].transpose(1, 2)[batch.mask] for own in found.values())
            lost.append(((raw - effective).norm(dim=-1) / raw.norm(dim=-1)).flatten())
            moved.append((raw.argmax(-1) != effective.argmax(-1)).flatten())
    rows = torch.cat(moved)
    print(f"{torch.cat(lost).median():.2f} {rows.float().mean():.2f} {rows.numel():,}")


if __name__ == "__main__":
    main()
