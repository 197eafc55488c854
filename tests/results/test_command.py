"""How commands end."""

import sys
import warnings
from collections.abc import Sequence

import pytest

from attention_probing.results import UserError, command


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [(KeyboardInterrupt(), 130, "Stopped."), (UserError("no such row"), 1, "Error: no such row"), (None, 3, "")],
)
def test_a_command_ends_with_a_code_and_one_line(
    fault: BaseException | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main(args: Sequence[str]) -> int:
        if fault is not None:
            raise fault
        return 3

    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(SystemExit) as ended:
        command.run(main)
    assert ended.value.code == code
    assert capsys.readouterr().err.strip() == said


@pytest.mark.filterwarnings("default")
def test_a_warning_is_without_the_place_in_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    def main(args: Sequence[str]) -> int:
        with warnings.catch_warnings():
            warnings.showwarning = lambda *given: print(warnings.formatwarning(*given[:4]), end="", file=sys.stderr)
            warnings.warn("config.yaml is not verified", stacklevel=1)
        return 0

    before = warnings.formatwarning
    with pytest.raises(SystemExit):
        command.run(main)
    assert capsys.readouterr().err == "Warning: config.yaml is not verified\n"
    assert warnings.formatwarning is before
