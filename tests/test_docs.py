"""What the documentation says is so: its commands, links, code, messages and names."""

import argparse
import ast
import importlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import jsonargparse
import pytest
from axe_playwright_python.sync_playwright import Axe
from filelock import FileLock
from playwright.sync_api import Browser, Page
from pytorch_lightning import Trainer
from submitit.slurm.slurm import SlurmExecutor

from attention_probing import attention, datamodules, fidelity, measures, models, probes
from attention_probing.commands import COMMANDS, RUNS, launch, measure
from attention_probing.commands.command_line import CommandLine, with_configs
from attention_probing.commands.lightning import CheckedCLI
from attention_probing.commands.shorthand import config_file, config_name
from attention_probing.commands.sweep_options import Options, options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.sweep_rows import Run
from attention_probing.results.errors import command_line, setting
from attention_probing.results.estimates import ENDS, UNITS
from docs.reference import ROOMS, configs_page, described, exported
from tests.commands.test_sweep_plan import SHIPPED as SWEEPS
from tests.glossary import OF_ANY_UNIT, explained, unexplained
from tests.measures import test_ablation as of_heads_off, test_configs as of_analyses
from tests.rooms import exports
from tests.test_train import CLASSIFIERS, PROBES, YAMLS

ROOT = Path(__file__).parents[1]
FIRST = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt")
PAGES = [*(ROOT / name for name in FIRST), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
SHIPPED, STUDIES = ROOT / "configs", ROOT / "studies"

# What tests run end to end on tiny inputs, where the tests have no list of their own.
RUN_BY = {
    "measures/test_ablation.py": [("measure", "kovaleva2019/ablation.yaml"), ("measure", "kovaleva2019/layers.yaml")],
    "measures/test_causal.py": [("measure", "clark2019/causal.yaml")],
    "measures/test_pairs.py": [
        *(("measure", f"{name}.yaml") for name in ("sashida2026/pairs", "sashida2026/heads_off", "kumon2026/patch")),
    ],
    "measures/test_grammar_heads.py": [("measure", "grammar.yaml")],
    "fidelity/test_error_prediction.py": [("measure", "ostmeier2026/errors.yaml")],
    "fidelity/test_pair_errors.py": [("measure", "ostmeier2026/pair_errors.yaml")],
    "fidelity/test_experiment.py": [
        *(("measure", f"{name}.yaml") for name in ("fidelity/all", "fidelity/quick", "judge")),
        *(("measure", f"{name}/fidelity.yaml") for name in ("jain2019", "serrano2019", "tutek2020", "wiegreffe2019")),
    ],
    "probes/test_antecedent.py": [
        ("fit" if trained else "measure", f"clark2019/coreference{trained}{corpus}.yaml")
        for trained, corpus in product(("", "_attention", "_glove"), ("", "_litbank"))
    ],
    "probes/test_control.py": [("measure", "hewitt2019/control.yaml")],
    "probes/test_description_length.py": [("measure", "voita2020/mdl.yaml")],
    "studies/test_agreement.py": [("measure", "../studies/ablation_tau.yaml")],
    "studies/test_known_answers.py": [("measure", "../studies/known_answers.yaml")],
}
RUN: set[tuple[str, Path]] = {
    *(("fit" if "probing fit" in YAMLS[path] else "measure", path) for path in PROBES),
    *(("fit", path) for path in CLASSIFIERS),
    *(("measure", path) for path in [*of_analyses.ANALYSES, of_analyses.ATLAS, *of_heads_off.MICHEL.glob("*.yaml")]),
    *((command, (SHIPPED / config).resolve()) for of_test in RUN_BY.values() for command, config in of_test),
}


class Said(NamedTuple):
    """A piece of code on a page, and where it begins."""

    page: Path
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^(?: {4}|\t).*\n)(?:(?:^(?: {4}|\t).*\n|^\n)*^(?: {4}|\t).*\n)?", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def blank(text: str) -> str:
    """As many lines, with nothing in them."""
    return re.sub(r"[^\n]", " ", text)


def fenced(page: Path) -> Iterator[tuple[str, Said]]:
    """The fenced blocks of a page, each after its language."""
    for found in _FENCED.finditer(TEXTS[page]):
        yield found[2], Said(page, TEXTS[page].count("\n", 0, found.start(3)) + 1, found[3])


def prose(page: Path) -> str:
    """A page without its fenced blocks, its lines where they were."""
    return _FENCED.sub(lambda found: blank(found[0]), TEXTS[page])


def lines_of_code(page: Path) -> Iterator[Said]:
    """Every line of indented and fenced code, with those that a backslash joins to it."""
    blocks = [said for language, said in fenced(page) if language in ("", "sh", "bash")]
    text = prose(page)
    blocks += [
        Said(page, text.count("\n", 0, found.start()) + 1, found[0])
        for found in _INDENTED.finditer(text)
        # The second line of an item of a list is indented as well.
        if not text[: found.start()].rstrip("\n ").rpartition("\n")[2].lstrip().startswith(("- ", "|"))
    ]
    for block in blocks:
        number, joined = block.line, ""
        for line in block.text.splitlines():
            joined += line.strip().removesuffix("\\")
            if not line.rstrip().endswith("\\"):
                yield Said(page, number, joined)
                joined = ""
            number += 1


def inline(page: Path) -> Iterator[Said]:
    """Every piece of code within the text of a page."""
    text = prose(page)
    for found in _INLINE.finditer(_INDENTED.sub(lambda found: found[0], text)):
        yield Said(page, text.count("\n", 0, found.start()) + 1, " ".join(found[1].split()))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


_STARTS = ("probing ", "python ", "make ", "sbatch ", "fit --", "test --", "measure --", "sweep ")


def commands() -> list[Said]:
    """Every command of the documentation. In a table under `probing` it begins with its name, such as `fit`."""
    found = [said for page in PAGES for said in [*lines_of_code(page), *inline(page)]]
    return [said for said in found if said.text.startswith(_STARTS)]


def words(command: str) -> list[str]:
    """The words of a command line; `…` and the brackets around what may be left out are no part of it."""
    plain = re.sub(r"\[(--[^\[\]]+)\]", r"\1", command)
    return [word for word in shlex.split(plain, comments=True) if word != "…"]


class ParsedCLI(CheckedCLI):
    """Reads a command line to its end, classes and their options included; makes and runs nothing."""

    _parsers: ClassVar[dict[str, Any]] = {}

    def before_instantiate_classes(self) -> None: ...

    def instantiate_classes(self) -> None: ...


def parsed(arguments: list[str]) -> None:
    """Give the arguments to the parser of train.py."""
    line = CommandLine.from_words(arguments)
    launch.start(line, cli=ParsedCLI, measuring=lambda line: measure.make_parser().parse_line(line))


class ReadError(Exception):
    """Raised where a program has read its arguments, so that it does nothing."""


def read_by(module: str, arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """Give the arguments to the parser of a module."""
    for parser in (argparse.ArgumentParser, jsonargparse.ArgumentParser):
        original = parser.parse_args

        def stop(self: Any, args: Any = None, *more: Any, original: Any = original, **options: Any) -> NoReturn:  # noqa: ANN401
            original(self, args, *more, **options)
            raise ReadError

        patch.setattr(parser, "parse_args", stop)
    with pytest.raises(ReadError):
        importlib.import_module(module).main(arguments)
    if module == "attention_probing.commands.sweep":
        place = arguments.index("--") if "--" in arguments else len(arguments)
        more = options_of(arguments[place + 1 :])
        given = arguments[0] if arguments[0].endswith(".yaml") else config_file(arguments[0])
        if (plan := ROOT / given).is_relative_to(SHIPPED) or plan.is_relative_to(STUDIES):
            assert plan in SWEEPS or plan.parent == STUDIES
            read_sweep(plan, more)


def check_train(arguments: list[str]) -> None:
    """The parser takes them, and a test runs the config with this command."""
    config = arguments[arguments.index("--config") + 1] if "--config" in arguments else None
    if config is not None and config.startswith("RUN/"):  # of a run: it has the form of a shipped one
        assert config == "RUN/config.yaml"
        arguments = ["configs/demo.yaml" if word == config else word for word in arguments]
    elif config is not None:
        assert (arguments[0], ROOT / config_file(config)) in RUN, f"no test runs `{arguments[0]}` with {config}"
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            parsed(arguments)
    except SystemExit as end:
        if end.code != 0:
            raise AssertionError(said.getvalue()) from None


def check(command: str) -> None:
    """Fail when the command cannot be run as it stands."""
    match words(command):
        case ["probing", "--help" | "--version" | "--configs"] | ["python", "train.py"]:
            pass  # the program is named
        case ["python", "-m", module]:
            assert callable(importlib.import_module(module).main)
        case ["python", script, *_] if (ROOT / "docs" / "scripts") in (ROOT / script).parents:
            assert (ROOT / script).is_file()
        case ["make", *targets]:
            known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert {*targets} <= {*known}, f"the Makefile has no {targets}"
        case ["sbatch", *options]:
            (place,) = (place for place, word in enumerate(options) if word.endswith("/trainer/slurm.sh"))
            if options[place + 2 :]:
                check_train(with_configs(options[place + 1 :]))
        case ["probing", name] if name in COMMANDS:
            pass  # the command is named
        case ["probing", name, *arguments] if name in RUNS:
            check_train(with_configs([name, *arguments]))
        case ["python", "-m" | "probing" as program, module, *arguments] | ["probing" as program, module, *arguments]:
            module = module if program == "-m" else f"attention_probing.commands.{module}"
            with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
                try:
                    read_by(module, arguments, patch)
                except SystemExit:
                    raise AssertionError(said.getvalue()) from None
        case [name, *_] if name in COMMANDS:
            check(f"probing {command}")
        case _:
            raise AssertionError("nothing is known of such a command")


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(PAGES[0], marks=pytest.mark.core), *PAGES[1:]], ids=name_of)
def test_every_command_can_be_run_and_a_test_runs_its_config(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    faults = []
    for said in [one for one in commands() if one.page == page]:
        try:
            check(said.text)
        except (AssertionError, ImportError, ValueError, OSError) as error:
            faults.append(f"{said.place}: {said.text}: {error}")
    assert not faults, "\n".join(faults)


def test_commands_are_found() -> None:
    """Of blocks, of the text, and of tables; what is joined by a backslash is one."""
    found = [said.text for said in commands()]
    assert len(found) > 100
    assert "make demo" in {text.partition("  ")[0] for text in found}
    assert any(text.startswith("probing fit clark2019/attention_glove") for text in found)
    joined = [text for text in found if "fidelity/all" in text]
    assert joined
    assert all("checkpoints" in text for text in joined)


@pytest.mark.slow
@pytest.mark.parametrize("plan", SWEEPS, ids=lambda path: path.stem)
def test_the_runs_of_a_sweep_have_options_that_there_are_and_configs_that_tests_run(plan: Path) -> None:
    check_runs(plan)


def check_runs(plan: Path, extra: Options | None = None) -> None:
    """The parser takes the command lines of a plan, with options for all runs, and tests run its configs."""
    runs = [run for row in read_sweep(plan, extra).rows for run in next(iter(row.runs.values()))]
    of_config: dict[tuple[str, Path, tuple[str, ...]], Run] = {
        (run.command, run.config, tuple(name for name, _ in run.options)): run for run in runs
    }
    for run in of_config.values():
        # What a training is tested on is another corpus: a test of the training has run the test too.
        assert ("fit" if run.command == "test" else run.command, run.config.resolve()) in RUN
        # A list of checkpoints, or an exported transformer, would have to be there.
        needs = [f"--{need.option}=a" for need in run.needs if need.name in ("checkpoint", "ablation")]
        parsed([*run.arguments, *needs])


def parameters(room: Any) -> set[str]:  # noqa: ANN401
    """The arguments of all classes of a room, those of the classes that they extend as well."""
    kinds = [kind for kind in exports(room).values() if isinstance(kind, type)]
    return {
        name
        for kind in kinds
        for base in kind.__mro__
        if "__init__" in vars(base) and base is not object
        for name in inspect.signature(vars(base)["__init__"]).parameters
    }


def test_options_that_are_named_alone_exist() -> None:
    """`--data.cache` and the like, wherever they stand."""
    of_models = set().union(*(parameters(room) for room in (fidelity, measures, models, probes)))
    known = {
        "data.init_args": parameters(datamodules),
        "model.init_args": of_models,
        "data.init_args.options": parameters(attention),
        "data.init_args.vectors": parameters(datamodules),
        "trainer": {*inspect.signature(Trainer.__init__).parameters},
        "slurm": {*SlurmExecutor._valid_parameters(), "mem_gb", "timeout_min", "max_num_timeout"},
    }
    for page in PAGES:
        for group, name in re.findall(r"--((?:\w+\.)+)(\w+)", TEXTS[page]):
            if (group := group.rstrip(".")) in known:
                assert name in known[group], f"{page.name}: --{group}.{name}"


def test_the_reference_lists_every_config_with_what_its_head_says() -> None:
    page = configs_page()
    for path in SHIPPED.rglob("*.yaml"):
        name = config_name(path)
        head = path.read_text(encoding="utf-8").partition("\n\n")[0]
        assert f"| `{name}` | {described(path)[:40]}" in page
        assert path.parent.name == "trainer" or re.search(rf"probing .*{name}\b", head), name


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@pytest.mark.parametrize("name", [*FIRST, "CHANGELOG.md"])
def test_links_outside_the_site_lead_somewhere(name: str) -> None:
    """Those within docs/ are checked by mkdocs."""
    text = _FENCED.sub("", (ROOT / name).read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        path = ROOT / file if file else ROOT / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, target


def python_blocks() -> list[Said]:
    return [said for page in PAGES for language, said in fenced(page) if language in ("python", "py")]


def test_python_compiles_and_what_it_imports_exists() -> None:
    assert python_blocks()
    for said in python_blocks():
        tree = ast.parse(said.text, filename=said.place)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{said.place}: {node.module} has no {alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)


def test_every_picture_is_shown() -> None:
    pictures = {path for path in (ROOT / "docs").rglob("*") if path.suffix in {".png", ".svg"}}
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)", TEXTS[page])
    }
    assert pictures == shown


def test_the_reference_has_what_the_rooms_show() -> None:
    for room in ROOMS:
        module = importlib.import_module(f"attention_probing.{room}")
        for name in exported(room):
            one = name.rpartition(".")[2]
            assert hasattr(module, one) or importlib.import_module(name), name


def messages() -> str:
    """All text that the program may say: its string literals, `…` for what is filled in."""
    said = []
    rooms = {path.parent for path in ROOT.glob("[a-z]*/__init__.py")} - {ROOT / "benchmarks", STUDIES, ROOT / "tests"}
    for path in [path for room in rooms for path in room.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            said.append("".join(text_of(part) for part in parts))
    return "\n".join(said)


def text_of(part: ast.AST) -> str:
    """Return a part of a message, a `setting` as the command line prints it, `…` for others that are filled in."""
    if isinstance(part, ast.Constant):
        return part.value if isinstance(part.value, str) else ""
    call = part.value if isinstance(part, ast.FormattedValue) else None
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "setting":
        arguments = [node.value for node in call.args if isinstance(node, ast.Constant)]
        if len(arguments) == len(call.args):
            with command_line():
                return setting(*map(str, arguments))
    return "…"


def test_the_messages_of_the_faq_are_those_of_the_program() -> None:
    told = messages()
    quoted = [said for language, said in fenced(ROOT / "docs/faq.md") if language == "text"]
    assert len(quoted) > 15
    for said in quoted:
        for part in said.text.strip().split("…"):
            longest = part.strip(" .:(),")
            assert longest in told, f"{said.place}: nothing says {longest!r}"


def test_units_and_endings_are_in_the_glossary() -> None:
    text = TEXTS[ROOT / "docs/glossary.md"]
    for unit in UNITS:
        assert f"| `{unit}` |" in text
    for end in ENDS:
        assert f"`x.{end}`" in text
    assert {*explained().values()} - OF_ANY_UNIT <= {*UNITS}


def test_a_score_that_the_glossary_does_not_explain_is_found() -> None:
    """Every run of every test asks this of its scores (conftest.py)."""
    assert not unexplained("heads", {"uas": "fraction", "random_init.uuas": "fraction", "offset.uas": "fraction"})
    assert not unexplained("fidelity", {"tying, δ .3.erasure.random.never_flips": "fraction"})
    assert unexplained("heads", {"uas": "nats", "my.uas": "fraction", "uas_": "fraction"}) == [
        "uas (nats)",
        "my.uas (fraction)",
        "uas_ (fraction)",
    ]


@pytest.fixture(scope="module")
def site(of_all_processes: Path) -> Path:
    """The site, as `make docs` builds it, once for all processes."""
    folder = of_all_processes / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    with FileLock(of_all_processes / "site.lock"):
        if not folder.exists():
            built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
            assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def open_site(browser: Browser, site: Path) -> Iterator[Callable[..., Page]]:
    """Opens a page of the site from its file, without a network. No file but the site's own may be asked for."""
    faults: list[str] = []
    contexts = []

    def opened(name: str, **options: Any) -> Page:  # noqa: ANN401
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        own = (site.as_uri(), "data:", "blob:", "about:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else faults.append(f"asked for {asked.url}"))
        page.on("requestfailed", lambda asked: faults.append(f"failed: {asked.url}"))
        page.on("pageerror", lambda error: faults.append(f"thrown: {error}"))
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.goto((site / name).as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


@pytest.mark.slow
def test_the_site_is_found_and_searched_from_a_file_without_a_network(open_site: Callable[..., Page]) -> None:
    page = open_site("index.html")
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").fill("anteceden")  # at once, as results of each key would come and go
    page.keyboard.type("t")
    of_page = page.locator("li.md-search-result__item").filter(has=page.locator("a[href*='clark2019']"))
    of_page.locator("summary").click(timeout=20_000)  # "more on this page"
    of_page.locator("a[href*='#single-heads-and-coreference']").click()
    page.wait_for_url(re.compile("papers/clark2019.html.*antecedent"))
    assert page.locator("mark").first.is_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "heading"),
    [
        ("run out of memory", "a-run-has-run-out-of-memory-or-was-killed"),
        ("GPU memory", "a-run-has-run-out-of-memory-or-was-killed"),
        ("quantized", "quantised-models-bitsandbytes-gguf-awq-gptq"),
        ("cite", "cite-how-to-cite-the-tool-and-the-methods"),
        ("one-sided", "are-the-p-values-one-sided-or-two-sided"),
        ("how many sentences", "how-many-sentences-are-enough"),
        ("Windows", "windows"),
        ("limit", "limit-how-to-limit-a-first-try-to-a-part-of-a-corpus"),
        ("LaTeX", "export-latex-csv-pdf-parquet"),
        ("flash attention", "flash-attention-and-sdpa"),
        ("GGUF", "quantised-models-bitsandbytes-gguf-awq-gptq"),
        ("bitsandbytes", "quantised-models-bitsandbytes-gguf-awq-gptq"),
        ("notebooks", "notebooks-jupyter-colab"),
        ("Colab", "notebooks-jupyter-colab"),
        ("export", "export-latex-csv-pdf-parquet"),
    ],
)
def test_the_search_finds_what_users_ask(asked: str, heading: str, open_site: Callable[..., Page]) -> None:
    page = open_site("index.html")
    page.locator("input.md-search__input").click()
    page.locator("input.md-search__input").fill(asked[:-1])
    page.keyboard.type(asked[-1])
    link = page.locator(f"a.md-search-result__link[href$='#{heading}']")
    link.first.wait_for(state="attached", timeout=20_000)
    pages = page.locator("li.md-search-result__item")  # each with its sections
    first = next(number for number in range(pages.count()) if pages.nth(number).locator(link).count())
    assert first < 3, pages.all_inner_texts()


def test_the_numbers_of_sentences_follow_from_the_widths_of_the_whole_corpus() -> None:
    page = TEXTS[ROOT / "docs/howto/corpus.md"].partition("## How many sentences\n")[2].partition("\n## ")[0]
    [whole] = re.findall(r"^\| none: (.*) \|$", page, re.MULTILINE)
    all_sentences, *widths = (float(cell.split(" (")[0].replace(",", "")) for cell in whole.split(" | "))
    rows = re.findall(r"^\| ± (\d) points \| (.*) \|$", page, re.MULTILINE)
    assert [points for points, _ in rows] == ["5", "2"]
    needed: dict[str, list[str]] = {}
    for points, cells in rows:
        needed[points] = [cell.removesuffix(" sentences") for cell in cells.split(" | ")]
        for cell, width in zip(needed[points], widths, strict=True):
            # Widths are rounded to .1, numbers of sentences to two digits, or to hundreds.
            least, most = (all_sentences * (end / int(points)) ** 2 for end in (width - 0.05, width + 0.05))
            number = int(cell.replace("fewer than ", "").replace(",", ""))
            if cell.startswith("fewer"):
                assert most < number
            else:
                digits = -2 if number < 10_000 else -3
                assert round(least, digits) <= number <= round(most, digits), cell
    [answer] = re.findall(r"### How many sentences are enough\?\n\n(.*?)\n\n", TEXTS[ROOT / "docs/faq.md"], re.DOTALL)
    (_, subjects, *_), (every_word, exact_subjects, *_) = needed.values()
    assert f"{subjects}\nsentences" in answer
    assert f"{exact_subjects} give ± 2; for all words {every_word} give ± 2" in answer


@pytest.mark.slow
def test_axe_finds_nothing_serious(open_site: Callable[..., Page]) -> None:
    names = ("index.html", "papers/clark2019.html", "glossary.html", "reference/measures.html")
    for name, scheme in product(names, ("light", "dark")):
        page = open_site(name, color_scheme=scheme)
        found = Axe().run(page, options={"preload": False}).response["violations"]
        serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, f"{name}, {scheme}"


@pytest.mark.slow
def test_a_page_is_no_wider_than_a_narrow_window(open_site: Callable[..., Page]) -> None:
    """Wide tables scroll by themselves; a long command is broken, not cut."""
    page = open_site("papers/clark2019.html", viewport={"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    cut = "[...document.querySelectorAll('pre > code')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate("document.querySelectorAll('pre > code').length") > 3
    assert page.evaluate(cut) == 0


@pytest.mark.slow
def test_signatures_have_every_option_and_none_that_stands_for_others(site: Path) -> None:
    for room, name in (("probes", "AttentionWordsProbe"), ("models", "HierarchicalClassifier")):
        text = re.sub(r"<[^>]+>", "", (site / f"reference/{room}.html").read_text(encoding="utf-8"))
        signature = text[text.index(f"{name}(") :].partition(")\n")[0]
        kind = getattr({"probes": probes, "models": models}[room], name)
        own, base = (inspect.signature(one.__init__).parameters for one in (kind, kind.__mro__[1]))
        options = {*own, *base} - {"self", "training"}
        assert len(options) > 2
        assert all(f"{option}:" in signature for option in options)
        assert "**" not in signature
