"""Files of every task of GLUE in its own format, in little."""

from pathlib import Path

# Of each task the folder, the files of train and dev, a header, a row for text, pair and label, and labels.
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
)
MNLI += "\tsentence1\tsentence2\tlabel1"
TASKS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "cola": ("CoLA", "dev", "", "gj04\t{label}\t*\t{a}", ("1", "0")),
    "glue_sst2": ("SST-2", "dev", "sentence\tlabel", "{a} \t{label}", ("1", "0")),
    "mrpc": ("MRPC", "dev", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t7\t8\t{a}\t{b}", ("1", "0")),
    "stsb": (
        "STS-B",
        "dev",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tmain\tMSRvid\t2012\t0001\tnone\tnone\t{a}\t{b}\t{label}",
        ("5.000", "0.5", "3"),
    ),
    "qqp": (
        "QQP",
        "dev",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "9\t1\t2\t{a}\t{b}\t{label}",
        ("0", "1"),
    ),
    "mnli": (
        "MNLI",
        "dev_matched",
        f"{MNLI}\tgold_label",
        "0\t3\t3n\tslate\t( a )\t( b )\t(S a)\t(S b)\t{a}\t{b}\tneutral\t{label}",
        ("neutral", "entailment", "contradiction"),
    ),
    "qnli": (
        "QNLI",
        "dev",
        "index\tquestion\tsentence\tlabel",
        "0\t{a}\t{b}\t{label}",
        ("entailment", "not_entailment"),
    ),
    "rte": (
        "RTE",
        "dev",
        "index\tsentence1\tsentence2\tlabel",
        "0\t{a}\t{b}\t{label}",
        ("not_entailment", "entailment"),
    ),
    "wnli": ("WNLI", "dev", "index\tsentence1\tsentence2\tlabel", "0\t{a}\t{b}\t{label}", ("0", "1")),
}
SCORES = {"cola": "mcc", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
TEXTS = ('The " fox', "dogs aren't\xa0here .")


def write(root: Path, task: str, rows: int = 6) -> dict[str, Path]:
    """The files of a task under a data root; those of MNLI's dev have more columns than train."""
    folder, dev, header, row, labels = TASKS["mnli" if task == "mnli_mismatched" else task]
    dev = "dev_mismatched" if task == "mnli_mismatched" else dev
    place = root / "glue" / folder
    place.mkdir(parents=True, exist_ok=True)
    files = {"train": place / "train.tsv", "dev": place / f"{dev}.tsv"}
    for split, path in files.items():
        head, line = header, row
        if folder == "MNLI" and split == "dev":
            head = head.replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")
            line = line.replace("\tneutral\t{label}", "\tneutral\tneutral\tentailment\tneutral\tneutral\t{label}")
        a, b = TEXTS
        lines = [
            line.format(a=f"{a} {split} {number}", b=b, label=labels[number % len(labels)]) for number in range(rows)
        ]
        path.write_text("\n".join([*([head] if head else []), *lines]) + "\n", encoding="utf-8")
    return files
