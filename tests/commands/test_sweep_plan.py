import re
import sys
from pathlib import Path

import pytest
import yaml

from attention_probing.commands import CONFIGS
from attention_probing.commands.sweep_options import long_name, options_of
from attention_probing.commands.sweep_plan import read_sweep
from attention_probing.commands.sweep_rows import Need
from attention_probing.results.errors import UserError
from tests.commands.sweeps import write_spec

SHIPPED = [path for path in sorted(CONFIGS.rglob("*.yaml")) if "scores" in yaml.safe_load(path.read_text())]
HEAD = "name: t\nlabel: probe\nscores: [uas]\n"


def test_rows_become_runs(tmp_path: Path) -> None:
    rows = """seeds: [0, 1]
rows:
  attention: {config: a.yaml, set: {model.init_args.b: 1, data.x: {y: [null, true]}, model.a: 1e-3}}
  words: {config: b.yaml, command: test, seeds: [7], scores: {uas: words.uas}}
"""
    sweep = read_sweep(
        write_spec(tmp_path, HEAD + rows, a="1", b="2"), options_of(["--model.a=5", "--trainer.z", "two words"])
    )
    assert (sweep.name, sweep.labels) == ("t", ("probe",))
    assert list(sweep.columns) == ["probe", "seeds", "epochs", "uas", "low", "high", "sd"]
    attention, words = sweep.rows
    options = ['--data.init_args.x={"y": [null, true]}', "--model.init_args.a=5", "--model.init_args.b=1"]
    options.append("--trainer.z=two words")
    assert {seed: [run.arguments for run in runs] for seed, runs in attention.runs.items()} == {
        seed: [["fit", f"--config={tmp_path}/a.yaml", f"--seed_everything={seed}", *options]] for seed in (0, 1)
    }
    assert [run.arguments[:3] for run in words.runs[7]] == [
        ["test", f"--config={tmp_path}/b.yaml", "--seed_everything=7"]
    ]
    assert list(words.runs) == [7]
    assert attention.scores == {"uas": "uas"}
    assert words.scores == {"uas": "words.uas"}


def test_both_forms_of_an_option_name_the_same_run(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, HEAD + "rows: {a: {config: a.yaml, set: {data.y: 1}}}\n", a="")
    short, long = (
        read_sweep(spec, options_of([f"--data.{name}x=1"])).rows[0].runs[0][0].key for name in ("", "init_args.")
    )
    assert short == long
    assert long_name("data.class_path") == "data.class_path"


def test_a_config_is_beside_the_plan_or_has_the_name_of_a_shipped_one(tmp_path: Path) -> None:
    rows = "rows: {shipped: {config: clark2019/heads, command: measure}, own: {config: a.yaml}}"
    sweep = read_sweep(write_spec(tmp_path, HEAD + rows, a="1"), {})
    shipped, own = (row.all_runs()[0] for row in sweep.rows)
    assert shipped.config == CONFIGS / "clark2019/heads.yaml"
    assert own.config == tmp_path / "a.yaml"


def test_a_row_of_several_runs_shares_what_it_says(tmp_path: Path) -> None:
    rows = """rows:
  both: {set: {a: 1, b: 1}, command: test, runs: [{config: a.yaml, set: {b: 2}}, {config: b.yaml, command: fit}]}
"""
    (row,) = read_sweep(write_spec(tmp_path, HEAD + rows, a="", b="")).rows
    assert [(run.command, run.config.name, run.options) for run in row.runs[0]] == [
        ("test", "a.yaml", (("a", "1"), ("b", "2"))),
        ("fit", "b.yaml", (("a", "1"), ("b", "1"))),
    ]


def test_a_grid_is_the_product_of_its_axes(tmp_path: Path) -> None:
    grid = """scores: [f1, accuracy]
columns: [encoder, regularizer, seeds, f1, sd, accuracy, accuracy.low]
grid:
  config: base.yaml
  set: {x: 0, y: 0}
  axes:
    encoder: {lstm: {}, gru: {set: {cell: gru, x: 1}}}
    regularizer: {base: {}, tying: {config: tying.yaml, set: {x: 2}, seeds: [4, 5], scores: {f1: other}}}
"""
    sweep = read_sweep(write_spec(tmp_path, grid, base="base", tying="tying"))
    assert sweep.name == "spec"
    assert sweep.labels == ("encoder", "regularizer")
    assert list(sweep.columns.values())[3:] == ["f1", "f1.sd", "accuracy", "accuracy.low"]
    first = [(row, next(iter(row.runs.values()))[0]) for row in sweep.rows]
    assert [(row.labels, tuple(row.runs), run.config.stem, run.options) for row, run in first] == [
        (("lstm", "base"), (0,), "base", (("x", "0"), ("y", "0"))),
        (("lstm", "tying"), (4, 5), "tying", (("x", "2"), ("y", "0"))),
        (("gru", "base"), (0,), "base", (("cell", "gru"), ("x", "1"), ("y", "0"))),
        (("gru", "tying"), (4, 5), "tying", (("cell", "gru"), ("x", "2"), ("y", "0"))),
    ]
    assert [row.scores["f1"] for row in sweep.rows] == ["f1", "other", "f1", "other"]


def test_a_run_is_known_by_what_decides_its_numbers(tmp_path: Path) -> None:
    def key(row: str, *extra: str) -> str:
        path = write_spec(tmp_path, f"{HEAD}rows:\n  a row: {row}\n", a="same", b="same", c="other")
        return read_sweep(path, options_of(extra)).rows[0].runs[0][0].key

    first = key("{config: a.yaml, set: {x: 1, y: 2}}")
    assert key("{config: b.yaml, set: {y: 2, x: 1}, scores: {uas: words.uas}}") == first
    assert key("{config: a.yaml, set: {x: 1}}", "--y=2") == first
    assert key("{config: a.yaml, set: {x: 1, y: 2}}", "--data.init_args.cache=/elsewhere") == first
    others = [
        key("{config: c.yaml, set: {x: 1, y: 2}}"),
        key("{config: a.yaml, set: {x: 1, y: 3}}"),
        key("{config: a.yaml, set: {x: 1, y: 2}, command: test}"),
        key("{config: a.yaml, set: {x: 1, y: 2}}", "--data.init_args.root=/elsewhere"),
    ]
    assert len({first, *others}) == 5


FAULTS = {
    "rows: {a: {config: a.yaml}}\ngrid: {axes: {x: {y: {}}}}": "a plan has either `rows` or a `grid`. Give one",
    "rows: {a: {conifg: a.yaml}}": r"row `a`: unknown key `conifg` \(did you mean `config`\?\)",
    "rows: {a: {config: no.yaml}}": r"row `a`: there is no config .*no\.yaml \(paths are relative to the folder of",
    "rows: {a: {config: a.yaml, scores: {uuas: x}}}": r"row `a`: `scores` has `uuas` \(did you mean `uas`\?\), which",
    "rows: {a: {config: a.yaml, seeds: [-1]}}": "row `a`: `seeds`: .*Expected a whole number, 0 or more. Got value: -1",
    "rows: {a: {config: a.yaml, seeds: [1, 1]}}": "row `a`: `seeds` lists 1 more than once: name it once",
    "rows: {c: {config: a.yaml}, a: {config: a.yaml, needs: {checkpoints: [':b']}}}": (
        "`checkpoints` needs :b, but no training was found there. .* the rows are c$"
    ),
    "rows: {c: {config: a.yaml, command: test}, a: {config: a.yaml, needs: {encoder: ':c'}}}": "no training was found",
    "rows: {a: {config: a.yaml, needs: {checkpoints: [spec.yaml]}}}": "the reference to .*spec.yaml is circular",
    "rows: {a: {config: a.yaml, needs: {checkpoints: [no.yaml]}}}": "no.yaml cannot be read",
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, seeds: [1], needs: {model.ablation: ':b'}}}": (
        "`model.ablation` needs 0 runs with seed 1, but must name exactly one for each seed of this row. Name a row"
    ),
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, needs: {encoders: ':b'}}}": (
        r"`needs` has `encoders` \(did you mean `encoder`\?\), but only checkpoints, encoder, model.ablation get what"
    ),
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, needs: {encoder: [':b']}}}": (
        "`needs` gives `encoder` a list, but it takes one row. Give it, such as ':ROW'"
    ),
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, needs: {checkpoints: []}}}": "`checkpoints` names no row. Name",
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, needs: {checkpoints: [':b', ':b']}}}": "names :b more than once",
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, checkpoints: [':b', 'p.yaml:c']}}": (
        r"`checkpoints` is a part of `needs` since version 3. Write `needs: {checkpoints: \[':b', 'p.yaml:c'\]}`"
    ),
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, checkpoint: ':b'}}": "Write `needs: {checkpoints: ':b'}`$",
    "rows: {b: {config: a.yaml}, a: {config: a.yaml, encoder: ':b'}}": "Write `needs: {encoder: ':b'}`$",
    "rows: {b: {config: a.yaml}, a: {runs: [{config: a.yaml, ablation: 'plan.yaml:b'}]}}": (
        "row `a`, run 1: `ablation` is a part .* Write `needs: {model.ablation: 'plan.yaml:b'}`$"
    ),
    "reference: {probe: c}\nrows: {a: {config: a.yaml}, b: {config: a.yaml}}": (
        "but no row has these values and the same other labels as another row, so there is nothing to compare. Give a "
        "label and one of its values, such as `probe: a`"
    ),
    "rows: {a: {config: a.yaml, set: {seed_everything: 1}}}": "`seed_everything` is set by the sweep itself. Leave",
    "rows: {a: {config: a.yaml, set: {x: 2026-01-01}}}": "`set` gives x the value 2026-01-01, which cannot be written",
    "rows: {a: {runs: [{config: a.yaml, seeds: [1]}]}}": "row `a`, run 1: unknown key `seeds`.*config, command, set",
    "name: a/b\nrows: {a: {config: a.yaml}}": "the sweep is called 'a/b', but its name becomes a file name",
    "label: uas\nrows: {a: {config: a.yaml}}": "two columns would be called `uas`",
    "columns: [probe, usa]\nrows: {a: {config: a.yaml}}": r"there is no column `usa` \(did you mean `uas`\?\); there",
    "grid: {config: a.yaml, axes: {x: [y]}}": "`grid`: `axes` is no mapping of axes to their values. Give it, such as",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_say_where_they_are(text: str, tmp_path: Path) -> None:
    head = "scores: [uas]\n" if "label:" in text or "grid" in text else "scores: [uas]\nlabel: probe\n"
    with pytest.raises(UserError, match=FAULTS[text]):
        read_sweep(write_spec(tmp_path, head + text, a=""))


def test_one_run_of_a_row_reads_the_ablation_of_another(tmp_path: Path) -> None:
    rows = """reference: {probe: ablated}
rows:
  ablated: {config: a.yaml, command: test}
  both: {runs: [{config: b.yaml}, {config: b.yaml, command: test, needs: {model.ablation: ":ablated"}}]}
"""
    sweep = read_sweep(write_spec(tmp_path, HEAD + rows, a="", b=""))
    off, both = sweep.rows
    [ablation], (plain, reading) = off.runs[0], both.runs[0]
    assert plain.needs == ()
    assert reading.needs == (Need("model.ablation", (ablation,)),)
    assert reading.identity["ablation"] == [ablation.key]
    assert list(sweep.compared()) == [(both, off)]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["x=1"], "options after `--` need their values: --name=value, not 'x'"),
        (["--x", "--y=1"], "not '--x'"),
        (["--config=b.yaml"], "`config` is set by the sweep itself"),
    ],
)
def test_faults_of_further_arguments(extra: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read_sweep(write_spec(tmp_path, f"{HEAD}rows: {{a: {{config: a.yaml}}}}", a=""), options_of(extra))


def test_an_option_of_an_axis_is_not_given_for_all_runs(tmp_path: Path) -> None:
    axes = "axes: {size: {small: {}, large: {set: {model.size: 2}}}, kind: {one: {}}}"
    spec = write_spec(tmp_path, f"scores: [uas]\ngrid: {{config: a.yaml, set: {{model.depth: 1}}, {axes}}}", a="")
    with pytest.raises(UserError, match=r"`--model.size` is set by the axis `size`. Choose rows with --row"):
        read_sweep(spec, options_of(["--model.size=3"]))
    rows = read_sweep(spec, options_of(["--model.depth=3"])).rows
    assert {dict(run.options)["model.init_args.depth"] for row in rows for run in row.all_runs()} == {"3"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_shipped_sweeps_can_be_run(path: Path) -> None:
    sweep = read_sweep(path)
    assert path.stem == sweep.name
    rows = {(run.key, *row.scores.values()) for row in sweep.rows for runs in row.runs.values() for run in runs}
    assert len(rows) >= len(sweep.rows) - 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "rows:\n  one: 1\n  two: 2\n  one: 3\n",
            r"a\.yaml, line 4 is not valid .*: the key `one` occurs twice in one mapping: remove one$",
        ),
        ("false: 1\n", r"line 1 .*: the key `false` is not a string: write it in quotes$"),
        ("[" * 100_000, r"a\.yaml, line 1 is not valid YAML in UTF-8: its lists and mappings are more than 100"),
        ("- rows: {}\n- scores: []\n", r"a\.yaml is a list, but must be a mapping, such as `name: value`$"),
        ("", r"a\.yaml is empty, but must be a mapping, such as `name: value`$"),
        ("\udcff", r"a\.yaml is not valid YAML in UTF-8: .*position 0"),
        (None, r"a\.yaml cannot be read: No such file"),
    ],
)
def test_faults_of_a_file(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=f"(?s){message}"):
        read_sweep(tmp_path / "a.yaml")


TOO_LARGE = {
    "rows": "scores: [a]\nrows:\n" + "".join(f"  r{row}: {{}}\n" for row in range(5_001)),
    "grid": f"scores: [a]\ngrid: {{config: a.yaml, axes: {{a: {{{', '.join(f'v{one}: {{}}' for one in range(80))}}}, "
    + f"b: {{{', '.join(f'v{one}: {{}}' for one in range(80))}}}}}}}",
    "runs": f"scores: [a]\nseeds: {[*range(500)]}\nrows:\n"
    + "".join(f"  r{row}: {{config: a.yaml}}\n" for row in range(21)),
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_a_plan_of_too_many_runs_is_refused_before_they_are_read(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: SingleHeads\n", encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(TOO_LARGE[kind], encoding="utf-8")
    fault = "the plan has more than 10,000 runs" if kind == "runs" else "the plan has more than 5,000 rows"
    with pytest.raises(UserError, match=f"{fault}. Divide it into several plans$"):
        read_sweep(tmp_path / "plan.yaml")


@pytest.mark.parametrize(("model", "command"), [("SingleHeads", "measure"), ("AttentionOnlyProbe", "fit")])
def test_the_config_of_a_run_names_its_command(model: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    for content in (f"model: {model}\n", f"model: {{class_path: {model}}}\ndata: {{}}\n"):
        path.write_text(content, encoding="utf-8")
        said = f"{path} is the config of one run, not a plan. Run it with `probing {command} --config {path}`"
        with pytest.raises(UserError, match=re.escape(said)):
            read_sweep(path)


def test_a_row_names_the_trainings_of_others(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(
        "scores: [f1]\nseeds: [0, 1]\nrows: {base: {config: a.yaml}, rules: {config: a.yaml, command: test}}\n"
    )
    rows = """rows:
  own: {config: a.yaml, set: {x: 1}}
  all: {config: b.yaml, command: test, needs: {checkpoints: [grid.yaml]}}
  two: {config: b.yaml, command: test, needs: {checkpoints: ["grid.yaml:base", ":own"]}}
"""
    own, everything, two = read_sweep(write_spec(tmp_path, HEAD + rows, a="a", b="b"), {"y": "2"}).rows
    base = read_sweep(tmp_path / "grid.yaml", {"y": "2"}).rows[0]
    assert [run.needed for run in everything.all_runs()] == [base.all_runs()]
    assert [run.needed for run in two.all_runs()] == [[*base.all_runs(), *own.all_runs()]]
    keys = [*(run.key for run in base.all_runs()), own.all_runs()[0].key]
    (run,) = two.all_runs()
    assert [one.key for one in run.with_needed()] == [*keys, run.key]
    assert run.identity["checkpoints"] == keys
    assert run.key != everything.all_runs()[0].key


def test_a_run_may_need_several_rows(tmp_path: Path) -> None:
    """What the grid needs and what its axis needs are joined; a key does not depend on their order."""
    grid = """scores: [uas]
seeds: [0, 1]
grid:
  command: measure
  config: a.yaml
  needs: {encoder: "plan.yaml:tuned"}
  axes: {part: {all: {needs: {checkpoints: "plan.yaml:probe"}}, none: {}}}
"""
    plan = "scores: [uas]\nseeds: [0, 1]\nrows: {tuned: {config: a.yaml}, probe: {config: b.yaml}}\n"
    (tmp_path / "plan.yaml").write_text(plan, encoding="utf-8")
    both, one = read_sweep(write_spec(tmp_path, grid, a="a", b="b")).rows
    tuned, probe = read_sweep(tmp_path / "plan.yaml").rows
    for seed in (0, 1):
        assert both.runs[seed][0].needed == [*tuned.runs[seed], *probe.runs[seed]]
        assert one.runs[seed][0].needed == [*tuned.runs[seed]]
        identity = both.runs[seed][0].identity
        assert identity["encoder"] == [tuned.runs[seed][0].key]
        assert identity["checkpoint"] == [probe.runs[seed][0].key]


def test_options_for_all_runs_have_other_names_in_some_rows(tmp_path: Path) -> None:
    rows = """rows:
  probe: {config: a.yaml}
  tuned: {config: a.yaml, rename: {data.encoder: data.tokenizer}}
  rules: {config: a.yaml, rename: {data.encoder: null}}
"""
    found = read_sweep(write_spec(tmp_path, HEAD + rows, a=""), {"data.encoder": "bert", "x": "1"}).rows
    assert [run.options for row in found for run in row.all_runs()] == [
        (("data.init_args.encoder", "bert"), ("x", "1")),
        (("data.init_args.tokenizer", "bert"), ("x", "1")),
        (("x", "1"),),
    ]


@pytest.mark.parametrize(
    ("own", "typed", "fault"),
    [
        (
            "data.init_args.vectors.allow_pickle: true",
            [],
            "only the command line may set --data.init_args.vectors.allow_pickle true. If you trust the plan, add",
        ),
        ("data.init_args.vectors: {allow_pickle: true}", [], "add `-- --data.init_args.vectors.allow_pickle true`"),
        ("data.encoder.trust_remote_code: true", [], "add `-- --data.init_args.encoder.trust_remote_code true`"),
        ("data.encoder: {name: a, trust_remote_code: true}", [], "only the command line may set --data.init_args.enc"),
        ("trust: strange_module.evil", [], "add `-- --trust strange_module.evil`"),
        ("model: strange_module.evil", [], "add `-- --trust strange_module`"),
        ("model: torch.nn.Linear", ["--optimizer=torch.optim.AdamW"], "add `-- --trust torch`"),
        ("model.init_args.tests: [{class_path: strange_module.Evil}]", [], "add `-- --trust strange_module`"),
        ("model: strange_module.evil", ["--trust=strange_module"], None),
        ("model: AttentionOnlyProbe", [], None),
        ("data.init_args.corpus: test.conllu", [], None),
    ],
)
def test_a_plan_permits_nothing(
    own: str, typed: list[str], fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange_module.py").write_text("raise AssertionError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    plan = write_spec(tmp_path, f"{HEAD}rows:\n  a: {{config: a.yaml, set: {{{own}}}}}\n", a="")
    if fault is None:
        assert read_sweep(plan, options_of(typed)).rows
    else:
        with pytest.raises(UserError, match=re.escape(fault)):
            read_sweep(plan, options_of(typed))
    assert "strange_module" not in sys.modules
