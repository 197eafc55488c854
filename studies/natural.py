"""A small masked language model trained on the sample grammar, whose heads nobody has written."""

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from attention_probing.corpora.sample_grammar import DOCUMENTS, Grammar, sample_vocabulary
from attention_probing.results.options import NonNegative, checked
from studies.blank import WordModel, masked_language_model
from studies.planted import LONGEST

_DOCUMENTS = 800  # of the grammar, with five sentences each
_SIZES = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
_BATCH, _MASKED, _RATE = 32, 0.15, 2e-3
_IGNORED = -100  # a target without a loss, as in torch
_FIRST = 1_000_000  # seed of the grammar, far from those of corpora


@checked
def natural_model(seed: NonNegative = 0, steps: NonNegative = 800) -> WordModel:
    """Train a BERT of three layers with four heads on sentences of the sample grammar.

    In every sentence 15 % of the words are replaced by the mask token and predicted. No sentence of the sample corpora
    is among them.

    Args:
        seed: Seed of the sentences, of the first weights and of the masks.
        steps: Number of batches of 32 sentences.
    """
    known = {tuple(words) for words in _sentences(Grammar(0), sum(DOCUMENTS.values()))}
    sentences = [words for words in _sentences(Grammar(_FIRST + seed), _DOCUMENTS) if tuple(words) not in known]
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        made = masked_language_model(list(sample_vocabulary()), {**_SIZES, "max_position_embeddings": LONGEST})
        model, tokenizer = made.model.train(), made.tokenizer
        read = tokenizer([" ".join(words) for words in sentences], padding=True, return_tensors="pt")
        tokens, mask = read["input_ids"], read["attention_mask"]
        words = tokens >= len(tokenizer.all_special_ids)
        adam = torch.optim.AdamW(model.parameters(), _RATE)
        falling = torch.optim.lr_scheduler.OneCycleLR(adam, _RATE, total_steps=max(steps, 2))
        for _ in range(steps):
            rows = torch.randint(len(tokens), (_BATCH,))
            hidden = words[rows] & (torch.rand(_BATCH, tokens.size(1)) < _MASKED)
            inputs = tokens[rows].masked_fill(hidden, tokenizer.mask_token_id)
            logits = model(input_ids=inputs, attention_mask=mask[rows]).logits
            loss = cross_entropy(logits.transpose(1, 2), tokens[rows].masked_fill(~hidden, _IGNORED))
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            falling.step()
    return WordModel(model.eval(), tokenizer)


def _sentences(grammar: Grammar, documents: int) -> Iterator[list[str]]:
    for _ in range(documents):
        yield from ([word.form for word in words] for words in grammar.document()[0])
