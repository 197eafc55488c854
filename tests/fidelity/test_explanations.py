"""Explanations from files and from inseq: they give the scores of the originals, and faults are named."""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from safetensors.torch import save
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attention_probing.attention import EncoderSpec
from attention_probing.datamodules import ClassificationDataModule
from attention_probing.fidelity import Correlation, Explainer, FidelityTest, Rationale, SetErasure
from attention_probing.fidelity.classified import ClassifiedBatch, classify
from attention_probing.fidelity.explanations import (
    FileExplainer,
    _owners,
    from_inseq,
    read_explanations,
    write_explanations,
)
from attention_probing.fidelity.removal_orders import EveryLength
from attention_probing.fidelity.saliency import Saliency, check_rankings
from attention_probing.models.configs import only_known_classes
from attention_probing.results.errors import UserError
from tests import tiny
from tests.fidelity.tiny import SENTENCES, TEXTS, classified as tiny_texts
from tests.fidelity.trained import Checkpoints, Data

Lines = list[dict[str, Any]]
NAMES = ["base, seed 0", "another"]


@pytest.fixture(scope="module")
def batches(data: Data, checkpoints: Checkpoints) -> Sequence[ClassifiedBatch]:
    batches = data.test_dataloader()[1]
    found = [classify(checkpoints[0], batch, seed=0, vocabulary=data.vocabulary)[1] for batch in batches]
    return [one for one in found if one is not None]


def words_of(data: Data, text: int) -> list[str]:
    return [str(form) for form in data.splits["test"].forms(text) if form is not None]


def lines_of(data: Data, batches: Sequence[ClassifiedBatch], measure: str = "integrated_gradients") -> Lines:
    """A measure of all tested texts, as it would be written by its author."""
    found = []
    for classified in batches:
        values = getattr(Saliency(classified), measure)
        for row, text in enumerate(classified.batch.index.tolist()):
            scores = values[row, classified.words[row]]
            found.append({"id": data.splits["test"].ids[text], "words": words_of(data, text), "scores": scores})
    return found


class Integrated(Explainer):
    """Integrated gradients, as a class of a user's own."""

    def __init__(self, name: str = "own", fault: str = "") -> None:
        self.name, self.fault = name, fault

    def scores(self, classified: ClassifiedBatch) -> Tensor:
        found = Saliency(classified).integrated_gradients.requires_grad_()
        if self.fault == "shape":
            return found[:, :-1]
        return found.masked_fill(classified.mask, torch.nan) if self.fault else found


@pytest.mark.parametrize("given", ["file", "object"])
def test_a_measure_from_a_file_or_an_object_gives_the_scores_of_its_original(
    given: str, data: Data, batches: Sequence[ClassifiedBatch], tmp_path: Path
) -> None:
    path = tmp_path / "own.jsonl"
    write_explanations(path, lines_of(data, batches))
    explanations = {f"file:{path}": read_explanations(path, data, NAMES)}
    ranking = f"file:{path}" if given == "file" else Integrated()
    timed = Saliency(batches[0], explanations)
    timed.signed_values(ranking)
    assert list(timed.seconds) == ["own"]
    removals = partial(Rationale, every_length=EveryLength(exact=4, beam=2))
    tests: tuple[Callable[..., FidelityTest], ...] = (
        SetErasure,
        partial(SetErasure, last="keep"),
        removals,
        Correlation,
    )
    for make in tests:
        for classified in batches:
            own, read = (
                make([one]).measure(classified, Saliency(classified, explanations))
                for one in ("integrated_gradients", ranking)
            )
            renamed = {name.replace("own", "integrated_gradients", 1): values for name, values in read.items()}
            assert own.keys() - renamed.keys() <= {"integrated_gradients.incompleteness"}
            for name, values in renamed.items():
                assert torch.equal(values.nan_to_num(9), own[name].to(values).nan_to_num(9)), name


@pytest.mark.parametrize(
    ("test", "option"), [(Rationale, "rankings"), (SetErasure, "rankings"), (Correlation, "saliencies")]
)
def test_an_object_is_made_by_its_class_path_if_the_command_line_trusts_it(
    test: type[FidelityTest], option: str
) -> None:
    own = {"class_path": f"{__name__}.Integrated", "init_args": {"name": "mine"}}
    listed = {"class_path": test.__name__, "init_args": {option: ["integrated_gradients", own]}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--tests", type=list[FidelityTest])
    with only_known_classes(["tests"]):
        [made] = parser.instantiate(parser.parse_object({"tests": [listed]})).tests
    assert list(made.rankings) == ["integrated_gradients", "mine"]
    assert type(made.rankings["mine"]).__name__ == "Integrated"
    with only_known_classes(), pytest.raises(Exception, match="is not allowed"):
        parser.parse_object({"tests": [listed]})


def test_pieces_are_summed_to_words_and_lines_may_name_a_classifier(
    data: Data, batches: Sequence[ClassifiedBatch], tmp_path: Path
) -> None:
    path, lines = tmp_path / "pieces.jsonl", lines_of(data, batches)
    for line in lines:
        numbers = range(1, 2 * len(line["words"]) + 3)
        inside = [place // 2 for place in range(2 * len(line["words"]))]
        line |= {"scores": [*numbers], "word_ids": [None, *inside, None]}
    other = [{**line, "scores": [0] * len(line["scores"]), "checkpoint": "another"} for line in lines]
    write_explanations(path, [*lines, *other])
    for classified in batches:
        found = read_explanations(path, data, NAMES).scores(classified)
        for row, words in enumerate(classified.words):
            expected = [2 * (2 * place + 2) + 1 for place in range(int(words.sum()))]
            assert found[row, words].tolist() == expected
        own = read_explanations(path, data, NAMES).scores(
            replace(classified, checkpoint=replace(classified.checkpoint, name="another"))
        )
        assert not own.any()


FAULTS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda line: line.update(id="999"), r"the test split has no text '999'"),
    (lambda line: line.update(id=True), r"id must be text or a whole number"),
    (lambda line: line.update(checkpoint="base"), r"there is no checkpoint 'base'.*'base, seed 0', 'another'"),
    (
        lambda line: line["words"].__setitem__(1, "other"),
        r"text '\d+': word 2 is 'other', but the classifier reads '.* `probing",
    ),
    (
        lambda line: line["words"].append("more") or line["scores"].append(1),
        r"text '\d+' has \d+ words in the file.* `probing",
    ),
    (lambda line: line["scores"].pop(), r"text '\d+' has \d+ scores?, but \d+ words"),
    (lambda line: line["scores"].__setitem__(1, float("nan")), r"score 2 of text '\d+' is nan"),
    (lambda line: line["scores"].__setitem__(0, 10**400), r"score 1 of text '\d+' is 1"),
    (lambda line: line.update(word_ids=[0.5]), r"word_ids must be a list, each a whole number"),
    (
        lambda line: line.update(word_ids=[99] * len(line["words"])),
        r"text '\d+' has the word id 99, but word ids go from 0 to \d+\.",
    ),
    (lambda line: line.update(model="mine"), r"a line must have the keys id, words and scores"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_a_fault_is_named_by_line_and_text(
    change: Callable[[dict[str, Any]], object],
    message: str,
    data: Data,
    batches: Sequence[ClassifiedBatch],
    tmp_path: Path,
) -> None:
    path, lines = tmp_path / "faulty.jsonl", lines_of(data, batches)
    for line in lines:
        line["scores"] = line["scores"].tolist()
    change(lines[1])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=f"{path}:2: {message}"):
        read_explanations(path, data, NAMES)


def test_a_text_without_scores_is_named(data: Data, batches: Sequence[ClassifiedBatch], tmp_path: Path) -> None:
    path, lines = tmp_path / "scores.jsonl", lines_of(data, batches)
    missing = lines.pop(3)
    write_explanations(path, lines)
    with pytest.raises(
        UserError, match=f"no scores of 2 texts, the first of them '{missing['id']}' under base, seed 0"
    ):
        read_explanations(path, data, NAMES)
    others = [text for text, name in enumerate(data.splits["test"].ids) if str(name) != str(missing["id"])]
    assert len(read_explanations(path, data, NAMES, others).of_tokens) == len(lines)  # not if it is not read
    write_explanations(path, [*lines, {**missing, "checkpoint": "another"}])
    with pytest.raises(UserError, match=f"no scores of 1 text, the first of them '{missing['id']}' under base, seed 0"):
        read_explanations(path, data, NAMES)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Texts of words that the tokenizer of the default encoder cuts into one, two and more pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("label\ttext\ngood\ta Smorgasbord of films\nbad\tan unwatchable plot\n")
    data = ClassificationDataModule(
        str(folder / "{split}.tsv"),
        tokenizer=EncoderSpec(),
        positive="good",
        cache=str(folder / "stores"),
        max_length=10,
    )
    data.setup("test")
    return data


def test_the_score_of_a_word_is_divided_among_its_pieces(pieces: Data, tmp_path: Path) -> None:
    split, path = pieces.splits["test"], tmp_path / "scores.jsonl"
    words = [["a", "Smorgasbord", "of", "films"], ["an", "unwatchable", "plot"]]
    scores = [[1.0, 6.0, -2.0, 0.5], [1.0, 2.0, 3.0]]
    write_explanations(
        path, [{"id": split.ids[text], "words": words[text], "scores": scores[text]} for text in range(2)]
    )
    found = read_explanations(path, pieces, ["a"]).of_tokens
    for text in range(2):
        places = split.places(text)
        assert max(map(places.count, range(len(words[text])))) > 1, "a word of several pieces"
        assert (places[0], places[-1]) == (-1, -1)
        expected = [scores[text][place] / places.count(place) if place >= 0 else 0 for place in places]
        assert found["", text].tolist() == expected


@pytest.mark.parametrize("form", ["as the tokenizer writes them", "as they are read"])
@pytest.mark.parametrize("save", [tiny.save_bert, tiny.save_roberta])
def test_pieces_keep_their_own_scores(form: str, save: Callable[[Path], Path], tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.tsv").write_text("label\ttext\ngood\tthe unlazy fox\nbad\tunlazy\n")
    encoder = EncoderSpec(str(save(tmp_path / "encoder")))
    data = ClassificationDataModule(
        str(tmp_path / "{split}.tsv"), tokenizer=encoder, positive="good", cache=str(tmp_path)
    )
    data.setup("test")
    split, path = data.splits["test"], tmp_path / "scores.jsonl"
    forms = [split.readable(text) if "read" in form else data.text("test", text)[1] for text in range(2)]
    own = [
        [token for token, place in zip(forms[text], split.places(text), strict=True) if place >= 0] for text in range(2)
    ]
    assert len(own[0]) > 3
    assert any("Ġ" in token for token in own[0]) == (save is tiny.save_roberta and "read" not in form)
    write_explanations(
        path, [{"id": split.ids[text], "words": own[text], "scores": range(len(own[text]))} for text in range(2)]
    )
    found = read_explanations(path, data, ["a"]).of_tokens
    for text in range(2):
        assert found["", text].tolist() == [0.0, *range(len(own[text])), 0.0]


def test_a_sentence_has_the_sum_of_its_words() -> None:
    texts = tiny_texts("han", time=9)
    scores = {("", text): np.arange(1.0, len(words) + 1) for text, words in enumerate(TEXTS)}
    found = FileExplainer("a", Path("a.jsonl"), "", scores).scores(texts)
    for text, sentences in enumerate(SENTENCES):
        sums = np.bincount(sentences, weights=scores["", text])
        assert found[text, : len(sums)].tolist() == sums.tolist()


def test_what_is_no_number_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Text 2 \(b\) has a score that is not a finite number"):
        write_explanations(
            tmp_path / "a.jsonl",
            [{"id": name, "words": ["x"], "scores": [score]} for name, score in (("a", 1), ("b", float("nan")))],
        )
    assert not list(tmp_path.iterdir())


def test_rankings_are_known_or_files() -> None:
    assert list(check_rankings("a", ["attention", "file:folder/mine.jsonl"])) == ["attention", "mine"]
    for rankings, message in (
        (["atention"], r"'atention' is not a ranking \(did you mean `attention`"),
        (["file:a/x.jsonl", "file:b/x.jsonl"], "lists x more than once"),
        (["file:a/own.jsonl", Integrated()], "lists own more than once"),
        (["my.module.Own"], "{class_path: …} for a class of your own"),
    ):
        with pytest.raises(UserError, match=message):
            check_rankings("a", rankings)  # type: ignore[arg-type]


# Written by inseq 0.7.1 with transformers 4.57.3 and torch 2.13.0 from random models: GPT-2 (one layer, `n_embd=8`,
# byte-level pieces, `input_x_gradient`, prompts `Review: … Sentiment:`, generated text ` good`) and T5 (one layer,
# `d_model=8`, `saliency`, generated texts `good` and `bad`):
#   out = inseq.load_model(folder, method).attribute(prompts, generated, show_progress=False); out.save("inseq.json")
# lxt.json: by lxt 2.1 under the same versions from a random Llama classifier (two layers, `hidden_size=16`, the pieces
# of that GPT-2), after `monkey_patch(modeling_llama)`, with the lines of docs/howto/judge.md, but for a padded batch:
#   hidden = model.model(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
#   logits = model.score(hidden[torch.arange(2), mask.sum(1) - 1]); logits.max(1).values.sum().backward()
FOREIGN = Path(__file__).parent / "foreign"
OF_INSEQ = {"17": ["a", "fine", "film", ",", "née", "Bücher"], "18": ["an", "unwatchable", "plot"]}


def lines_of_section(heading: str, most: int = 10) -> str:
    """The Python lines of a section of the page, no more than ten."""
    page = (Path(__file__).parents[2] / "docs/howto/judge.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [block] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert sum(map(bool, block.splitlines())) <= most
    return str(block)


@pytest.mark.checkout
def test_the_lines_for_captum_write_gradient_times_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tiny.add_head(tiny.save_bert(tmp_path / "bert"), 2)
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    words = {"a": ["the", "fox"], "b": ["the", "unknownness", "fox", "the"]}
    exec(lines_of_section("captum"), {"model": model, "tokenizer": tokenizer, "texts": words})
    for line in map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines()):
        encoding = tokenizer(words[line["id"]], is_split_into_words=True, return_tensors="pt")
        embedded = model.get_input_embeddings()(encoding["input_ids"]).detach().requires_grad_()
        model(inputs_embeds=embedded, attention_mask=encoding["attention_mask"]).logits.max().backward()
        expected = (embedded.grad * embedded).sum(-1)[0].tolist()
        assert line["scores"][: len(expected)] == pytest.approx(expected, abs=1e-6)
        owners = encoding.word_ids(0)
        assert line["word_ids"] == owners + [None] * (len(line["scores"]) - len(owners))


@pytest.mark.checkout
def test_the_lines_for_lxt_write_its_relevance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads((FOREIGN / "lxt.json").read_text())
    encoding = SimpleNamespace(word_ids=found["word_ids"].__getitem__)
    texts = {"17": ["a", "fine", "film"], "18": OF_INSEQ["18"]}
    exec(lines_of_section("lxt"), {"relevance": torch.tensor(found["relevance"]), "encoding": encoding, "texts": texts})
    lines = [*map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())]
    assert [(line["id"], line["words"], line["word_ids"]) for line in lines] == [
        (name, words, found["word_ids"][row]) for row, (name, words) in enumerate(texts.items())
    ]
    for line, own in zip(lines, found["relevance"], strict=True):
        assert line["scores"] == pytest.approx(own)


@pytest.mark.checkout
def test_the_class_of_the_page_ranks_long_words_first(batches: Sequence[ClassifiedBatch]) -> None:
    names: dict[str, Any] = {}
    exec(lines_of_section("A class of your own", 20), names)
    own = names["LongWords"]()
    for classified in batches:
        scores = Saliency(classified).signed_values(own)
        for row, words in enumerate(classified.words):
            read = [classified.vocabulary.words[token] for token in classified.batch.tokens[row, words].tolist()]
            assert scores[row, words].tolist() == [*map(len, read)]
    assert list(check_rankings("a", ["random", own])) == ["random", "long_words"]


# Written by inseq 0.7.1 with transformers 4.57.3 and torch 2.13.0 from random models: GPT-2 (one layer, `n_embd=8`,
# byte-level pieces, `input_x_gradient`, prompts `Review: … Sentiment:`, generated text ` good`) and T5 (one layer,
# `d_model=8`, `saliency`, generated texts `good` and `bad`):
#   out = inseq.load_model(folder, method).attribute(prompts, generated, show_progress=False); out.save("inseq.json")
# As inseq 0.7.1 returned them: `out.sequence_attributions[…].target_attributions[:attr_pos_start].sum((1, 2))`.
OF_GPT2 = {
    "17": [
        -4.8288e-07,
        -6.6347e-07,
        3.5015e-07,
        -2.5606e-07,
        -1.3075e-06,
        -8.4123e-07,
        9.8862e-07,
        2.3832e-06,
        3.6314e-07,
    ],
    "18": [9.2853e-08, -2.4487e-08, 4.2220e-08, -3.4523e-07, 7.9623e-08, -4.1911e-07, 5.7068e-08],
}
PIECES_OF_GPT2 = {"17": [0, 1, 2, 3, 4, 4, 5, 5, 5], "18": [0, 1, 1, 1, 1, 2, 2]}
OF_T5 = {"17": [0.0008, 0.0003, 0.0008, 0.0013, 0.0016, 0.0008], "18": [0.0089, 0.0069, 0.0102]}


def test_files_of_inseq_are_read() -> None:
    for line in from_inseq(FOREIGN / "inseq_gpt2.json", OF_INSEQ):
        assert line["words"] == OF_INSEQ[line["id"]]
        assert line["word_ids"] == PIECES_OF_GPT2[line["id"]]
        assert line["scores"].tolist() == pytest.approx(OF_GPT2[line["id"]], rel=1e-4)
    for line in from_inseq(FOREIGN / "inseq_t5.json", OF_INSEQ):
        assert line["word_ids"] == [*range(len(line["words"]))]
        assert line["scores"].tolist() == pytest.approx(OF_T5[line["id"]], abs=5.1e-5)


def test_a_blank_alone_belongs_to_the_word_behind_it() -> None:
    assert _owners(["▁", "2", "▁film", "▁", "n", "ée", "</s>"], ["2", "film", "née"]) == [0, 0, 1, 2, 2, 2, None]
    pieces = ["Review", ":", "Ġ", "2", "Ġ", "Ġfilm", "Ġ", "Ċ"]
    assert _owners(pieces, ["2", "film"]) == [None, None, None, 0, 1, 1, None, None]


def test_pieces_of_bytes_are_known_without_a_blank() -> None:
    assert _owners(["n", "Ã©e"], ["née"]) == [0, 0]
    assert _owners(["Ã©e"], ["Ã©e"]) == [0]
    assert _owners(["Review", "Ġfilm"], ["film"]) == [None, 0]


def test_what_is_no_file_of_inseq_is_refused(tmp_path: Path) -> None:
    path = FOREIGN / "inseq_gpt2.json"
    (tmp_path / "a.json").write_text('{"attributes": {}}')
    (tmp_path / "b.json").write_bytes(save({"a": torch.ones(1)}))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    odd: dict[str, Tensor | None] = {"scalar": torch.ones(()), "short": torch.ones(1, 3), "null": None}
    for name, scores in odd.items():
        own = None if scores is None else b64encode(save({"attribution": scores})).decode()
        tokens = [{"attributes": {"token": "a"}}, {"attributes": {"token": "b"}}] if own else None
        sequence = {"source_attributions": own or "", "source": tokens, "target": [], "attr_pos_start": 0}
        of = {"attributes": {"sequence_attributions": [{"attributes": sequence}]}}
        (tmp_path / f"{name}.json").write_text(json.dumps(of))
    (tmp_path / "nulls.json").write_text('{"attributes": {"sequence_attributions": [null]}}')
    for file, texts, message in (
        (tmp_path / "a.json", OF_INSEQ, "is not a file that inseq wrote"),
        (tmp_path / "b.json", OF_INSEQ, "is not a file that inseq wrote"),
        (tmp_path / "none.json", OF_INSEQ, "is not a file that inseq wrote"),
        (tmp_path, OF_INSEQ, "is not a file that inseq wrote"),
        *(
            (tmp_path / f"{name}.json", {"1": ["ab"]}, "is not a file that inseq wrote")
            for name in ("deep", "nulls", *odd)
        ),
        (path, {"17": OF_INSEQ["17"]}, "has 2 texts, but `texts` has 1"),
        (path, {**OF_INSEQ, "18": ["a", "plot"]}, "text '18': the pieces 'Re view : .*' do not spell 'a plot'"),
    ):
        with pytest.raises(UserError, match=message):
            from_inseq(file, texts)
