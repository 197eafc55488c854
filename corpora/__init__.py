"""Files → typed sentences, documents and labelled texts; the embedded samples; the registry of public corpora."""
