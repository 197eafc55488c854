import gc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from attention_probing.attention import EncoderError, EncoderSpec
from attention_probing.corpora import texts
from attention_probing.corpora.labelled import Columns
from attention_probing.corpora.lines import read_lines
from attention_probing.corpora.sentence import CorpusError
from attention_probing.corpora.texts import HALVES, Link, Passage
from attention_probing.datamodules import SegmentBatch, TextDataModule, TextSource
from attention_probing.datamodules.text import warn_of_left_out
from attention_probing.results import UserError
from tests.tiny import BROKEN, FAMILIAR, save_bert, save_gpt2, save_llama, save_roberta, write_treebank

SAMPLE = TextSource("sample")
Make = Callable[..., TextDataModule]
Corpora = Any  # what `TextDataModule` takes
SAVE = {"bert": save_bert, "roberta": save_roberta, "gpt2": save_gpt2, "llama": save_llama}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny encoder of each kind."""
    return {name: save(tmp_path_factory.mktemp(name)) for name, save in SAVE.items()}


@pytest.fixture
def make(folders: dict[str, Path], cache: str) -> Make:
    """Makes a datamodule of texts, set up."""

    def made(
        corpora: Corpora,
        encoder: str = "bert",
        *,
        rank: int = 0,
        world: int = 1,
        **options: Any,  # noqa: ANN401
    ) -> TextDataModule:
        data = TextDataModule(corpora, EncoderSpec(str(folders[encoder])), cache=cache, **options)
        device = SimpleNamespace(root_device=torch.device("cpu"))
        data.trainer = SimpleNamespace(global_rank=rank, world_size=world, strategy=device)  # type: ignore[assignment]
        data.setup("test")
        return data

    return made


def write(path: Path, paragraphs: int = 60, seed: int = 0) -> Path:
    """Write paragraphs of 1 to 30 words."""
    random = np.random.default_rng(seed)
    words = [random.choice([*FAMILIAR, *BROKEN], random.integers(1, 31)) for _ in range(paragraphs)]
    path.write_text("".join(f"{' '.join(line)}\n\n" for line in words), encoding="utf-8")
    return path


def batches(data: TextDataModule, loader: int = 0) -> list[SegmentBatch]:
    return list(data.test_dataloader()[loader])


def rows(data: TextDataModule) -> list[tuple[SegmentBatch, int]]:
    """Batch and row of every segment, in the order of their numbers."""
    found = {int(index): (batch, row) for batch in batches(data) for row, index in enumerate(batch.index)}
    assert list(sorted(found)) == list(range(len(found)))
    return [found[index] for index in range(len(found))]


def greedy(paragraphs: list[list[str]], sizes: Callable[[str], int], room: int) -> list[list[str]]:
    """The slow way: word by word, a new stretch where one does not fit."""
    found: list[list[str]] = []
    for words in paragraphs:
        found.append([])
        left = room
        for word in words:
            if sizes(word) > left:
                found.append([])
                left = room
            found[-1].append(word)
            left -= sizes(word)
    return [stretch for stretch in found if len(stretch) > 1]


@pytest.mark.parametrize(
    ("name", "packing"), [*((name, "single") for name in SAVE), ("bert", "pairs"), ("roberta", "pairs")]
)
def test_segments_of_stretches_cut_word_by_word(
    make: Make, tmp_path: Path, name: str, packing: Literal["single", "pairs"]
) -> None:
    path = write(tmp_path / "text.txt")
    data = make(TextSource(str(path), packing=packing), name, max_length=40)
    tokenizer = data.encoders["given"].tokenizer
    blank = " " if name in ("roberta", "gpt2") else ""  # what a word in the middle of a text has before it

    def pieces(word: str) -> list[int]:
        ids: list[int] = tokenizer([blank + word], is_split_into_words=True, add_special_tokens=False)["input_ids"]
        return ids

    passages = 1 if packing == "single" else 2
    closed = {"bert": ["[SEP]", "[SEP][SEP]"], "roberta": ["</s>", "</s></s></s>"], "gpt2": [""], "llama": [""]}[name]
    begins = {"bert": "[CLS]", "roberta": "<s>", "gpt2": "", "llama": "<s>"}[name]
    delimiters = {"bert": [2, 3], "roberta": [2, 4], "gpt2": [0], "llama": [1]}[name][passages - 1]
    paragraphs = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    stretches = greedy(paragraphs, lambda word: len(pieces(word)), (40 - delimiters) // passages)
    expected = [stretches[place : place + passages] for place in range(0, len(stretches), passages)]
    if len(expected[-1]) < passages:  # an odd one is cut in the middle
        [[last]] = expected[-1:]
        expected[-1] = [last[: len(last) // 2], last[len(last) // 2 :]]

    found = rows(data)
    assert len(found) == len(expected) > 30
    for (batch, row), words in zip(found, expected, strict=True):
        assert [list(passage.words) for passage in batch.passages[row]] == words
        length = int(batch.lengths[row])
        assert length <= 40
        given = tokenizer(*[[blank + word for word in part] for part in words], is_split_into_words=True)
        assert batch.tokens[row, :length].tolist() == given["input_ids"]
        spelled = tokenizer.convert_ids_to_tokens(batch.tokens[row, :length].tolist())
        start, end = (mask[row, :length].tolist() for mask in (batch.start, batch.end))
        assert "".join(token for token, is_start in zip(spelled, start, strict=True) if is_start) == begins
        assert "".join(token for token, is_end in zip(spelled, end, strict=True) if is_end) == closed[passages - 1]
        assert [token.strip("▁Ġ") in (".", ",") for token in spelled] == batch.punctuation[row, :length].tolist()
        if name == "bert":
            assert batch.segments[row, :length].tolist() == given["token_type_ids"]
        every = [word for part in words for word in part]
        of_words = [batch.tokens[row][batch.words[row] == place].tolist() for place in range(len(every))]
        assert of_words == [pieces(word) for word in every]
        real = (batch.words[row] >= 0) | batch.start[row] | batch.end[row]
        assert torch.equal(real, batch.mask[row])
    audit: Any = data.provenance.audit["text"]
    left_out = sum(map(len, paragraphs)) - audit["words"]
    assert left_out == audit["too_short"]  # each of one word
    assert audit["empty_lines"] == audit["passages"] == 60
    assert audit["tokens"] == sum(int(batch.lengths[row]) for batch, row in found)
    assert audit["segments"] == len(found)


def test_a_long_word_is_cut_and_a_long_tree_left_out(make: Make, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text(f"The fox {'x' * 50} sleeps .\n", encoding="utf-8")
    trees = write_treebank(tmp_path / "tiny.conllu", 40)
    data = make([str(long), str(trees)], max_length=16)
    found = rows(data)
    of_long = [batch.passages[row][0].words for batch, row in found if batch.corpus == "long"]
    assert [word for words in of_long for word in words] == ["The", "fox", "x" * 50, "sleeps", "."]
    audit: Any = data.provenance.audit
    assert audit["long"]["words_cut"] == 1
    assert audit["tiny"]["too_long"] > 0 < audit["tiny"]["too_short"]
    assert audit["tiny"]["segments"] == 40 - audit["tiny"]["too_long"] - audit["tiny"]["too_short"]
    for batch, row in found:
        [passage] = batch.passages[row]
        assert batch.corpus == "long" or (passage.sentence and passage.sentence.words == passage.words)


def test_a_pair_of_texts_is_one_segment_with_its_label(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(f"text\tother\tlabel\nThe fox sleeps\tdogs .\tyes\n{'fox ' * 70}\tdogs\tno\n", encoding="utf-8")
    data = make(TextSource(str(path), columns=Columns(pair="other")))
    [(batch, row)] = rows(data)
    assert [(passage.words, passage.label) for passage in batch.passages[row]] == [
        (("The", "fox", "sleeps"), "yes"),
        (("dogs", "."), "yes"),
    ]
    assert batch.words[row].tolist()[-3:] == [3, 4, -1]
    assert data.provenance.audit["pairs"]["too_long"] == 1  # type: ignore[index]


def test_quoted_texts_and_labels_left_out_are_counted(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "table.tsv"
    path.write_text('text\tlabel\n"the ""fox"" sleeps"\ta\nthe dogs\t-\nthe fox\tb\n', encoding="utf-8")
    data = make(TextSource(str(path), columns=Columns(leave_out=("-",))))
    assert {batch.passages[row][0].label for batch, row in rows(data)} == {"a", "b"}
    audit = data.audits["table"]
    assert (audit["segments"], audit["labels_left_out"], audit["quoted_texts"]) == (2, 1, 1)
    warn_of_left_out(data)
    [message] = [message for message in caplog.messages if "quotes" in message]
    assert message.startswith("table: 1 text in double quotes, as in CSV, but these quotes")


def test_words_that_the_tokenizer_does_not_know_are_warned_of(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The 日本 sleeps .\nThe fox sleeps .\n", encoding="utf-8")
    data = make(str(path))
    rows(data)
    warn_of_left_out(data)
    assert "a: 1 of 8 words (12%) contain the unknown token" in caplog.text


def test_several_ranks_together_have_the_batches_of_one(make: Make, tmp_path: Path) -> None:
    corpora = [str(write(tmp_path / "a.txt")), TextSource(str(write(tmp_path / "b.txt", seed=1)), limit=20)]
    options = {"max_length": 40, "max_cells": 4000}
    alone = make(corpora, **options)
    expected = batches(alone)
    assert [batch.corpus for batch in expected] == sorted(batch.corpus for batch in expected)
    assert sum(batch.corpus == "b" for batch in expected for _ in batch.index) == 20
    assert all(len(batch.index) * batch.tokens.size(1) ** 2 <= 4000 for batch in expected)
    assert sorted(int(index) for batch in expected for index in batch.index) == list(range(rows_of(expected)))
    for world in (3,):
        parts = [make(corpora, rank=rank, world=world, **options) for rank in range(world)]
        shares = [batches(part) for part in parts]
        for number, batch in enumerate(expected):
            assert_equal(shares[number % world][number // world], batch)
        assert sum(map(len, shares)) == len(expected)
        assert all(vars(part.provenance) == vars(alone.provenance) for part in parts)
    [empty] = batches(make(corpora, rank=999, world=1000, **options))
    assert (len(empty.index), tuple(empty.tokens.shape), empty.passages) == (0, (0, 0), ())


def rows_of(found: list[SegmentBatch]) -> int:
    return sum(len(batch.index) for batch in found)


def assert_equal(one: SegmentBatch, other: SegmentBatch) -> None:
    for name, value in vars(one).items():
        expected = getattr(other, name)
        assert torch.equal(value, expected) if isinstance(value, torch.Tensor) else value == expected, name


def test_a_corpus_is_streamed(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[str]()
    lines = read_lines

    def counted(path: Path, audit: Counter[str]) -> Iterator[tuple[int, str]]:
        for line in lines(path, audit):
            read["lines"] += 1
            yield line

    monkeypatch.setattr(texts, "read_lines", counted)
    path = tmp_path / "long.txt"
    path.write_text("The fox sleeps .\n" * 2500, encoding="utf-8")
    data = make(str(path))
    assert read["lines"] < 100  # in setup
    read.clear()
    stream = iter(data.test_dataloader()[0])
    next(stream)
    assert read["lines"] < 1100
    most = 0
    for number, _ in enumerate(stream):
        if number % 20 == 0:
            most = max(most, sum(type(one) is Passage for one in gc.get_objects()))
    assert read["lines"] == 2500
    assert most < 1024 + 200


def test_random_init_reads_the_same_texts_through_other_weights(make: Make, tmp_path: Path) -> None:
    data = make(str(write(tmp_path / "text.txt")), random_init=True)
    given, random = batches(data), batches(data, 1)
    assert {batch.encoder for batch in given} == {"given"}
    assert {batch.encoder for batch in random} == {"random_init"}
    for one, other in zip(given, random, strict=True):
        assert_equal(one.to(torch.device("cpu")), SegmentBatch(**{**vars(other), "encoder": "given"}))
    assert torch.equal(data.encoders["given"].embeddings, data.encoders["random_init"].embeddings)
    provenance = data.provenance
    assert provenance.encoder["weights"] == "pretrained"
    assert provenance.encoder["random_init"]["weights"] == "random"  # type: ignore[index]


def test_the_samples_are_written_once_and_read(make: Make) -> None:
    treebank = make(TextSource(format="conllu"))
    trees = rows(treebank)
    assert len(trees) + treebank.provenance.audit["sample"]["too_long"] == 250  # type: ignore[index]
    assert all(passage.sentence is not None for batch, row in trees for passage in batch.passages[row])
    data = make("sample", "llama", max_length=64)
    assert data.names == ("sample",)
    assert data.absent(["test"]) == []
    written = data.files()["sample"].stat().st_mtime_ns
    assert len(rows(data)) > 72
    assert make("sample").files()["sample"].stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"text\.txt: the file holds no text"),
        ("one\n\ntwo\n", {}, r"no segment of the file has two words \(.*empty_lines 1, passages 2, too_short 2"),
        ("a b\n".encode("utf-16"), {}, r"text\.txt:1: byte 0xff .*UTF-16"),
        ("a b\n", {"max_length": 3}, r"^`max_length` is 3, too few tokens .* Give 4 or more"),
    ],
)
def test_a_text_that_cannot_be_used(
    make: Make, tmp_path: Path, content: str | bytes, options: dict[str, int], message: str
) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorpusError, match=message) as caught:
        make(str(path), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_two_passages_need_a_delimiter_between_them(make: Make, tmp_path: Path, name: str) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text\tlabel\nThe fox\tsleeps\n", encoding="utf-8")
    for source in (TextSource(packing="pairs"), TextSource(str(pairs), columns=Columns("text", None, "label"))):
        with pytest.raises(EncoderError, match=r"adds none after a text.*without `packing: pairs`"):
            make(source, name)
    with pytest.raises(CorpusError, match=r"pairs\.tsv:2: this text is a pair of texts, which"):
        make(TextSource(str(pairs), columns=Columns("text", None, "label"), packing="pairs"))


@pytest.mark.parametrize(
    ("corpora", "message"),
    [
        ("wikitext103", r"wikitext103: no corpus has this name \(did you mean `wikitext`"),
        ([TextSource("cola", split="all")], r"cola: the corpus has no split all; its splits are train, dev, test\."),
        (
            [TextSource("my.txt", split="dev")],
            r"my\.txt: this is neither a corpus of the registry nor a path with `{split}`",
        ),
        (["a.txt", "b/a.txt"], r"^`corpora`: several corpora are called a\. .*a `name` of its own.*corpus: a\.txt"),
        ([], r"^`corpora` is empty\. Name at least one corpus"),
        ([7], r"^`corpora`: 7 contains no `corpus`"),
        ({"corpus": "my.txt", "packng": "pairs"}, r"unknown option 'packng' \(did you mean `packing`"),
        ({"corpus": "my.txt", "packing": "pair"}, r"packing is 'pair', but must be one of single, pairs"),
        ({"corpus": "my.txt", "limit": "many"}, r"limit is 'many', but must be a whole number"),
        (
            {"corpus": "my.txt", "columns": {"text": "a", "label": 3.5}},
            "Columns: label is 3.5, but must be text or a whole",
        ),
    ],
)
def test_corpora_that_are_not_are_named(corpora: Corpora, message: str) -> None:
    with pytest.raises(UserError, match=message):
        TextDataModule(corpora)


def test_a_table_needs_a_text_alone(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text("title\ttext\nFoxes\tThe fox sleeps\n", encoding="utf-8")
    [(batch, row)] = rows(make(str(path)))
    assert batch.passages[row] == (Passage("2", ("The", "fox", "sleeps"), 2),)
    remedy = r"table\.tsv:1: the header has no column 'body'; .*`text`"
    with pytest.raises(CorpusError, match=remedy):
        make(TextSource(str(path), columns=Columns("body")))
    with pytest.raises(CorpusError, match=r"`corpora=\{'corpus': '.*table\.dat', 'format': '…'\}`"):
        make(str(path.rename(tmp_path / "table.dat")))


def test_texts_of_another_split_are_drawn_from_all_of_it(make: Make, tmp_path: Path) -> None:
    for split, texts_of in (("test", 3), ("train", 40)):
        rows = [f"{'pq'[row % 2]}\tfox {'dogs ' * (row % 7)}coffee" for row in range(texts_of)]
        (tmp_path / f"t-{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n", encoding="utf-8")
    data = make(TextSource(str(tmp_path / "t-{split}.tsv"), columns=Columns("text", "label")))
    assert sum(map(len, (batch.index for batch in batches(data)))) == 3

    def lines(most: int, seed: int = 0) -> list[int]:
        return [passage.line for batch in data.draw_segments("train", most, seed) for (passage,) in batch.passages]

    assert sorted(lines(40)) == sorted(lines(99)) == list(range(2, 42))
    assert len(set(lines(12))) == 12
    assert lines(12) == lines(12) != lines(12, seed=1)
    often = np.bincount([line for seed in range(80) for line in lines(10, seed)], minlength=42)[2:]
    assert often.min() > 4  # of 20 each
    assert often.max() < 40
    both = make(
        [TextSource(str(tmp_path / "t-{split}.tsv"), name=name, columns=Columns("text", "label")) for name in "ab"]
    )
    for names, most in (("ab", 80), ("a", 40)):
        chosen = both.only(names)
        assert sum(len(batch.index) for batch in chosen.draw_segments("train", 99, 0)) == most
    plain = make(str(write(tmp_path / "plain.txt")))
    with pytest.raises(
        CorpusError,
        match=r"plain has no train split, but the command needs one\. Give .* a path with `\{split\}` in it",
    ):
        next(iter(plain.draw_segments("train", 5, 0)))


def test_absent_files_are_named_with_their_remedy(make: Make, tmp_path: Path) -> None:
    corpora = [str(tmp_path / "none.txt"), "imdb"]
    faults = [str(fault) for fault in TextDataModule(corpora, root=str(tmp_path)).absent(["test"])]
    assert faults[0] == f"{tmp_path}/none.txt: there is no such file. Check the path."
    assert "probing fetch imdb" in faults[1]
    with pytest.raises(CorpusError, match=r"none\.txt: there is no such file"):
        make(corpora)


def test_only_a_test_reads_texts() -> None:
    with pytest.raises(CorpusError, match=r"Run `probing measure`"):
        TextDataModule().setup("fit")


@pytest.mark.parametrize(
    ("name", "folder", "first", "label"),
    [
        ("wikitext", "wiki", "Robert Boulter is an English film,", None),
        ("wikitext_raw", "wiki", "Robert Boulter is an English film", None),
        ("cola", "glue", "The sailors rode the breeze clear", "1"),
        ("wnli", "glue", "The drain is clogged with hair.", "0"),
        ("sst2", "cls", "If you sometimes like to go", "1"),
        ("ud_english_ewt", "ud", "What if Google Morphed Into GoogleOS", None),
    ],
)
def test_corpora_of_the_registry_need_no_options(
    make: Callable[..., Any], public_data: Callable[..., Path], name: str, folder: str, first: str, label: str | None
) -> None:
    public_data(folder)
    data = make(TextSource(name, limit=3))
    passages = [passage for batch, row in rows(data) for passage in batch.passages[row]]
    assert " ".join(passages[0].words[:6]) == first
    assert passages[0].label == label
    assert len(passages) == (6 if name == "wnli" else 3)


def test_passages_are_those_of_the_segments_that_a_test_reads(make: Make, tmp_path: Path) -> None:
    path = write_treebank(tmp_path / "trees.conllu", sentences=200)
    rest = path.read_text(encoding="utf-8").split("\n\n")
    # What comes after the last segment is not read: here it cannot be.
    path.write_text("\n\n".join([*rest[:100], "broken"]), encoding="utf-8")
    data = make([TextSource(str(path), limit=3), TextSource(str(write(tmp_path / "text.txt")), limit=4)])
    found = list(data.passages())
    assert len(found) == 7
    assert found == [batch.passages[row] for batch, row in rows(data)]
    with pytest.raises(CorpusError, match="the row has no tab"):
        list(make(TextSource(str(path))).passages())


def frames(folder: Path, sentences: int = 40) -> Path:
    """Write lexical units with a sentence each, in the layout of FrameNet."""
    space = 'xmlns="http://framenet.icsi.berkeley.edu"'
    (folder / "lu").mkdir()
    (folder / "frameIndex.xml").touch()
    units = "".join(f'<lu hasAnnotation="true" frameName="F{key}" ID="{key}"/>' for key in range(sentences))
    (folder / "luIndex.xml").write_text(f"<luIndex {space}>{units}</luIndex>", encoding="utf-8")
    header = '<header><frame><FE type="Core" name="Agent"/></frame></header>'
    for key in range(sentences):
        target = '<layer name="Target" rank="1"><label start="0" end="0" name="Target"/></layer>'
        layers = target + '<layer name="FE" rank="1"><label start="2" end="2" name="Agent"/></layer>'
        made = f'<sentence ID="7"><text>a b {key}</text><annotationSet>{layers}</annotationSet></sentence>'
        (folder / "lu" / f"lu{key}.xml").write_text(f"<lexUnit {space}>{header}{made}</lexUnit>", encoding="utf-8")
    return folder / "frameIndex.xml"


def test_framenet_has_two_halves_and_a_checksum_of_all_its_files(make: Make, tmp_path: Path) -> None:
    source = TextSource(str(frames(tmp_path)), format="framenet")
    whole, *halves = (make(source if split is None else replace(source, split=split)) for split in (None, *HALVES))
    names, *of_halves = ({passage.id for (passage,) in data.passages()} for data in (whole, *halves))
    assert len(names) == 40
    assert of_halves[0] | of_halves[1] == names
    assert all(of_halves)
    assert not of_halves[0] & of_halves[1]
    assert halves[0].has_split("test")
    assert {passage.id for batch in whole.draw_segments("dev", 40, 0) for (passage,) in batch.passages} == of_halves[0]
    with pytest.raises(CorpusError, match="file of the format framenet has the splits dev, test and all, not train"):
        make(replace(source, split="train"))

    def checksum() -> str:
        described: Any = make(source).provenance.data["frameIndex"]
        return str(described["sha256"])

    before = checksum()
    file = tmp_path / "lu" / "lu3.xml"
    file.write_text(file.read_text(encoding="utf-8").replace("a b", "a c"), encoding="utf-8")
    assert checksum() != before


def test_a_file_of_links_has_two_halves_unless_each_split_has_a_file(make: Make, tmp_path: Path) -> None:
    rows = [f"the fox {number} drinks\tagent\t4\t2\n" for number in range(40)]
    path = tmp_path / "links.tsv"
    path.write_text("sentence\tlabel\tfrom\tto\n" + "".join(rows), encoding="utf-8")
    source = TextSource(str(path), format="links")
    texts: dict[str | None, set[tuple[str, ...]]] = {}
    for split in (None, *HALVES):
        data = make(replace(source, split=split))
        texts[split] = {passage.words for (passage,) in data.passages()}
    assert len(texts[None]) == 40
    assert texts["dev"] | texts["test"] == texts[None]
    assert not texts["dev"] & texts["test"]
    assert 10 < len(texts["dev"]) < 30

    path.rename(tmp_path / "links-dev.tsv")
    own = make(TextSource(str(tmp_path / "links-{split}.tsv"), format="links", split="dev"))
    assert len(list(own.passages())) == 40


def test_framenet_by_name_is_a_file_of_links(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "framenet"
    folder.mkdir(parents=True)
    (folder / "links.tsv").write_text("sentence\tlabel\tfrom\tto\nthe fox drinks\tagent\t3\t2\n", encoding="utf-8")
    data = make(TextSource("framenet"), root=str(tmp_path / "root"))
    [(passage,)] = data.passages()
    assert passage.links == (Link("agent", (2,), (1,)),)
