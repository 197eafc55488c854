import hashlib
import io
import logging
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from attention_probing import commands
from attention_probing.commands.fetch import main
from attention_probing.corpora import registry
from attention_probing.corpora.archives import read_imdb, read_newsgroups, read_random_newsgroups
from attention_probing.corpora.download import fetch
from attention_probing.corpora.labelled import read_labelled
from attention_probing.corpora.registry import CORPORA, Corpus, RemoteFile, SplitOrAll, data_root, locate, remedy_for
from attention_probing.corpora.sentence import CorpusError
from tests.corpora.conftest import Quiet

ROW = "1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
KNOWN = (
    "20newsgroups, 20newsgroups_random, ag_news, blimp, cola, framenet, glue_sst2, imdb, litbank, mnli, "
    "mnli_mismatched, mrpc, ontogum, qnli, qqp, rte, sst2, stsb, trec, ud_english_ewt, wikitext, wikitext_raw, wnli"
)
TREEBANKS = sorted(set(CORPORA) - set(KNOWN.split(", ")))
UNPINNED = ("framenet", "glue_sst2", "mnli", "mnli_mismatched", "mrpc", "qnli", "qqp", "rte", "stsb")  # made otherwise
FILES: dict[SplitOrAll, str] = {"train": ROW * 3, "dev": ROW * 2, "test": ROW}


@pytest.fixture
def tiny(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of three small files in the registry."""
    address, folder = server
    for split, text in FILES.items():
        (folder / f"{split}.conllu").write_bytes(text.encode())
    splits = {
        split: RemoteFile(f"ud/tiny-{split}.conllu", f"{address}/{split}.conllu", sha256(text))
        for split, text in FILES.items()
    }
    corpus = Corpus("tiny", splits, "CC0", "Nobody 2000", address)
    monkeypatch.setattr(registry, "CORPORA", {"tiny": corpus})
    return corpus


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_entries_are_pinned_and_have_their_own_places() -> None:
    files = [remote for corpus in CORPORA.values() for remote in corpus.files]
    # Two corpora are made from the archive of 20 Newsgroups.
    archives = [corpus.archive for name, corpus in CORPORA.items() if corpus.archive and name != "20newsgroups_random"]
    assert replace(archives[0], read=None) == replace(CORPORA["20newsgroups_random"].archive or archives[-1], read=None)
    pinned = [CORPORA[name] for name in KNOWN.split(", ") if not CORPORA[name].archive and name not in UNPINNED]
    hashes = [remote.sha256 for remote in (*archives, *(remote for corpus in pinned for remote in corpus.files))]
    assert [len(bytes.fromhex(digest or "")) for digest in set(hashes)] == [32] * len(hashes)
    assert all(name == corpus.name for name, corpus in CORPORA.items())
    assert len({remote.path for remote in files + archives}) == len({*files, *archives})
    assert all(CORPORA[name].recipe for name in UNPINNED)
    assert all(CORPORA[name].splits["test"] == CORPORA[name].splits["dev"] for name in (*UNPINNED, "cola"))
    assert not any(Path(remote.path).is_absolute() for remote in files + archives)
    assert all((remote.url or "https://").startswith("https://") for remote in files)
    assert all((archive.url or "").startswith("https://") for archive in archives)
    ewt = CORPORA["ud_english_ewt"].splits["dev"]
    assert ewt.path == "ud/en_ewt-ud-dev.conllu"
    assert ewt.url == (
        "https://raw.githubusercontent.com/UniversalDependencies/UD_English-EWT/"
        "15d613d8447b3478787d4c278730a1e48a945efb/en_ewt-ud-dev.conllu"
    )


def test_a_treebank_is_three_files_of_one_commit_with_their_ids_in_git() -> None:
    files = [(name, remote) for name in TREEBANKS for remote in CORPORA[name].files]
    assert len(TREEBANKS) >= 30
    assert {len(CORPORA[name].splits) for name in TREEBANKS} == {1, 3}
    assert all(list(CORPORA[name].splits) in (["train", "dev", "test"], ["test"]) for name in TREEBANKS)
    ids = [bytes.fromhex(remote.blob or "") for _, remote in files]
    assert {len(one) for one in ids} == {20}
    assert len({remote.path for _, remote in files}) == len(set(ids)) == len(files)
    assert all(re.fullmatch(r".*/UD_[A-Za-z-]+/[0-9a-f]{40}/\w+-ud-\w+\.conllu", str(one.url)) for _, one in files)
    german = CORPORA["ud_german_gsd"].splits["test"]
    assert german.path == "ud/de_gsd-ud-test.conllu"
    assert german.url == (
        "https://raw.githubusercontent.com/UniversalDependencies/UD_German-GSD/"
        "297fcf350481058d0737a27f0f8fd03b2eadd67a/de_gsd-ud-test.conllu"
    )


def test_a_file_with_an_id_of_git_is_fetched_and_refused_like_one_with_a_sha256(
    server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    (folder / "a.conllu").write_bytes(b"hello\n")
    remote = RemoteFile("ud/a.conllu", f"{address}/a.conllu", blob="ce013625030ba8dba906f756967f9e9ca394464a")
    monkeypatch.setattr(registry, "CORPORA", {"a": Corpus("a", {"test": remote}, "CC0", "Nobody 2000", "")})
    assert fetch("a", tmp_path / "data")["test"].read_bytes() == b"hello\n"
    (tmp_path / "data" / remote.path).write_text("other")
    with pytest.raises(CorpusError, match=r"not the registered file of a \(its git id is not ce0136"):
        fetch("a", tmp_path / "data")
    (folder / "a.conllu").write_text("changed")
    with pytest.raises(CorpusError, match=r"a.conllu is not the registered one: its git id is not ce0136"):
        fetch("a", tmp_path / "new")
    assert list((tmp_path / "new" / "ud").iterdir()) == []


def test_the_english_treebank_here_has_the_id_that_git_gives_it(public_data: Callable[..., Path]) -> None:
    public_data()
    path = locate("ud_english_ewt", None)["train"]  # whose id in git is known beside its SHA-256
    assert RemoteFile("", blob="34731d23bafeeff233fdcee18ffc0254b1aa0e28").fault(path) == ""


def test_the_data_root_is_the_option_or_the_variable_or_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBING_DATA", "/from/variable")
    assert data_root("/from/option") == Path("/from/option")
    assert data_root(None) == Path("/from/variable")
    monkeypatch.setenv("PROBING_DATA", "")
    assert data_root(None) == Path("data")


@pytest.mark.usefixtures("tiny")
def test_the_command_fetches_what_is_missing_and_prints_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    assert main(["tiny", "--root", str(root)]) == 0
    paths = locate("tiny", root)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"{split}: {root}/ud/tiny-{split}.conllu" for split in FILES]
    assert "100%" in printed.err  # the progress bar
    assert {split: path.read_text() for split, path in paths.items()} == FILES
    assert sorted((root / "ud").iterdir()) == sorted(paths.values())
    paths["dev"].unlink()
    Quiet.asked.clear()
    assert fetch("tiny", root) == paths
    assert Quiet.asked == ["/dev.conllu"]
    with pytest.raises(SystemExit, match="2"):
        main([])


@pytest.mark.usefixtures("tiny")
def test_another_file_in_its_place_is_named_and_kept(tmp_path: Path) -> None:
    own = tmp_path / "ud" / "tiny-test.conllu"
    own.parent.mkdir()
    own.write_text("my own work")
    with pytest.raises(
        CorpusError, match=f"^{own}: the file exists already, but it is not the registered file of tiny .*Move"
    ):
        fetch("tiny", tmp_path)
    assert own.read_text() == "my own work"
    assert Quiet.asked == []
    own.unlink()
    own.mkdir()
    with pytest.raises(CorpusError, match=f"^{own}: the file exists already"):
        fetch("tiny", tmp_path)


@pytest.mark.usefixtures("tiny")
def test_a_changed_file_at_the_address_is_refused_and_not_kept(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    (folder / "train.conllu").write_text("changed")
    root = tmp_path / "data"
    with pytest.raises(CorpusError, match=f"the file at {address}/train.conllu is not the registered one"):
        fetch("tiny", root)
    assert list((root / "ud").iterdir()) == []


def test_a_file_out_of_reach_is_one_line_and_exit_code_1(
    tiny: Corpus, server: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (server[1] / "train.conllu").unlink()
    with pytest.raises(SystemExit, match="1"):
        commands.main(["fetch", "tiny", "--root", str(tmp_path)])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"Error: {tmp_path}/ud/tiny-train.conllu: fetching {tiny.splits['train'].url} failed (404")
    assert "Check the network" in last


def test_absent_files_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    root = tmp_path / "my data"
    command = f"Fetch it: `probing fetch ud_english_ewt --root '{root}'`."
    with pytest.raises(CorpusError, match=f"^{root}/ud/en_ewt-ud-train.conllu: there is no such file. {command}$"):
        locate("ud_english_ewt", root)


def test_a_path_tells_the_corpus_it_would_belong_to_unless_many_have_a_file_of_its_name() -> None:
    assert remedy_for(Path("/d/ud/my.conllu")) == remedy_for(Path("/elsewhere/train.tsv")) == "Check the path"
    assert remedy_for(Path("/d/cls/imdb/train.tsv")) == "Fetch it: `probing fetch imdb --root /d`"
    assert "To make trec: " in remedy_for(Path("/d/cls/trec/train.tsv"))
    assert "name the corpus litbank, which `probing" in remedy_for(Path("/elsewhere/litbank.dev.conll"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ewt", r"no corpus has this name \(did you mean `ud_english_ewt`\?\)\. `probing fetch --list`"),
        ("ud_english_ewtt", r"no corpus has this name \(did you mean `ud_english_ewt`\?\)\. "),
        ("sst", r"no corpus has this name \(did you mean `sst2` or `glue_sst2`\?\)\. "),
        (
            "my.conllu",
            r"this is one file, but a corpus has a file for each split\. .* a path with `{split}` in the place",
        ),
    ],
)
def test_an_unknown_name_is_answered_by_what_is_near_and_by_the_form_of_own_files(name: str, told: str) -> None:
    with pytest.raises(CorpusError, match=f"^{re.escape(name)}: {told}"):
        fetch(name, None)


def test_made_corpora_are_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    lines = re.sub(r"\n {4}", " ", said).splitlines()
    assert lines[0].startswith("ud_english_ewt: train, dev, test; CC BY-SA 4.0; Silveira et al. 2014")
    made = {line.partition(":")[0]: line.endswith("; made, not fetched") for line in lines}
    fetched = ["ud_english_ewt", "20newsgroups", "20newsgroups_random", "imdb"]
    assert sorted(name for name, is_made in made.items() if not is_made) == sorted([*fetched, *TREEBANKS])
    assert sorted(made) == sorted([*KNOWN.split(", "), *TREEBANKS])
    assert {name: bool(corpus.recipe) for name, corpus in CORPORA.items()} == made


@pytest.mark.parametrize(
    ("name", "first"), [("litbank", "coref/litbank/litbank.train.conll"), ("trec", "cls/trec/train.tsv")]
)
def test_absent_files_without_an_address_say_how_they_are_made(name: str, first: str, tmp_path: Path) -> None:
    expected = (
        f"{tmp_path}/{first}: there is no such file. It cannot be downloaded, because no public address has "
        f"exactly this file. To make {name}: {CORPORA[name].recipe}."
    )
    with pytest.raises(CorpusError, match=f"^{re.escape(expected)}$"):
        locate(name, tmp_path)
    with pytest.raises(CorpusError, match=f"^{re.escape(expected)}$"):
        main([name, "--root", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_made_files_are_located_and_checked_with_those_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main_file, beside = (RemoteFile(f"coref/own.{suffix}", None, sha256(suffix)) for suffix in ("conll2012", "conllu"))
    own = Corpus("own", {"all": main_file}, "CC0", "Nobody 2000", "", (beside,), "write both by hand")
    monkeypatch.setattr(registry, "CORPORA", {"own": own})
    (tmp_path / "coref").mkdir()
    (tmp_path / main_file.path).write_text("conll2012")
    for function in (locate, fetch):
        with pytest.raises(CorpusError, match=r"own\.conllu: there is no such file.*make own: write both by hand\.$"):
            function("own", tmp_path)
    (tmp_path / beside.path).write_text("conllu")
    assert locate("own", tmp_path) == fetch("own", tmp_path) == {"all": tmp_path / main_file.path}
    assert main(["own", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"all: {tmp_path}/coref/own.conll2012\nmade, not fetched: write both by hand\n"
    (tmp_path / beside.path).write_text("something else")
    with pytest.raises(
        CorpusError, match=r"own\.conllu: the file exists already, but it is not the registered file of own"
    ):
        fetch("own", tmp_path)


@pytest.mark.parametrize("name", ["ontogum", "litbank", "sst2", "ag_news", "trec"])
def test_real_made_files_have_the_registered_hashes(name: str, public_data: Callable[..., Path]) -> None:
    public_data()
    try:
        paths = locate(name, None)
    except CorpusError as error:
        pytest.skip(str(error))
    assert fetch(name, None) == paths


# Archives

POST = """\
From: ann@example.org
Subject: Re: last night

In article <1@example.org> bob writes:
> Nobody saw\tit.

The goalie did.
| a bar
Carl said: no.
  He stood\t\tstill.

-- 
Ann, café owner
"""
IMDB = {
    **{f"aclImdb/train/pos/{i}_9.txt": f"Fine film number {i} ." for i in range(15)},
    **{f"aclImdb/train/neg/{i}_1.txt": f"Dull film number {i} ." for i in range(15)},
    "aclImdb/test/pos/0_10.txt": "Café<br /><br />\tscenes\u00a0 win .",
    "aclImdb/test/neg/0_2.txt": "No\nscenes .",
}
OTHERS = {
    "aclImdb/README": "Read me.",
    "aclImdb/train/unsup/0_0.txt": "Unlabelled.",
    "aclImdb/train/pos/urls.txt": "http://example.org",
    "../aclImdb/train/pos/90_9.txt": "From outside.",
    "/aclImdb/train/pos/91_9.txt": "From the root.",
    "aclImdb/train/pos/../../../92_9.txt": "Up and out.",
    "x/aclImdb/train/pos/93_9.txt": "Deeper.",
}


def pack(path: Path, files: Mapping[str, str], encoding: str = "utf-8", link: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            content = text.encode(encoding)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(member)
    return path


def news(name: str, text: str) -> dict[str, str]:
    return {f"20news-bydate-{name}": f"From: x\nSubject: y\n\n{text}\n\n--\nx\n"}


NEWS = {
    **news("train/rec.sport.hockey/1", "the goalie"),
    **{k: v for i in range(12) for k, v in news(f"train/rec.sport.baseball/{i}", f"inning {i}").items()},
    **news("train/rec.autos/1", "a car"),
    **news("test/rec.sport.baseball/7", "the pitcher"),
    "20news-bydate-test/rec.sport.hockey/8": POST,
}


def test_reviews_are_read_and_dev_is_every_tenth_text_of_train_by_sha1(tmp_path: Path) -> None:
    found = read_imdb(pack(tmp_path / "a.tar.gz", IMDB | OTHERS, link="aclImdb/train/pos/99_9.txt"))
    assert sorted(found["test"]) == [("0", "No scenes ."), ("1", "Café scenes win .")]
    assert found == read_imdb(pack(tmp_path / "b.tar.gz", dict(reversed(IMDB.items()))))
    train = [(str(int("/pos/" in name)), text) for name, text in IMDB.items() if name.startswith("aclImdb/train")]
    ranked = sorted(train, key=lambda row: hashlib.sha1(row[1].encode()).hexdigest())
    assert found["dev"] == [ranked[9], ranked[19], ranked[29]]
    assert found["train"] == [row for i, row in enumerate(ranked) if i % 10 != 9]


def test_posts_lose_headers_footer_and_quotes_and_those_left_empty_are_counted_aloud(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = {"20news-bydate-train/rec.sport.hockey/2": "From: x\n\n> only a quote\n"}
    with caplog.at_level(logging.WARNING):
        found = read_newsgroups(pack(tmp_path / "a.tar.gz", NEWS | empty, "latin-1"))
    assert caplog.messages == ["a.tar.gz: 1 of 16 texts are empty and were left out."]
    assert sorted(found["test"]) == [("0", "the pitcher"), ("1", "The goalie did. He stood still.")]
    assert {*found["train"], *found["dev"]} == {("1", "the goalie"), *(("0", f"inning {i}") for i in range(12))}


def test_posts_are_drawn_at_random_a_fifth_of_each_group_for_test_and_dev(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    posts: dict[str, str] = {}
    for number in range(25):
        half = "train" if number % 3 else "test"
        posts |= news(f"{half}/rec.sport.hockey/{number}", f"the goalie stood still in game {number}")
        posts |= news(f"{half}/rec.sport.baseball/{number}", f"a long inning, the number {number}.")
    posts |= news("train/rec.sport.hockey/90", "one two three, four")  # with the comma five tokens
    posts |= news("train/rec.sport.hockey/91", "word " * 501)
    posts |= news("test/rec.sport.hockey/92", "word " * 500) | news("test/rec.autos/1", "a car that drives a long way")
    with caplog.at_level(logging.WARNING):
        found = read_random_newsgroups(pack(tmp_path / "a.tar.gz", posts))
    assert caplog.messages == [
        "a.tar.gz: 2 of 53 texts have fewer than 6 or more than 500 tokens and were left out.",
    ]
    labels = {split: [label for label, _ in texts] for split, texts in found.items()}
    assert {split: (own.count("0"), own.count("1")) for split, own in labels.items()} == {
        "train": (16, 17),
        "dev": (4, 4),
        "test": (5, 5),
    }
    texts = [text for own in found.values() for _, text in own]
    assert len(set(texts)) == len(texts) == 51
    assert found == read_random_newsgroups(pack(tmp_path / "b.tar.gz", dict(reversed(posts.items()))))
    by_sha1 = sorted(
        (text for text in texts if "inning" in text), key=lambda text: hashlib.sha1(text.encode()).digest()
    )
    assert {text for label, text in found["test"] if label == "0"} == set(by_sha1[:5])
    with pytest.raises(CorpusError, match="is incomplete: it has only 0 train and 0 test texts"):
        read_random_newsgroups(pack(tmp_path / "c.tar.gz", IMDB))


@pytest.mark.parametrize(
    "text",
    [
        POST,
        "H: 1\n\n\n  \nafter blanks\n\nmore\n\n\n",
        "H: 1\n\nall\n---\n> quoted\nIn article 3\nof an In article\n----",
        "H: 1\n\nx writes in y\nQuoted from z\n >kept\n> not",
        "no empty line\nat all",
    ],
)
def test_posts_are_those_of_scikit_learn(tmp_path: Path, text: str) -> None:
    theirs = pytest.importorskip("sklearn.datasets._twenty_newsgroups")
    expected = theirs.strip_newsgroup_header(text)
    expected = theirs.strip_newsgroup_footer(expected) if expected else expected
    expected = " ".join(theirs.strip_newsgroup_quoting(expected).split())
    found = read_newsgroups(pack(tmp_path / "a.tar.gz", NEWS | {"20news-bydate-test/rec.sport.hockey/8": text}))
    assert [text for label, text in found["test"] if label == "1"] == [expected] * bool(expected)


def cut(path: Path) -> Path:
    noise = {f"aclImdb/train/pos/{i}_9.txt": hashlib.sha512(bytes([i])).hexdigest() for i in range(200)}
    whole = pack(path, noise).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (cut, "cannot be read"),
        (lambda path: pack(path, IMDB, "utf-16"), "cannot be read"),
        (lambda path: pack(path, NEWS), "is incomplete: it has only 0 train and 0 test texts"),
    ],
    ids=["cut off", "another encoding", "another archive"],
)
def test_a_damaged_or_other_archive_is_named(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    path = make(tmp_path / "a.tar.gz")
    with pytest.raises(CorpusError, match=f"^{path}: the archive {words}.*fetch it again"):
        read_imdb(path)


@pytest.mark.parametrize("name", ["20newsgroups", "20newsgroups_random"])
def test_both_corpora_of_the_newsgroups_are_made_from_one_archive(
    name: str, server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = server
    posts: dict[str, str] = {}
    for number in range(30):
        half = "test" if number % 3 == 0 else "train"
        posts |= news(f"{half}/rec.sport.hockey/{number}", f"the goalie stood still in game {number}")
        posts |= news(f"{half}/rec.sport.baseball/{number}", f"a long inning, the number {number}.")
    digest = hashlib.sha256(pack(folder / "20news.tar.gz", posts).read_bytes()).hexdigest()
    corpora = {}
    for entry in (CORPORA["20newsgroups"], CORPORA["20newsgroups_random"]):
        assert entry.archive is not None
        archive = replace(entry.archive, url=f"{address}/20news.tar.gz", sha256=digest)
        corpora[entry.name] = replace(entry, archive=archive)
    monkeypatch.setattr(registry, "CORPORA", corpora)
    paths = fetch(name, tmp_path)
    assert Quiet.asked == ["/20news.tar.gz"]
    texts = {split: [text.text for text in read_labelled(path).texts] for split, path in paths.items()}
    sizes = {"train": 36, "dev": 4, "test": 20} if name == "20newsgroups" else {"train": 38, "dev": 10, "test": 12}
    assert {split: len(own) for split, own in texts.items()} == sizes
    assert {label for path in paths.values() for label in [text.label for text in read_labelled(path).texts]} == {
        "0",
        "1",
    }
    other = ({"20newsgroups", "20newsgroups_random"} - {name}).pop()
    fetch(other, tmp_path)
    assert Quiet.asked == ["/20news.tar.gz"]  # the archive is there


@pytest.fixture
def imdb(server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive under the registry's own name."""
    address, folder = server
    content = pack(folder / "aclImdb_v1.tar.gz", IMDB | OTHERS).read_bytes()
    entry = CORPORA["imdb"]
    assert entry.archive is not None
    digest = hashlib.sha256(content).hexdigest()
    file = replace(entry.archive, url=f"{address}/aclImdb_v1.tar.gz", sha256=digest)
    monkeypatch.setattr(registry, "CORPORA", {"imdb": replace(entry, archive=file)})


@pytest.mark.usefixtures("imdb")
def test_a_fetched_archive_becomes_files_that_are_neither_fetched_nor_made_again(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with pytest.raises(CorpusError, match=rf"Fetch it: `probing fetch imdb --root {root}`"):
        locate("imdb", root)
    assert main(["imdb", "--root", str(root)]) == 0
    archive, paths = root / "cls" / "imdb" / "aclImdb_v1.tar.gz", locate("imdb", root)
    assert {path for path in root.rglob("*") if path.is_file()} == {archive, *paths.values()}
    expected = read_imdb(archive)
    for split, path in paths.items():
        assert [(text.label, text.text) for text in read_labelled(path).texts] == expected[split]
    before = paths["dev"].read_bytes()
    paths["train"].write_text("label\ttext\n1\tmy own\n")
    archive.unlink()
    Quiet.asked.clear()
    assert fetch("imdb", root) == paths
    assert Quiet.asked == []
    paths["dev"].unlink()
    fetch("imdb", root)
    assert Quiet.asked == ["/aclImdb_v1.tar.gz"]
    assert paths["dev"].read_bytes() == before
    assert paths["train"].read_text() == "label\ttext\n1\tmy own\n"
