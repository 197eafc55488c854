import os

# One thread for each process, before torch asks: workers share the cores, sums are the same on any number of
# processes, and threads of OpenMP do not outlive a fork.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# isort: split
import json
import logging
import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console

from attention_probing.attention import EncoderSpec
from attention_probing.commands import launch
from attention_probing.commands.lightning import ProbingCLI
from attention_probing.commands.twins import TABLE
from attention_probing.datamodules import DependencyDataModule
from attention_probing.results import Result, publication
from attention_probing.results.digests import RECORD
from attention_probing.results.record import Record, read_record
from tests.glossary import unexplained
from tests.tiny import save_bert, write_splits

ROOT = Path(__file__).parents[1]
IS_CHECKOUT = (ROOT / "train.py").is_file()
"""False in the folder of `make wheel-test`, which has the tests, but of the package only what is installed."""
collect_ignore: list[str] = []
if not IS_CHECKOUT:  # these are about the checkout, as a whole
    collect_ignore += ["benchmarks", "cluster", "studies", "attention/test_matrix.py"]
    collect_ignore += ["test_docs.py", "test_examples.py", "test_house.py"]


@pytest.fixture(scope="session", autouse=True)
def records() -> Iterator[None]:
    """Every `results.json` that a test writes is read back as it was, and its units are those of its scores.

    The glossary explains every score of every run, every run has a headline and an answer of at most 400 letters (600
    with the sentence that compares null twins), and its folder has at most 20 files, without those of its subfolders.
    """
    save, print_result = Record.save, publication.print_result

    def shown(result: Result, audit: Mapping[str, object], console: Console) -> None:
        assert result.headline, "name the scores that answer the question of the experiment: Result(headline=…)"
        assert re.fullmatch(r"(?=.*\d)\S.*\.", result.answer), f"no answer in a sentence: {result.answer!r}"
        assert len(result.answer) <= (600 if TABLE in result.tables else 400), f"a long answer: {result.answer!r}"
        print_result(result, audit, console)

    def checked(record: Record, folder: Path) -> None:
        ends = {f"{name}.{end}" for name in record.units for end in ("low", "high", "sd", "p")}
        assert record.units.keys() <= record.numbers.keys() <= record.units.keys() | ends
        config = folder / "config.yaml"
        if config.exists() and "\nmodel:" in config.read_text(encoding="utf-8"):  # a run of probing, and no sweep
            assert not unexplained(record.experiment, record.units), "docs/glossary.md does not explain these"
        save(record, folder)
        known = record.model_dump(exclude={"checksums"})
        assert read_record(folder / RECORD).model_dump(exclude={"checksums"}) == known
        assert len([path for path in folder.iterdir() if path.is_file()]) <= 20 - len(["page.html"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "save", checked)
        patch.setattr(publication, "print_result", shown)
        yield


@pytest.fixture(scope="session")
def own_code_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The folder of this session from which transformers imports the code of encoders."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
        patch.syspath_prepend(folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def parser() -> Iterator[None]:
    """The parser of `launch.main`, made once for all command lines of a process."""
    made: dict[str, Any] = {}
    make = ProbingCLI.setup_parser

    def taken(cli: ProbingCLI, *given: Any) -> None:  # noqa: ANN401 # see LightningCLI
        before = set(vars(cli))
        if type(cli) is not ProbingCLI or not made:
            make(cli, *given)
        if type(cli) is ProbingCLI:
            made.update({name: value for name, value in vars(cli).items() if name not in before})
            vars(cli).update(made)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProbingCLI, "setup_parser", taken)
        yield


# Of every terminal, pipe and log that a test does not give another width, whatever terminal the tests are run in.
os.environ.setdefault("COLUMNS", "80")

# Tests with several processes fork them from a server that has imported these once.
multiprocessing.set_forkserver_preload(["attention_probing.datamodules.batches", "attention_probing.metrics.rows"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of public data, of real models, of pages and of jobs; all but those of data are slow."""
    kinds = {"public_data": ["data"], "pretrained": ["models", "slow"]}
    kinds |= {"browser": ["browser", "slow"], "slurm": ["cluster", "slow"]}
    without = pytest.mark.skip(reason="this is no checkout: there is the installed package alone")
    for item in items:
        if not IS_CHECKOUT and item.get_closest_marker("checkout"):
            item.add_marker(without)
        for fixture in kinds.keys() & set(getattr(item, "fixturenames", ())):
            for marker in kinds[fixture]:
                item.add_marker(marker)


@pytest.fixture(scope="session")
def public_data() -> Callable[..., Path]:
    """Gives a file or folder under `$PROBING_DATA`, by the parts of its path; the test is skipped where it is not."""

    def find(*parts: str) -> Path:
        if not (root := os.environ.get("PROBING_DATA")):
            pytest.skip("PROBING_DATA is not set: public corpora and word vectors are not at hand")
        path = Path(root, *parts)
        if not path.exists():
            pytest.skip(f"{path} is absent")
        return path

    return find


@pytest.fixture(scope="session")
def pretrained() -> Callable[[str], Path]:
    """Gives the folder of a real pretrained model by its name; the test is skipped where it is not.

    The folder is under `$PROBING_MODELS`, by default `models` beside the checkout, where `make models` writes it.
    """
    root = Path(os.environ.get("PROBING_MODELS") or Path(__file__).parents[2] / "models")

    def find(name: str) -> Path:
        if not (root / name / "config.json").exists():
            pytest.skip(f"{root / name} is absent: `make models` writes it")
        return root / name

    return find


@pytest.fixture(scope="session")
def of_all_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this session share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, 2 layers × 4 heads, at most 64 pieces."""
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny treebank, with `{split}` in it: 41, 13 and 17 sentences."""
    return write_splits(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One folder of stores for all tests that only read them."""
    return str(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def run_config(bert: Path, cache: str, tmp_path: Path) -> Callable[..., tuple[Any, dict[str, Any], Path]]:
    """Runs `train.py` on the tiny BERT, or on what the arguments say, on one process or on several that are forked.

    Gives its CLI, and `results.json` with the folder it lies in. Figures take a third of such a run: `figures` draws.
    """

    def run(
        *arguments: str, processes: int = 1, own_data: bool = False, figures: bool = False
    ) -> tuple[Any, dict[str, Any], Path]:
        runs = tmp_path / f"on_{processes}"
        tiny = [f"--data.cache={cache}", f"--data.encoder.name={bert}"]
        forked = [f"--trainer.devices={processes}", "--trainer.strategy=ddp_fork"]
        options = [
            f"--trainer.default_root_dir={runs}",
            "--trainer.enable_progress_bar=false",
            "--trainer.accelerator=cpu",
            f"--figures.formats={'[png]' if figures else []}",
        ]
        cli = launch.main([*arguments, *([] if own_data else tiny), *options, *(forked if processes > 1 else [])])
        [path] = runs.rglob("results.json")
        return cli, json.loads(path.read_text(encoding="utf-8")), path.parent

    return run


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    """The file of all that is logged, in this process and in those that it forks."""
    handler = logging.FileHandler(tmp_path / "log.txt")
    names = (
        "pytorch_lightning",
        "attention_probing",
        "pytorch_lightning.utilities.rank_zero",
        "attention_probing.notes",
    )
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]  # of a quiet run before, for instance
    for logger in loggers:
        logger.setLevel(logging.INFO)
    for logger in loggers[:2]:
        logger.addHandler(handler)
    yield Path(handler.baseFilename)
    for logger in loggers[:2]:
        logger.removeHandler(handler)
    handler.close()
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def make_data(bert: Path, corpus: str, cache: str) -> Callable[..., DependencyDataModule]:
    """Makes a datamodule of the tiny treebank and BERT, other options in their place."""

    def make(**options: Any) -> DependencyDataModule:  # noqa: ANN401
        given = {"corpus": corpus, "encoder": EncoderSpec(str(bert)), "cache": cache, "batch_size": 4}
        return DependencyDataModule(**{**given, **options})

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window; tests are skipped where it is not installed."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: `make browser` installs it")
    with sync_playwright() as driver:
        # Chromium has no sandbox for root; shared memory is small in containers.
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file without a network, with options of playwright's `new_context`.

    At the end of the test no page may have logged an error, thrown an exception, or asked for another address.
    """
    faults: list[str] = []
    contexts = []

    def opened(path: Path, **options: Any) -> Page:  # noqa: ANN401
        context = browser.new_context(offline=True, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        address = path.resolve().as_uri()

        def asked(url: str) -> None:
            if not url.startswith(("data:", "blob:")) and url.partition("#")[0] != address:
                faults.append(f"asked for {url}")

        page.on("request", lambda request: asked(request.url))
        page.on("pageerror", lambda error: faults.append(f"thrown: {error}"))
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults
