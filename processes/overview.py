"""The help of train.py. It imports nothing that takes long, so that it is there at once."""

import re
import textwrap
from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
HELP = """\
usage: python train.py {fit,validate,test,predict} --config CONFIG [options]

  fit       train a model, keep the best checkpoint, test it on the test split
  validate  score a checkpoint on the dev split
  test      score a checkpoint on the test split, or measure without training
  predict   write the predictions of a checkpoint for the test split

A config is a published experiment; options change parts of it:

  python train.py fit --config configs/demo.yaml
  python train.py test --config configs/clark2019/heads.yaml \\
      --data.init_args.corpus 'my-{split}.conllu'
  python train.py fit --help                 options of every run
  python train.py fit --data.help DependencyDataModule
                                             options of a class of --data

Configs, each configs/FOLDER/NAME.yaml:
"""


def overview(columns: int) -> str:
    """Return the help text of train.py: its commands, and its configs by folder.

    Args:
        columns: Width of the terminal.
    """
    names: dict[str, list[str]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        if re.search("^model:", path.read_text(encoding="utf-8"), re.MULTILINE):
            names.setdefault(path.parent.relative_to(CONFIGS).as_posix(), []).append(path.stem)
    width = max(map(len, names), default=0)
    lines = [
        textwrap.fill(
            ", ".join(stems), columns, initial_indent=f"  {folder:{width}}  ", subsequent_indent=" " * (width + 4)
        )
        for folder, stems in names.items()
    ]
    return "\n".join([HELP, *lines, "", "Many runs: python -m sweeps.run --help. Documentation: docs/index.md.", ""])
