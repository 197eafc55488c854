"""Write a page of attention between words."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from jsonargparse import Namespace

from attention import Encoder, EncoderSpec, Options
from attention.quantities import QuantityName
from commands import parser_of
from pages import View, view_page
from reports import view
from results.errors import UserError
from results.files import write_atomically

MEGABYTE = 1_000_000
OF_STORES = ("hidden", "antecedent")  # quantities that only stores have


def _check(options: Namespace) -> None:
    """Raise UserError for options that do not fit each other."""
    corpus, store, saliency, quantity = options.corpus, options.store, options.saliency, options.quantity
    least = min([1, *(options.layers or ()), *(options.heads or ())])
    given = sum(map(bool, (options.text, corpus, store)))
    of_encoder = store and (options.layers or options.heads or options.pieces or saliency)
    nowhere = options.list and not (corpus or store)
    absent = saliency and not saliency.exists()
    faults = {
        "--list needs a corpus or a store. Give --corpus NAME or FILE, or --store FOLDER.": nowhere,
        "Nothing to show is given. Give --text, --corpus or --store.": not given,
        "--text, --corpus and --store exclude each other. Give only one.": given > 1,
        "--layers, --heads, --pieces and --saliency need --text or --corpus. Leave them out with --store.": of_encoder,
        f"--quantity {quantity} is only in stores. Give --store FOLDER --item N.": not store and quantity in OF_STORES,
        "--id needs a corpus. Give --corpus NAME or FILE.": options.id and not corpus,
        f"--saliency {saliency}: there is no such file. Give a checkpoint of a classifier, or its run.": absent,
        f"--layers and --heads count from 1, but {least} is given.": least < 1,
        **{f"--text {text!r} contains no word.": not text.split() for text in options.text},
    }
    if found := [fault for fault, holds in faults.items() if holds]:
        raise UserError(found[0])


def _views(options: Namespace) -> list[View]:
    """Return the views that the parsed options of a command line ask for."""
    if options.store is not None:
        return [view.store_view(options.store, options.item, options.quantity or "")]
    texts = [view.Marked.from_words(text.split()) for text in options.text]
    if options.corpus is not None:
        texts = view.from_corpus(options.corpus, options.split, options.id)
    if options.saliency is not None:
        path, model = view.read_classifier(options.saliency)
        texts = [view.with_saliency(text, path, model) for text in texts]
    layers, heads = (tuple(sorted(set(given))) if given else None for given in (options.layers, options.heads))
    chosen = Options(layers=layers, heads=heads, precision="float32", quantity=options.quantity or "attention")
    return view.attention_views(texts, Encoder(options.encoder), chosen, pieces=options.pieces)


def main(args: Sequence[str]) -> int:
    """Run the command: write a page and print its path, or print what can be shown; return the exit code.

    Raises:
        UserError: The input cannot be shown.
    """
    parser = parser_of("view")
    parser.add_argument("--encoder", default=EncoderSpec().name, metavar="NAME", help="folder or name (%(default)s)")
    source = parser.add_argument_group("texts")
    source.add_argument("--text", action="append", default=[], help="a text, cut at blanks; may be repeated")
    source.add_argument("--corpus", metavar="NAME|FILE", help="treebank (gold arcs) or documents (clusters)")
    source.add_argument("--split", default="dev", help="of a corpus by name (%(default)s)")
    source.add_argument("--id", nargs="+", action="extend", default=[], help="texts (the first); ID:N, ID:FIRST-LAST")
    source.add_argument("--list", action="store_true", help="say what there is in the corpus or the store, and leave")
    source.add_argument("--store", type=Path, metavar="FOLDER", help="a store of attention, instead of an encoder")
    source.add_argument("--item", type=int, default=1, metavar="N", help="of the store, from 1 (%(default)s)")
    what = parser.add_argument_group("what is shown")
    what.add_argument("--layers", nargs="+", type=int, metavar="N", help="from 1 (all)")
    what.add_argument("--heads", nargs="+", type=int, metavar="N", help="of each layer, from 1 (all)")
    names = (*get_args(QuantityName), *OF_STORES)
    what.add_argument("--quantity", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    what.add_argument("--pieces", action="store_true", help="also between the pieces of words")
    what.add_argument("--saliency", type=Path, metavar="CHECKPOINT", help="of a text classifier, or its run")
    what.add_argument("--budget", type=float, default=40, metavar="MB", help="most of the page (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("view.html"), metavar="FILE", help="the page (%(default)s)")
    options = parser.parse_args(args)
    _check(options)
    if options.list:
        print("\n".join(view.listed(options.store, options.corpus, options.split)))
        return 0
    if not options.out.absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder {options.out.absolute().parent}. Create it first.")
    page = view_page(*_views(options), budget=int(options.budget * MEGABYTE))
    print(write_atomically(options.out, page))
    return 0
