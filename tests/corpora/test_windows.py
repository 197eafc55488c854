from pathlib import Path

import pyarrow.parquet as pq

from attention_probing.corpora.document import (
    WINDOW_SCHEMA,
    Document,
    Mention,
    Window,
    anaphoric,
    cut_window,
    whole_documents,
    windows_from_table,
    windows_to_table,
)
from tests.documents import corpus, document

# Ann sees her dog . | It barks . | She calls it .
STORY = Document(
    "bn/story",
    "bn",
    (("Ann", "sees", "her", "dog", "."), ("It", "barks", "."), ("She", "calls", "it", ".")),
    (("NNP", "VBZ", "PRP$", "NN", "."), ("PRP", "VBZ", "."), ("PRP", "VBZ", "PRP", ".")),
    (
        Mention(0, 0, 1, 0, "proper", 0),
        Mention(0, 2, 4, 3, "nominal", 1),
        Mention(0, 2, 3, 2, "pronoun", 0),
        Mention(1, 0, 1, 0, "pronoun", 1),
        Mention(2, 0, 1, 0, "pronoun", 0),
        Mention(2, 2, 3, 2, "pronoun", 1),
    ),
)


def test_sentences_count_from_the_window_and_clusters_as_in_the_document() -> None:
    assert cut_window(4, STORY, 0, 3) == Window(4, 0, 0, STORY)
    # Of three mentions two are lost: It and She have their earlier mentions in the first sentence; it has It.
    mentions = (Mention(0, 0, 1, 0, "pronoun", 1), Mention(1, 0, 1, 0, "pronoun", 0), Mention(1, 2, 3, 2, "pronoun", 1))
    text = Document("bn/story", "bn", STORY.sentences[1:], STORY.tags[1:], mentions)
    window = cut_window(4, STORY, 1, 3)
    assert window == Window(4, 1, 2, text)
    assert len(window) == 7
    assert window.words == ("It", "barks", ".", "She", "calls", "it", ".")
    assert window.mention_heads == (0, 3, 5)


def test_head_words_stand_once_and_ascend() -> None:
    text = document("d", ["a b c d", "e f g"], [(0, 0, 4, 3, 0), (0, 1, 4, 3, 1), (0, 0, 1, 0, 0), (1, 1, 2, 1, 2)])
    window = cut_window(0, text, 0, 2)
    assert window.mention_heads == (3, 0, 3, 5)
    assert window.head_words == (0, 3, 5)


def test_anaphoric_mentions_have_an_earlier_one_of_their_cluster() -> None:
    assert anaphoric(STORY.mentions) == [False, False, True, True, True, True]
    assert anaphoric(()) == []


def test_lost_counts_mentions_with_an_antecedent_elsewhere_only() -> None:
    lost = 0
    for text in corpus([(4, 1, 7, 3, 5, 2)] * 12, 0).documents:
        for start, stop in ((0, 2), (2, 3), (4, 6)):
            expected = 0
            for place, mention in enumerate(text.mentions):
                if start <= mention.sentence < stop:
                    earlier = [other for other in text.mentions[:place] if other.cluster == mention.cluster]
                    expected += bool(earlier) and not any(start <= other.sentence < stop for other in earlier)
            assert cut_window(0, text, start, stop).lost == expected
            lost += expected
    assert lost


WINDOWS = (
    cut_window(0, STORY, 0, 1),
    cut_window(0, STORY, 1, 3),
    cut_window(7, document("empty", ["_ 👩\u200d🔬", "New"]), 0, 2),
    *(cut_window(9, text, 1, 3) for text in corpus([(4, 5, 6)] * 3).documents),
)


def test_windows_come_back_from_the_table_from_parquet_and_from_a_slice(tmp_path: Path) -> None:
    table = windows_to_table(WINDOWS)
    assert table.schema == WINDOW_SCHEMA
    assert windows_from_table(table) == WINDOWS
    assert windows_from_table(table.slice(1, 2)) == WINDOWS[1:3]
    pq.write_table(table, tmp_path / "x.parquet", compression="zstd", row_group_size=2)
    assert windows_from_table(pq.read_table(tmp_path / "x.parquet")) == WINDOWS
    assert windows_from_table(windows_to_table([])) == ()


def test_parts_of_a_document_have_the_name_of_the_whole() -> None:
    assert whole_documents(["a:0", "a:1", "b", "c:7", "d:x", "a:12"]) == ["a", "a", "b", "c:7", "d:x", "a"]
    assert whole_documents([]) == []
