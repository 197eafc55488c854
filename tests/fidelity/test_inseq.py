"""Files of inseq become explanations: its scores by word, and what is no such file is refused."""

import json
from base64 import b64encode
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from fidelity.explanations import _owners, from_inseq
from results.errors import UserError

# Written by inseq 0.7.1 with transformers 4.57.3 and torch 2.13.0 from random models: GPT-2 (one layer, `n_embd=8`,
# byte-level pieces, `input_x_gradient`, prompts `Review: … Sentiment:`, generated text ` good`) and T5 (one layer,
# `d_model=8`, `saliency`, generated texts `good` and `bad`):
#   out = inseq.load_model(folder, method).attribute(prompts, generated, show_progress=False); out.save("inseq.json")
FOREIGN = Path(__file__).parent / "foreign"
OF_INSEQ = {"17": ["a", "fine", "film", ",", "née", "Bücher"], "18": ["an", "unwatchable", "plot"]}
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
        (path, {"17": OF_INSEQ["17"]}, "has 2 texts, but words of 1 are given"),
        (path, {**OF_INSEQ, "18": ["a", "plot"]}, "text '18': the pieces 'Re view : .*' do not spell 'a plot'"),
    ):
        with pytest.raises(UserError, match=message):
            from_inseq(file, texts)
