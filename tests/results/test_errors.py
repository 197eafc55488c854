import pytest

from attention_probing.results.errors import (
    UserError,
    command_line,
    near,
    setting,
)


@pytest.mark.parametrize(
    ("name", "value", "option", "argument"),
    [
        ("data.corpus", None, "--data.corpus", "`corpus`"),
        ("data.encoder.name", None, "--data.encoder.name", "`encoder`"),
        ("encoder", None, "--encoder", "`encoder`"),
        ("model.encoder.init_args.kernels", None, "--model.encoder.init_args.kernels", "`kernels`"),
        ("data.options.too_long", "skip", "--data.options.too_long=skip", "`too_long='skip'`"),
        ("data.regression", "true", "--data.regression=true", "`regression=True`"),
        ("data.parts", "[0.5,0.5]", "--data.parts=[0.5,0.5]", "`parts=[0.5, 0.5]`"),
        ("data.min_count", 2, "--data.min_count=2", "`min_count=2`"),
        ("corpus", "{train: a.tsv}", "--corpus='{train: a.tsv}'", "`corpus={'train': 'a.tsv'}`"),
        ("data.x", "[1, 2", "--data.x=[1, 2", "`x='[1, 2'`"),
        ("trainer.limit_test_batches", 0.1, "--trainer.limit_test_batches=0.1", "`limit=0.1`"),
        ("data", "DependencyDataModule", "--data DependencyDataModule", "DependencyDataModule"),
    ],
)
def test_a_setting_is_an_option_on_a_command_line_and_an_argument_in_python(
    name: str, value: object, option: str, argument: str
) -> None:
    assert setting(name, value) == argument
    with command_line():
        assert setting(name, value) == option
    assert setting(name, value) == argument


def test_what_looks_like_an_option_in_a_path_stays_as_it_is() -> None:
    assert str(UserError("/home/me/--data.old/en.conllu: no file.")) == "/home/me/--data.old/en.conllu: no file."


@pytest.mark.parametrize(
    ("name", "known", "suggested"),
    [
        ("ewt", ["ud_english_ewt", "ud_german_gsd"], ["ud_english_ewt"]),
        ("ud_english_ewtt", ["ud_english_ewt", "ud_finnish_tdt"], ["ud_english_ewt"]),
        ("head", ["clark2019/heads", "clark2019/bags", "decoders/heads"], ["clark2019/heads", "decoders/heads"]),
        ("clark2019/head", ["clark2019/heads", "clark2019/bags"], ["clark2019/heads"]),
        ("ofset.uas", ["offset.uas", "right_branching.uas", "uas"], ["offset.uas"]),
        ("trainer.frobnicate", ["trainer.fast_dev_run", "trainer.max_epochs"], []),
        ("devices", ["trainer.devices", "trainer.precision"], ["trainer.devices"]),
        ("model.lr", ["learning_rate", "lower"], ["learning_rate"]),
        ("trainer.epochs", ["trainer.min_epochs", "trainer.max_epochs"], ["trainer.max_epochs"]),
        ("max_sentences", ["batch_size", "max_sentences_of"], ["batch_size"]),
        ("aaa", ["zzz"], []),
        ("aaa", [], []),
    ],
)
def test_near_names_are_suggested(name: str, known: list[str], suggested: list[str]) -> None:
    said = " or ".join(f"`--{one}`" for one in suggested)
    assert near(name, known, "--") == (f" (did you mean {said}?)" if suggested else "")
