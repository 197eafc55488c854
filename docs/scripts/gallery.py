"""Draw the figures of docs/gallery.md again, by the commands below them: `python docs/scripts/gallery.py`.

The title of an image on the page is the name of the figure in `results.json` of the last command of its block.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gallery.md"
FIGURE = re.compile(r'!\[[^\]]*\]\((\S+) "(\S+)"\)\n\n((?: {4}.+\n)+)')


def main() -> None:
    """Run each command once, in a folder of its own, and copy the figures to the files that the page shows."""
    runs: dict[str, Path] = {}
    with TemporaryDirectory() as folder:
        given = {"PYTHONPATH": str(ROOT), "PROBING_DATA": os.environ.get("PROBING_DATA", str(ROOT / "data"))}
        for file, figure, block in FIGURE.findall(PAGE.read_text(encoding="utf-8")):
            commands = block.replace("\\\n", "").strip().splitlines()
            for command in commands:
                if command not in runs:
                    words = [sys.executable, str(ROOT / "train.py"), *shlex.split(command)[1:], "--quiet"]
                    run = subprocess.run(words, cwd=folder, env=os.environ | given, stdout=subprocess.PIPE, text=True)
                    run.check_returncode()
                    runs[command] = Path(folder, run.stdout.rpartition("Written to ")[2].strip())
            run_folder = runs[commands[-1]]
            drawn = json.loads((run_folder / "results.json").read_text(encoding="utf-8"))["figures"][figure]
            (PAGE.parent / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(run_folder / drawn, PAGE.parent / file)
            print(file)


if __name__ == "__main__":
    main()
