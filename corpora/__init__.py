"""Readers of treebanks, documents and labelled texts; the embedded sample corpora; the registry of public corpora."""
