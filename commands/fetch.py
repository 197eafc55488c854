"""Fetch a public corpus by its name."""

from collections.abc import Sequence
from textwrap import fill

from attention_probing.commands import parser_of
from attention_probing.corpora import download, registry


def main(args: Sequence[str]) -> int:
    """Run the command: download a corpus or list all corpora, and return the exit code.

    Raises:
        CorpusError: There is no such corpus, or it cannot be downloaded.
    """
    parser = parser_of("fetch")
    parser.add_argument("name", nargs="?", help="the corpus")
    parser.add_argument("--root", help="data root; default $PROBING_DATA, else ./data")
    parser.add_argument("--list", action="store_true", help="list the corpora and leave")
    options = parser.parse_args(args)
    if options.list:
        for corpus in registry.CORPORA.values():
            facts = [", ".join(corpus.splits), corpus.licence, corpus.citation, corpus.homepage]
            if not corpus.can_be_fetched:
                facts.append("made, not fetched")
            line = f"{corpus.name}: {'; '.join(facts)}"
            print(fill(line, 80, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))
        return 0
    if options.name is None:
        parser.error("no corpus is named; give the name of one, or --list for all names")
    for split, path in download.fetch(options.name, options.root).items():
        print(f"{split}: {path}")
    recipe = registry.find(options.name).recipe
    if recipe:
        print(f"made, not fetched: {recipe}")
    return 0
