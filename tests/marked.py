"""Treebanks with marks of documents."""

from pathlib import Path


def with_documents(corpus: str, folder: Path, every: int) -> str:
    """The treebank with a mark of a document before some sentences; the first ones stand before the first mark."""
    for split in ("train", "dev", "test"):
        blocks = Path(corpus.replace("{split}", split)).read_text(encoding="utf-8").split("\n\n")
        for place in range(every, len(blocks) - 1, every):
            blocks[place] = f"# newdoc id = {split}-{place}\n{blocks[place]}"
        (folder / f"marked-{split}.conllu").write_text("\n\n".join(blocks), encoding="utf-8")
    return str(folder / "marked-{split}.conllu")
