"""Small language models trained on the sample grammar, whose heads nobody has written."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from attention_probing.corpora.sample_grammar import DOCUMENTS, Grammar, sample_vocabulary
from attention_probing.results.options import NonNegative, Positive, checked
from studies.blank import WordModel, language_model
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
    sentences = _new_sentences(seed)
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        made = language_model("bert", list(sample_vocabulary()), {**_SIZES, "max_position_embeddings": LONGEST})
        tokenizer = made.tokenizer

        def masked_loss(tokens: Tensor, mask: Tensor) -> Tensor:
            words = tokens >= len(tokenizer.all_special_ids)
            hidden = words & (torch.rand(tokens.shape) < _MASKED)
            inputs = tokens.masked_fill(hidden, tokenizer.mask_token_id)
            logits = made.model(input_ids=inputs, attention_mask=mask).logits
            return cross_entropy(logits.transpose(1, 2), tokens.masked_fill(~hidden, _IGNORED))

        _train(made, sentences, steps, masked_loss)
    return made


@checked
def natural_decoder(seed: NonNegative = 0, steps: NonNegative = 800, layers: Positive = 4) -> WordModel:
    """Train a Llama with four heads in each layer on sentences of the sample grammar.

    It predicts the next word. No sentence of the sample corpora is among them.

    Args:
        seed: Seed of the sentences, of the first weights and of the order of the sentences.
        steps: Number of batches of 32 sentences.
        layers: Number of layers.
    """
    sentences = _new_sentences(seed)
    sizes = _SIZES | {"num_hidden_layers": layers, "max_position_embeddings": LONGEST}
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        made = language_model("llama", list(sample_vocabulary()), sizes)

        def next_loss(tokens: Tensor, mask: Tensor) -> Tensor:
            logits = made.model(input_ids=tokens, attention_mask=mask).logits[:, :-1]
            targets = tokens.masked_fill(mask == 0, _IGNORED)[:, 1:]
            return cross_entropy(logits.transpose(1, 2), targets)

        _train(made, sentences, steps, next_loss)
    return made


def _train(
    made: WordModel, sentences: list[list[str]], steps: int, loss_of: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """Train a model on random batches of sentences.

    Args:
        made: The model.
        sentences: Words of each sentence.
        steps: Number of batches.
        loss_of: Function of the tokens and the mask of a batch, each `[sentences, tokens]`.
    """
    model: PreTrainedModel = made.model.train()
    read = made.tokenizer([" ".join(words) for words in sentences], padding=True, return_tensors="pt")
    tokens, mask = read["input_ids"], read["attention_mask"]
    adam = torch.optim.AdamW(model.parameters(), _RATE)
    falling = torch.optim.lr_scheduler.OneCycleLR(adam, _RATE, total_steps=max(steps, 2))
    for _ in range(steps):
        rows = torch.randint(len(tokens), (_BATCH,))
        loss = loss_of(tokens[rows], mask[rows])
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        falling.step()
    model.eval()  # type: ignore[no-untyped-call]


def _new_sentences(seed: int) -> list[list[str]]:
    """Return sentences of the grammar, drawn with a seed, none of which is in the sample corpora."""
    known = {tuple(words) for words in _draw_sentences(Grammar(0), sum(DOCUMENTS.values()))}
    drawn = _draw_sentences(Grammar(_FIRST + seed), _DOCUMENTS)
    return [words for words in drawn if tuple(words) not in known]


def _draw_sentences(grammar: Grammar, documents: int) -> Iterator[list[str]]:
    """Yield the words of each sentence of some documents."""
    for _ in range(documents):
        sentences, _mentions = grammar.document()
        for sentence in sentences:
            yield [word.form for word in sentence]
