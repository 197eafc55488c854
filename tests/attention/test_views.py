"""`view` shows what `Encoder.attention` returns, and `to_bertviz` what transformers returns."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from transformers import AutoModel, AutoTokenizer

from attention_probing import view
from attention_probing.attention import Encoder, EncoderSpec
from attention_probing.results import UserError
from attention_probing.results.view import View, view_page

TEXT = "the unlazy dogs overdrinks coffee"


def test_every_kind_of_encoder_and_of_text_gives_one_page(bert: Path) -> None:
    loaded = Encoder(str(bert))
    expected = view_page(View.from_attention(loaded.attention([TEXT]), notes=[f"Encoder: {bert}."]))
    for encoder in (str(bert), bert, EncoderSpec(str(bert)), loaded):
        assert view_page(view(TEXT, encoder)) == expected
    assert view_page(view(TEXT.split(), loaded)) == expected


def test_layers_heads_and_quantity_are_chosen(bert: Path) -> None:
    encoder = Encoder(str(bert))
    shown = view(TEXT, encoder, layers=[2], heads=[3, 1], quantity="norms")
    assert (list(shown.layers), list(shown.heads), shown.quantity) == ([2], [1, 3], "norms")
    [array] = encoder.attention([TEXT], quantity="norms")
    np.testing.assert_allclose(shown.values, array.sel(layer=[2], head=[1, 3]).to_numpy(), atol=1e-6)
    assert repr(shown) == f"<View of {TEXT!r}: norms, 1 × 2 heads; .save('view.html') writes the page>"


@pytest.mark.slow
def test_the_default_encoder_is_shown() -> None:
    shown = view("the chef ran")
    assert (len(shown.layers), len(shown.heads)) == (6, 12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*without encryption")
def test_one_call_shows_attention_in_a_fresh_kernel(bert: Path, tmp_path: Path) -> None:
    """A cell without `display`: the page is in its result, and reads nothing from elsewhere."""
    code = f"from attention_probing import view\nview({TEXT!r}, {str(bert)!r})"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])  # type: ignore[no-untyped-call]
    place = {"metadata": {"path": str(Path(__file__).parents[2])}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=place).execute()
    [result] = [output for output in notebook.cells[0].outputs if output.output_type == "execute_result"]
    html = result["data"]["text/html"]
    assert html.startswith("<iframe ")
    assert not re.search(r"(src|href)=(&#34;|&quot;|[\"'])(https?:)?//", html)
    assert "<View of" in result["data"]["text/plain"]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (" ", {}, r"The text to view is empty\. Give a string, or a list of words"),
        ([], {}, r"The text to view is empty"),
        (["the", " "], {}, r"sentences\[0\]\[1\] is empty\. Leave it out"),
        (3, {}, r"view: text is 3, but must be text or a list"),
        (TEXT, {"layers": [3]}, r"view: layers contains 3, but .* has 2 layers, counted from 1"),
        (TEXT, {"heads": [1, 5]}, r"view: heads contains 5, but .* has 4 heads, counted from 1"),
        (TEXT, {"layers": 2}, r"view: layers is 2, but must be a list"),
        (TEXT, {"quantity": "norm"}, r"quantity is 'norm', but must be one of .* \(did you mean `norms`"),
        ("the fox " * 40, {}, r"The text has 82 pieces, but .* reads at most 64\. View a part of it"),
    ],
)
def test_bad_input_is_one_line(text: Any, options: dict[str, Any], said: str, bert: Path) -> None:  # noqa: ANN401
    with pytest.raises(UserError, match=said) as caught:
        view(text, bert, **options)
    assert "\n" not in str(caught.value)


LEFT_OPEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""BertViz does not close the file of its script."""


def shown_by_bertviz(*given: Any) -> dict[str, Any]:  # noqa: ANN401
    """What `head_view` gives to its scripts."""
    bertviz = pytest.importorskip("bertviz")
    page = bertviz.head_view(*given, html_action="return").data
    [start] = [found.end() for found in re.finditer(r"params = ", page)]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(page, start)[0]
    [one] = found["attention"]
    return dict(one)


@LEFT_OPEN
def test_bertviz_shows_the_attention_that_transformers_returns(bert: Path) -> None:
    """Pieces, as users of BertViz know them."""
    tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert, attn_implementation="eager")
    inputs = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        own = model.eval()(**inputs, output_attentions=True).attentions
    expected = shown_by_bertviz(own, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]))
    given = Encoder(str(bert)).attention([TEXT], over="pieces").to_bertviz()
    assert [layer.shape for layer in given[0]] == [layer.shape for layer in own]
    found = shown_by_bertviz(*given)
    np.testing.assert_allclose(found["attn"], expected["attn"], atol=1e-6)
    assert len(found["left_text"]) == len(expected["left_text"])
    assert found["left_text"] == found["right_text"]


@LEFT_OPEN
def test_bertviz_shows_words(bert: Path) -> None:
    attention = Encoder(str(bert)).attention(["the fox", TEXT])
    found = shown_by_bertviz(*attention.to_bertviz(TEXT))
    np.testing.assert_array_equal(np.float32(found["attn"]), attention[1].to_numpy())
    assert found["left_text"] == ["[CLS]", *TEXT.split(), "[SEP]"]
