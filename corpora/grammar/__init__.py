"""The grammar that writes the sample treebank: words, verbs with their frames, phrases, clauses, sentences."""
