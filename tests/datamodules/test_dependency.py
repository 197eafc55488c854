import json
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch

from attention_probing.attention import EncoderSpec, Options, resolve
from attention_probing.corpora.conllu import read_treebank
from attention_probing.corpora.formats import TREEBANKS, Reader
from attention_probing.corpora.sentence import CorpusError, Sentence, Treebank
from attention_probing.corpora.splits import Split
from attention_probing.datamodules import DependencyDataModule, VectorSpec
from attention_probing.datamodules.dependency import FIELDS, Field
from attention_probing.results.errors import UserError
from tests.datamodules.conftest import rows, trainer
from tests.marked import with_documents


@pytest.fixture(scope="module")
def data(bert: Path, corpus: str, cache: str) -> DependencyDataModule:
    stored: dict[str, Any] = {"encoder": EncoderSpec(str(bert)), "hidden": (0, 2), "vectors": VectorSpec("encoder")}
    module = DependencyDataModule(corpus, cache=cache, max_cells=400, batch_size=5, seed=3, **stored)
    module.setup("fit")
    module.setup("test")
    return module


def sentences(corpus: str, split: str) -> tuple[Sentence, ...]:
    return read_treebank(Path(corpus.replace("{split}", split))).sentences


def audit(module: DependencyDataModule) -> dict[str, dict[str, int]]:
    return cast(dict[str, dict[str, int]], module.provenance.audit)


def test_labels_are_those_of_the_file(data: DependencyDataModule, corpus: str) -> None:
    gold = sentences(corpus, "test")
    seen = []
    for batch, row, index in rows(data.test_dataloader()[1]):
        n = len(gold[index])
        seen.append(index)
        assert int(batch.lengths[row]) == n
        assert tuple(batch.heads[row, :n].tolist()) == gold[index].heads
        assert tuple(data.relations[code] for code in batch.relations[row, :n].tolist()) == gold[index].relations
        assert batch.punctuation[row, :n].tolist() == [label == "punct" for label in gold[index].relations]
        assert batch.mask[row].tolist() == [True] * n + [False] * (batch.heads.size(1) - n)
        assert (batch.heads[row, n:] == -1).all()
        assert (batch.relations[row, n:] == -1).all()
        assert not batch.punctuation[row, n:].any()
    assert sorted(seen) == list(range(len(gold)))


def test_sentences_have_the_number_of_their_document(bert: Path, corpus: str, tmp_path: Path) -> None:
    marked = with_documents(corpus, tmp_path, 3)
    module = DependencyDataModule(marked, cache=str(tmp_path), batch_size=5, encoder=EncoderSpec(str(bert)))
    module.setup("test")
    split = module.splits["test"]
    expected = [index // 3 for index in range(17)]
    assert split.documents.tolist() == split.units.tolist() == expected
    assert split.describe_units() == "6 documents"
    seen = dict[int, int]()
    for batch in module.batches("test"):
        assert batch.documents.dtype == torch.int64
        seen |= dict(zip(batch.index.tolist(), batch.documents.tolist(), strict=True))
    assert seen == dict(enumerate(expected))


def test_without_marks_each_sentence_is_a_unit(data: DependencyDataModule) -> None:
    split = data.splits["test"]
    assert set(split.documents.tolist()) == {-1}
    assert split.units.tolist() == list(range(17))
    assert split.describe_units() == "17 sentences, taken as independent: no documents are marked (# newdoc)"
    assert all((batch.documents == -1).all() for batch in data.batches("test"))


@pytest.mark.parametrize(
    ("options", "column", "left_out"),
    [
        ({}, 7, ["punct"]),
        ({"punctuation": ("nmod", "det")}, 7, ["det", "nmod:poss"]),
        # What `prims_matrix_to_edges` in reporter.py of github.com/john-hewitt/structural-probes leaves out.
        ({"punctuation_by": "xpos"}, 4, ["''", ",", ".", ":", "``", "-LRB-", "-RRB-"]),
        ({"punctuation_by": "xpos", "punctuation": ("HYPH", ",")}, 4, ["HYPH", ","]),
        ({"punctuation_by": "xpos", "punctuation": ()}, 4, []),
    ],
)
def test_punctuation_by_relation_or_tag(
    options: dict[str, Any], column: int, left_out: list[str], corpus: str, tmp_path: Path
) -> None:
    module = DependencyDataModule(corpus, encoder=None, cache=str(tmp_path), **options)
    module.setup("test")
    blocks = Path(corpus.replace("{split}", "test")).read_text(encoding="utf-8").strip().split("\n\n")
    lines = [[line.split("\t") for line in block.split("\n") if line[0] != "#"] for block in blocks]
    count = 0
    for batch, row, index in rows(module.test_dataloader()[1]):
        expected = [line[column] in left_out for line in lines[index]]
        assert batch.punctuation[row].tolist() == expected + [False] * (batch.heads.size(1) - len(expected))
        count += sum(expected)
    assert bool(count) == bool(left_out)
    assert audit(module)["test"]["punctuation_words"] == count
    for split in ("dev", "test"):  # the record of a score says by what
        described = cast(dict[str, Any], module.provenance.data)[split]
        assert described["punctuation_by"] == options.get("punctuation_by", "relation")
        assert described["punctuation"] == list(options.get("punctuation", left_out))


def test_a_head_out_of_range_of_a_reader_of_ones_own_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_mine(path: Path, *, texts: bool) -> Treebank:
        labels = (("det", "root"), ("X", "X"), ("_", "_"))
        right = Sentence("first", ("the", "fox"), (2, 0), *labels)
        wrong = Sentence("second", ("the", "fox"), (3, 0), *labels)
        return Treebank((right, wrong), {})

    monkeypatch.setitem(cast(dict[str, Reader[Treebank]], TREEBANKS), ".mine", Reader(read_mine, {"name": "mine"}))
    for split in ("dev", "test"):
        (tmp_path / f"{split}.mine").touch()
    data = DependencyDataModule(str(tmp_path / "{split}.mine"), encoder=None, cache=str(tmp_path))
    fault = r"dev\.mine: sentence 'second': the word 'the' has head 3, but the sentence has 2 words\."
    with pytest.raises(CorpusError, match=fault):
        data.setup("test")


@pytest.mark.parametrize("stored", [False, True])
def test_a_treebank_without_tags_is_refused_where_punctuation_is_known_by_them(stored: bool, tmp_path: Path) -> None:
    for split in ("dev", "test"):
        tag = "." if split == "test" else "_"
        row = f"1\tfox\t_\tX\t{tag}\t_\t0\troot\t_\t_\n\n"
        (tmp_path / f"{split}.conllu").write_text(row, encoding="utf-8")
    options: dict[str, Any] = {"corpus": str(tmp_path / "{split}.conllu"), "encoder": None, "cache": str(tmp_path)}
    if stored:
        DependencyDataModule(punctuation=(), **options).setup("test")
    with pytest.raises(
        CorpusError, match=r"dev\.conllu: no word has a tag in column XPOS.*`punctuation_by='relation'`\."
    ):
        DependencyDataModule(punctuation_by="xpos", **options).setup("test")
    assert len(list(tmp_path.rglob("manifest.json"))) == 2 * stored  # nothing was extracted before


def test_attention_is_that_of_the_store_and_zero_behind_it(data: DependencyDataModule) -> None:
    uneven = 0
    for batch, row, index in rows(data.train_dataloader()):
        stored = data.stores["train"].read("attention", index)
        n = stored.size(-1)
        assert batch.attention.dtype == torch.float32
        assert torch.equal(batch.attention[row, ..., :n, :n], stored)
        assert not batch.attention[row, ..., n:, :].any()
        assert not batch.attention[row, ..., :, n:].any()
        uneven += n < batch.attention.size(-1)
    assert uneven  # some batch was padded


def test_base_labels_fold_the_subtypes_and_need_no_encoder(corpus: str, tmp_path: Path) -> None:
    module = DependencyDataModule(corpus, relations="base", encoder=None, cache=str(tmp_path))
    module.setup("validate")
    assert module.relations == ("det", "nmod", "nsubj", "obj", "punct", "root")
    gold = sentences(corpus, "dev")
    for batch, row, index in rows(module.val_dataloader()):
        labels = [module.relations[code] for code in batch.relations[row, : len(gold[index])].tolist()]
        assert labels == [relation.partition(":")[0] for relation in gold[index].relations]
        assert batch.attention.shape[1:3] == (0, 0)
    assert module.encoder_identity is None
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_training_makes_the_store_of_test_too(
    bert: Path, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path))
    module.trainer = trainer()
    with caplog.at_level("INFO", "pytorch_lightning"):
        module.setup("fit")
    assert "train 41 sentences, dev 13 sentences, test 17 sentences of tiny, read by " in caplog.text
    assert set(module.stores) == set(module.splits) == {"train", "dev"}
    monkeypatch.setattr("attention_probing.datamodules.attention.Encoder", None)
    monkeypatch.setattr(DependencyDataModule, "read", None)
    again = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path))
    again.trainer = trainer()
    for stage in ("fit", "test"):
        module.setup(stage)
        again.setup(stage)
    assert len(module.stores["test"]) == len(again.stores["test"]) == 17


def test_all_files_are_parsed_before_the_first_is_extracted(bert: Path, corpus: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.conllu"
    bad.write_text("1\tfox\t_\tX\n\n", encoding="utf-8")
    files = {split: corpus.replace("{split}", split) for split in ("train", "dev")} | {"test": str(bad)}
    module = DependencyDataModule(files, encoder=EncoderSpec(str(bert)), cache=str(tmp_path))
    module.trainer = trainer()
    for stage in ("fit", "test"):
        with pytest.raises(CorpusError, match=r"bad\.conllu:1: "):
            module.setup(stage)
    assert not list(tmp_path.rglob("*.safetensors"))
    module = DependencyDataModule(files, encoder=EncoderSpec(str(bert)), cache=str(tmp_path))
    module.trainer = trainer(validate=0)  # needs no test
    module.setup("fit")
    assert "test" not in module.stores


def repeating(folder: Path, repeated: int) -> str:
    """Three splits of sentences of one word; of the 40 of test, `repeated` stand in train too."""
    rows = "# sent_id = {0}\n1\tw{0}\t_\tX\t_\t_\t0\troot\t_\t_\n\n"
    numbers = {"train": range(40), "dev": range(100, 110), "test": range(40 - repeated, 80 - repeated)}
    for split, own in numbers.items():
        (folder / f"{split}.conllu").write_text("".join(map(rows.format, own)), encoding="utf-8")
    return str(folder / "{split}.conllu")


def test_transfer_takes_train_and_dev_from_another_corpus(corpus: str, tmp_path: Path) -> None:
    own = tmp_path / "own-test.conllu"
    own.write_text("1\tJa\t_\tINTJ\t_\t_\t0\troot\t_\t_\n\n", encoding="utf-8")
    module = DependencyDataModule({"test": str(own)}, transfer_from=corpus, encoder=None, cache=str(tmp_path))
    module.setup("fit")
    module.setup("test")
    sizes = {split: len(data) for split, data in module.splits.items()}
    assert sizes == {**{split: len(sentences(corpus, split)) for split in ("train", "dev")}, "test": 1}
    assert module.files() == {
        split: own if split == "test" else Path(corpus.replace("{split}", split)) for split in ("train", "dev", "test")
    }
    assert module.provenance.data["transfer"] == "learned on tiny"
    alone = DependencyDataModule(corpus, encoder=None, cache=str(tmp_path))
    alone.setup("test")
    assert "transfer" not in alone.provenance.data


@pytest.mark.parametrize(("layers", "middle"), [(3, 2), (4, 2)])
def test_the_middle_layer_is_counted_up_from_half(layers: int, middle: int, bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}), encoding="utf-8")
    module = DependencyDataModule(
        "sample", encoder=EncoderSpec(str(folder)), hidden="middle", cache=str(tmp_path / "c")
    )
    for source, hidden in ((resolve(EncoderSpec(str(folder))), (middle,)), (None, ())):
        assert module.extraction(tmp_path / "x.conllu", source).hidden == hidden


def test_transfer_never_tests_on_the_corpus_that_is_learned_from(corpus: str, tmp_path: Path) -> None:
    own = {"dev": corpus.replace("{split}", "dev")}
    module = DependencyDataModule(own, transfer_from=corpus, encoder=None, cache=str(tmp_path))
    assert set(module.files()) == {"train", "dev"}
    with pytest.raises(CorpusError, match=r"^The corpus \(`corpus`\) has no test split.* it has no other\. Name its"):
        raise module.absent(["test"])[0]
    module = DependencyDataModule(corpus, transfer_from=own, encoder=None, cache=str(tmp_path))
    wrong = r"^The corpus \(`transfer_from`\) has no train split.* it has dev\. Name its file: `transfer_from=\{'"
    with pytest.raises(CorpusError, match=wrong):
        module.absent(["fit"])
    module = DependencyDataModule(corpus, transfer_from="somewhere", encoder=None, cache=str(tmp_path))
    with pytest.raises(CorpusError, match=r"^somewhere: no corpus has this name\. "):
        module.files()


@pytest.mark.parametrize("given", ["mapping", "path", "name"])
def test_a_treebank_without_dev_is_refused_in_a_line_that_names_two_remedies(given: str, tmp_path: Path) -> None:
    test = tmp_path / "ud" / "br_keb-ud-test.conllu"
    test.parent.mkdir()
    test.touch()
    path = str(test).replace("test.conllu", "{split}.conllu")
    corpora: dict[str, Any] = {"mapping": {"test": str(test)}, "path": path, "name": "ud_breton_keb"}
    module = DependencyDataModule(corpora[given], root=str(tmp_path))
    with pytest.raises(CorpusError) as refused:
        raise module.absent(["test"])[0]
    place = {
        "mapping": "The corpus (`corpus`) has no dev split",
        "path": f"{path.replace('{split}', 'dev')}: there is no such file",
        "name": "ud_breton_keb: the corpus (`corpus`) has no dev split",
    }[given]
    line = str(refused.value)
    assert line.startswith(place)
    assert "has test" in line
    assert "`corpus={'train': 'a.conllu', 'dev': 'b.conllu', 'test': 'c.conllu'}`" in line
    assert line.endswith("`transfer_from='ud_english_ewt'`.")


def test_split_in_a_path_is_explained_where_a_file_is_missing(corpus: str, tmp_path: Path) -> None:
    copied = tmp_path / "own-train.conllu"
    shutil.copy(corpus.replace("{split}", "train"), copied)
    module = DependencyDataModule(str(tmp_path / "own-{split}.conllu"), encoder=None)
    for missing in module.absent(["test"]):
        assert ". `{split}` in the path stands for train, dev and test. The corpus has train. Name its" in str(missing)
    copied.unlink()
    dev, test = module.absent(["test"])
    stands = "Check the path. `{split}` in the path stands for train, dev and test."
    assert str(dev) == f"{tmp_path / 'own-dev.conllu'}: there is no such file. {stands}"
    assert str(test) == f"{tmp_path / 'own-test.conllu'}: there is no such file. {stands}"
    of_mapping = DependencyDataModule({"dev": corpus.replace("{split}", "dev")}, encoder=None)
    with pytest.raises(CorpusError) as refused:
        of_mapping.absent(["test"])
    assert "{split}" not in str(refused.value)


@pytest.mark.parametrize(("few", "said"), [(1, "1 sentence"), (3, "3 sentences"), (20, "20 sentences")])
def test_few_sentences_are_warned_of(few: int, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for place, split in enumerate(("train", "dev", "test")):
        rows = "".join(f"1\tw{place}{number}\t_\tX\t_\t_\t0\troot\t_\t_\n\n" for number in range(few))
        (tmp_path / f"{split}.conllu").write_text(rows, encoding="utf-8")
    module = DependencyDataModule(str(tmp_path / "{split}.conllu"), encoder=None, cache=str(tmp_path), punctuation=())
    with caplog.at_level("INFO"):
        module.setup("test")
    told = [
        f"dev has {said}: what is chosen on it is uncertain. Give 20 or more.",
        f"test has {said}: intervals are often too narrow. Give 20 or more.",
    ]
    assert [one for one in caplog.messages if "Give 20" in one] == (told if few < 20 else [])
    assert f"s: dev {said}, test {said} of " in caplog.text


@pytest.mark.parametrize(("repeated", "warned"), [(3, True), (2, False)])
def test_repeated_items_are_warned_of(
    repeated: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = DependencyDataModule(repeating(tmp_path, repeated), encoder=None, cache=str(tmp_path), punctuation=())
    module.trainer = trainer()
    module.setup("fit")
    early = [message for message in caplog.messages if "stand in" in message]
    told = f"{repeated} of 40 sentences of test ({repeated / 40:.0%}) also stand in train: "
    assert [told in message for message in early] == [True] * warned
    module.setup("test")
    assert audit(module)["test"]["also_in_train"] == repeated
    assert [message for message in caplog.messages if "stand in" in message] == early


def test_a_random_encoder_reads_dev_and_test_beside_the_trained_one(bert: Path, corpus: str, cache: str) -> None:
    module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=cache, random_init=True)
    for stage in ("fit", "validate"):
        module.setup(stage)
        assert not module.random_splits  # only a test reads it
    module.setup("test")
    loaders = module.test_dataloader()
    assert len(loaders) == 4
    for trained, random in zip(loaders[:2], loaders[2:], strict=True):
        differ = 0
        for one, other in zip(trained, random, strict=True):
            assert (one.split, one.encoder, other.encoder) == (other.split, "given", "random_init")
            for name in ("index", "lengths", "heads", "relations", "punctuation"):
                assert torch.equal(getattr(one, name), getattr(other, name)), name
            assert one.attention.shape == other.attention.shape
            differ += not torch.equal(one.attention, other.attention)
        assert differ
    control = module.random_splits["test"].store.manifest
    identity = cast(dict[str, Any], control.identity["encoder"])
    told = cast(dict[str, Any], module.provenance.encoder["random_init"])
    assert "weights_sha256" not in told
    assert (told["weights"], told["seed"]) == ("random", identity["seed"])
    assert told["embeddings_of_sha256"] == identity["weights_sha256"]
    assert module.stores["test"].manifest.key != control.key


def test_relations_have_one_number_on_both_sides(bert: Path, tmp_path: Path) -> None:
    # A relation of train alone shifts the numbers of those that follow it in the alphabet.
    row = "1\tfox\t_\tX\t_\t_\t0\troot\t_\t_\n2\tfox\t_\tX\t_\t_\t1\t{}\t_\t_\n\n"
    for split, relation in {"train": "amod", "dev": "det", "test": "obj"}.items():
        (tmp_path / f"{split}.conllu").write_text(row.format(relation), encoding="utf-8")
    options: dict[str, Any] = {"encoder": EncoderSpec(str(bert)), "cache": str(tmp_path), "random_init": True}
    module = DependencyDataModule(str(tmp_path / "{split}.conllu"), punctuation=(), **options)
    module.setup("fit")
    module.setup("test")
    assert module.relations == ("amod", "det", "obj", "root")
    for loader, relation in zip(module.test_dataloader(), ("det", "obj", "det", "obj"), strict=True):
        [batch] = list(loader)
        assert [module.relations[code] for code in batch.relations[0].tolist()] == ["root", relation]


def last(words: Sequence[str]) -> list[int]:
    return [len(words)] * len(words)


def test_hidden_states_are_those_of_the_store_and_zero_behind_it(data: DependencyDataModule) -> None:
    split = data.splits["dev"]
    items = [0, int(split.lengths.argmax()), int(split.lengths.argmin())]
    batch = split[items]
    assert data.hidden_layers == (0, 2)
    assert batch.hidden.shape == (3, 2, int(split.lengths[items].max()), data.hidden_size)
    for row, item in enumerate(items):
        n = int(split.lengths[item])
        assert torch.equal(batch.hidden[row, :, :n], split.store.read("hidden", item))
        assert (batch.hidden[row, :, n:] == 0).all()


def test_every_word_has_its_own_vector(data: DependencyDataModule) -> None:
    split, vectors = data.splits["dev"], data.vectors
    assert vectors is not None
    batch = split[[3, 5]]
    for row, item in enumerate([3, 5]):
        words = split.words(item)
        assert np.array_equal(batch.vectors[row, : len(words)].numpy(), vectors.matrix[vectors.rows(words)])
        assert (batch.vectors[row, len(words) :] == 0).all()
    assert batch.vectors.any(-1)[batch.mask].all()


def test_all_hidden_states_are_those_of_every_layer(bert: Path) -> None:
    data = DependencyDataModule(encoder=EncoderSpec(str(bert)), hidden="all")
    assert data.extraction(Path("x.conllu"), resolve(EncoderSpec(str(bert)))).hidden == (1, 2)
    assert data.extraction(Path("x.conllu"), None).hidden == ()


@pytest.mark.parametrize("field", ["attention", "hidden", "vectors"])
def test_what_is_not_read_has_no_size(data: DependencyDataModule, field: Field) -> None:
    module = data.variant()
    module.setup("fit")
    module.read_only(FIELDS - {field, "most_attended"})
    batch, whole = module.splits["dev"][[0, 1]], data.splits["dev"][[0, 1]]
    for name in ("attention", "hidden", "vectors"):
        found = getattr(batch, name)
        if name == field:
            assert found.numel() == 0
            assert found.size(0) == 2
        else:
            assert torch.equal(found, getattr(whole, name))


def test_a_variant_holds_the_attention_of_upper_layers_alone(data: DependencyDataModule) -> None:
    upper = data.variant(lowest=1)
    upper.setup("fit")
    assert upper.layers == data.layers[1:]
    batch, whole = upper.splits["dev"][[0, 1, 2]], data.splits["dev"][[0, 1, 2]]
    assert torch.equal(batch.attention, whole.attention[:, 1:])
    assert torch.equal(batch.hidden, whole.hidden)
    assert upper.variant().layers == upper.layers


def test_a_variant_has_other_heads_in_every_split_and_the_same_stores(data: DependencyDataModule) -> None:
    changed = data.variant(heads=last)
    changed.setup("fit")
    for split in ("train", "dev"):
        assert changed.stores[split] is data.stores[split]
        batch, before = changed.splits[split][[0, 1, 2]], data.splits[split][[0, 1, 2]]
        assert torch.equal(batch.heads, torch.where(before.mask, before.lengths[:, None], -1))
        assert torch.equal(batch.punctuation, before.punctuation)
        assert torch.equal(batch.attention, before.attention)
    again = changed.variant(train=[1])
    again.setup("fit")
    assert torch.equal(again.splits["dev"][[4]].heads, changed.splits["dev"][[4]].heads)


def test_heads_for_more_or_fewer_words_are_refused(data: DependencyDataModule) -> None:
    with pytest.raises(ValueError, match="heads_of gives 41 heads, but must give"):
        data.variant(heads=lambda words: [0]).setup("fit")


def test_some_sentences_of_a_split_come_once_each(data: DependencyDataModule) -> None:
    some = [12, 0, 5]
    changed = data.variant(train=some)
    changed.setup("fit")
    for batches in (changed.train_dataloader(), data.batches("dev", some)):
        assert sorted(i for batch in batches for i in batch.index.tolist()) == sorted(some)
    for split, batches in (("train", data.train_dataloader()), ("dev", data.batches("dev"))):
        assert sum(len(batch.index) for batch in batches) == len(data.splits[cast(Split, split)])


def test_running_text_is_read_as_it_was_written(bert: Path, tmp_path: Path) -> None:
    tree = "1-2\tthe" + "\t_" * 8 + "\n"
    for place, (form, misc) in enumerate([("t", "_"), ("he", "_"), ("fox", "SpaceAfter=No"), (".", "_")], 1):
        tree += f"{place}\t{form}\t_\tX\tX\t_\t{place - 1}\tdep\t_\t{misc}\n"
    (tmp_path / "a.conllu").write_text(tree + "\n" + tree.replace("fox", "dogs") + "\n", encoding="utf-8")
    found: dict[tuple[str, str], torch.Tensor] = {}
    for spacing, store in product(("blanks", "text"), ("disk", "stream")):
        options: dict[str, Any] = {"options": Options(spacing=spacing), "store": store}  # type: ignore[arg-type]
        corpus = dict.fromkeys(("dev", "test"), str(tmp_path / "a.conllu"))
        module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path / "s"), **options)
        module.setup("test")
        found[spacing, store] = module.splits["test"][[0, 1]].attention
        assert module.stores["test"].manifest.identity.get("spacing", "blanks") == spacing
        assert audit(module)["test"].get("words_without_own_piece") == (2 if spacing == "text" else None)
    assert torch.equal(found["text", "disk"], found["text", "stream"])
    assert not torch.equal(found["text", "disk"], found["blanks", "disk"])
    text = found["text", "disk"]
    torch.testing.assert_close(text.sum(-1), torch.ones(text.shape[:-1]), rtol=0, atol=5e-3)
    assert (text[..., [0, 1, 3, 4, 5], 2] == 0).all()  # nobody attends to the second word of `the`
    assert (text[..., 2, 1] == 0).all()
    torch.testing.assert_close(text[..., 2, [0, 3, 4, 5]], text[..., 1, [0, 3, 4, 5]])
    torch.testing.assert_close(text[..., 2, 2], text[..., 1, 1])


@pytest.mark.parametrize("store", ["disk", "stream"])
def test_sentences_whose_text_is_not_that_of_their_comment_are_counted_and_warned_of(
    store: Literal["disk", "stream"], bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    comments = ("# text = the fox", "# text = thefox", "# text = a fox", "# sent_id = s")
    rows = "1\tthe\t_\tX\tX\t_\t0\troot\t_\t_\n2\tfox\t_\tX\tX\t_\t1\tdep\t_\t_\n\n"
    path = tmp_path / "a.conllu"
    path.write_text("".join(f"{one}\n{rows}" for one in comments), encoding="utf-8")
    told = f"{path}: the running text of 2 sentences, made from column FORM and SpaceAfter=No in column MISC, is not "
    for spacing, count in (("text", 2), ("blanks", None)):
        options: dict[str, Any] = {"options": Options(spacing=spacing), "store": store}  # type: ignore[arg-type]
        corpus = dict.fromkeys(("dev", "test"), str(path))
        module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), cache=str(tmp_path / "s"), **options)
        module.setup("test")
        assert audit(module)["test"].get("texts_unlike_comment") == count
        assert (told in caplog.text) == (spacing == "text")
        caplog.clear()


def test_a_treebank_without_running_text_is_refused_in_a_line(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "a.conllx").write_text("1\tthe\t_\tX\tX\t_\t0\troot\t_\t_\n", encoding="utf-8")
    corpus = dict.fromkeys(("dev", "test"), str(tmp_path / "a.conllx"))
    options: dict[str, Any] = {"options": Options(spacing="text"), "cache": str(tmp_path / "s")}
    module = DependencyDataModule(corpus, encoder=EncoderSpec(str(bert)), **options)
    with pytest.raises(CorpusError, match=r"a\.conllx: the format does not say.* or leave the option out\.$"):
        module.setup("test")


def test_an_option_under_its_name_of_version_3_0_is_refused_with_the_new_name() -> None:
    with pytest.raises(UserError, match=r"^DependencyDataModule: `max_sentences` is now `batch_size`.*give `limit`\.$"):
        DependencyDataModule(max_sentences=3)
