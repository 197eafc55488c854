"""Plans and configs of studies/: their options are those of probing, and tests run their configs."""

from pathlib import Path

import pytest
import yaml

from attention_probing.commands.sweep_options import options_of
from attention_probing.commands.sweep_plan import read_sweep
from tests.test_docs import STUDIES, check_runs

YAMLS = [path for path in sorted(STUDIES.glob("*.yaml")) if path.stem not in ("published", "claims")]
PLANS = [path for path in YAMLS if "scores" in yaml.safe_load(path.read_text(encoding="utf-8"))]
TRUST = options_of(["--trust=studies"])


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_a_plan_can_be_run_and_the_permission_is_in_no_key(plan: Path) -> None:
    sweep, permitted = read_sweep(plan), read_sweep(plan, TRUST)
    assert plan.stem == sweep.name
    keys, others = ([run.key for row in one.rows for run in row.all_runs()] for one in (sweep, permitted))
    assert keys == others
    assert len(set(keys)) >= len(sweep.rows) - 2
    assert all("--trust=studies" in run.arguments for row in permitted.rows for run in row.all_runs())


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_the_runs_of_a_plan_have_options_that_there_are_and_configs_that_tests_run(plan: Path) -> None:
    check_runs(plan, TRUST)
